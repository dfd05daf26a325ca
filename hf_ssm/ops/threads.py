"""Thread pools for the tasks of an operation on a CPU.

Python threads suffice, since compiled kernels and torch release the interpreter's lock. Unlike OpenMP's thread pools
these survive a fork (a child makes its own) and calls from several Python threads. No result depends on which thread
executes a task. Workers run in a copy of the caller's context, and so use its choice of backend.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Barrier, Lock

import torch

__all__ = ["run_single_threaded", "run_tasks"]


class _Pool:
    """A thread pool that is made when it is needed, and again in a forked process or for another number of threads."""

    def __init__(self, make: Callable[[int], ThreadPoolExecutor]):
        self._make = make
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # The lock may have been held by a thread that does not exist in the child.
        self._lock, self._threads = Lock(), 0
        self._executor: ThreadPoolExecutor | None = None

    def get(self, threads: int) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None or self._threads != threads:
                # The threads of a pool without references end by themselves.
                self._executor, self._threads = self._make(threads), threads
            return self._executor


def _make_plain_pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm")


def _make_single_threaded_pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch uses one thread.

    The number of threads of torch is thread-local, but a thread that is new to torch starts with the number that was
    set last in any thread. Therefore the threads set theirs once and together, and then the caller sets its own again.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm_single")
    # No thread ends its task before all have begun, so that each thread executes one.
    all_begun = Barrier(threads)

    def begin() -> None:
        # The first query initialises the thread; a number that is set before is lost.
        torch.get_num_threads()
        torch.set_num_threads(1)
        all_begun.wait()

    before = torch.get_num_threads()
    begun: list[Future[None]] = []
    try:
        for _ in range(threads):
            begun.append(pool.submit(begin))
    except RuntimeError:
        # The system has no more threads: release those that wait for the others.
        all_begun.abort()
        pool.shutdown(wait=False)
        raise
    finally:
        wait(begun)
        torch.set_num_threads(before)
    return pool


_PLAIN_POOL, _SINGLE_THREADED_POOL = _Pool(_make_plain_pool), _Pool(_make_single_threaded_pool)


def _worker(task: Callable[[int], object], count: int) -> Callable[[], None]:
    """A function that several threads call to share the tasks `0, ..., count - 1`."""
    numbers = itertools.count()

    def work() -> None:
        # `next` of a count is atomic: no number is returned twice.
        while (number := next(numbers)) < count:
            task(number)

    return work


def _submit(pool: ThreadPoolExecutor, work: Callable[[], None], threads: int) -> list[Future[None]]:
    # A context can be entered by one thread at a time.
    return [pool.submit(copy_context().run, work) for _ in range(threads)]


def run_tasks(task: Callable[[int], object], count: int) -> None:
    """Call `task(0), ..., task(count - 1)`, each once, on `torch.get_num_threads()` threads including the caller's.

    For tasks that call compiled kernels.

    Raises:
        Exception: The error of a task, after all tasks that had begun have ended.
    """
    threads = min(torch.get_num_threads(), count)
    work = _worker(task, count)
    if threads <= 1:
        work()
        return
    others = _submit(_PLAIN_POOL.get(threads - 1), work, threads - 1)
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()


def run_single_threaded(task: Callable[[int], object], count: int) -> None:
    """Call `task(0), ..., task(count - 1)`, each once, in several threads at once where the tasks divide well.

    For tasks of many calls of torch on a block of data that fits the cache: a transform of such a block is shorter than
    the synchronisation of a team of threads, and a block that one core has loaded should stay with this core.
    `torch.get_num_threads()` threads work while the caller waits, each with one thread of torch. A task inherits
    neither the gradient mode nor the autocast of the caller; it runs in inference mode. Too few tasks are executed by
    the caller one after the other, with all threads in each call of torch.

    Raises:
        Exception: The error of a task, after all tasks that had begun have ended.
    """
    threads = torch.get_num_threads()
    # With few rounds, an incomplete last round would leave threads idle.
    if threads == 1 or (count % threads and count < 4 * threads) or not count:
        for number in range(count):
            task(number)
        return
    work = torch.inference_mode()(_worker(task, count))
    workers = _submit(_SINGLE_THREADED_POOL.get(threads), work, threads)
    wait(workers)
    for worker in workers:
        worker.result()
