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
from functools import lru_cache

import torch

__all__ = ["run_tasks"]


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """So many threads of a process; those of its parent do not exist in a forked one."""
    return ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm")


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
    pool = _pool(threads - 1, os.getpid())
    # A context can be entered by one thread at a time.
    others = [pool.submit(copy_context().run, work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()
