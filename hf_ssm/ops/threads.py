"""Thread pools for the tasks of an operation on a CPU.

Python threads suffice, since compiled kernels release the interpreter's lock. Unlike OpenMP's thread pools
these survive a fork (a child makes its own) and calls from several Python threads. No result depends on which thread
executes a task. Workers run in a copy of the caller's context, and so use its choice of backend.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Lock

import torch

__all__ = ["run_tasks"]


class _Pool:
    """A thread pool that is made when it is needed, and again in a forked process or for another number of threads."""

    def __init__(self) -> None:
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
                self._executor = ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm")
                self._threads = threads
            return self._executor


_POOL = _Pool()


def _worker(task: Callable[[int], object], count: int) -> Callable[[], None]:
    """A function that several threads call to share the tasks `0, ..., count - 1`."""
    numbers = itertools.count()

    def work() -> None:
        # `next` of a count is atomic: no number is returned twice.
        while (number := next(numbers)) < count:
            task(number)

    return work


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
    pool = _POOL.get(threads - 1)
    # A context can be entered by one thread at a time.
    others = [pool.submit(copy_context().run, work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()
