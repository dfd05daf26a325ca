"""Tasks made of many calls of torch, each task on one thread, several tasks at once.

A transform of a block that fits the caches is over before a team of threads has met twice; and what one core has
fetched, another would fetch again. So here a whole block stays with one thread, which calls torch single-threaded.

The number of threads of torch belongs to each thread, but a thread that is new to torch begins with the number that was
set last, wherever that was. The threads of this pool therefore set theirs once, together, and the number of the caller
is set again at once; the caller waits instead of working, so that its own need not change with each call.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count as numbers_from_zero
from threading import Barrier, Lock

import torch

__all__ = ["run_single_threaded"]

_lock = Lock()
# The process and the number of threads that the pool was made for.
_made_for = (0, 0)
_pool: ThreadPoolExecutor | None = None


def _forget_after_fork() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _lock, _pool
    _lock, _pool = Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)


def _make_pool(threads: int) -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm_single")
    # None ends before all have begun: so each of them runs this once.
    all_begun = Barrier(threads)

    def begin() -> None:
        # The first question makes the thread take over the number in force, and what is set before that is lost.
        torch.get_num_threads()
        torch.set_num_threads(1)
        all_begun.wait()

    before = torch.get_num_threads()
    begun: list[Future[None]] = []
    try:
        for _ in range(threads):
            begun.append(pool.submit(begin))
    except RuntimeError:
        # The system has no more threads: those that wait for the others are let go.
        all_begun.abort()
        pool.shutdown(wait=False)
        raise
    finally:
        wait(begun)
        torch.set_num_threads(before)
    return pool


def _get_pool(threads: int) -> ThreadPoolExecutor:
    global _pool, _made_for
    wanted = (os.getpid(), threads)
    with _lock:
        if _pool is None or _made_for != wanted:
            # The threads of a pool that is let go end by themselves; those of a parent process are not here.
            _pool, _made_for = _make_pool(threads), wanted
        return _pool


def run_single_threaded(task: Callable[[int], object], count: int) -> None:
    """Call `task(0), ..., task(count - 1)`, each once, several at once where they divide well among the threads.

    `torch.get_num_threads()` threads work, and a task has one of them; it sees neither the gradient mode nor the
    autocast of the caller, but inference mode. Where there are too few tasks they run here, one after the other, with
    all threads in each call.

    Raises:
        Exception: What a task raised, when all that were begun have ended.
    """
    threads = torch.get_num_threads()
    # The last round of few rounds must not leave threads without work.
    if threads == 1 or (count % threads and count < 4 * threads) or not count:
        for number in range(count):
            task(number)
        return
    numbers = numbers_from_zero()

    @torch.inference_mode()
    def work() -> None:
        # `next` of a count is one step of the interpreter: no number comes twice.
        while (number := next(numbers)) < count:
            task(number)

    pool = _get_pool(threads)
    workers = [pool.submit(work) for _ in range(threads)]
    wait(workers)
    for worker in workers:
        worker.result()
