"""Tasks of compiled kernels on the threads that torch may use.

Kernels run without the interpreter's lock, so plain threads serve, and what a thread pool of OpenMP would break stays
whole: a forked process makes a pool of its own, several Python threads may call at once, and which thread runs a task
changes no digit.
"""

import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import torch

__all__ = ["run_tasks"]

_lock = Lock()
# The process and the number of threads that the pool was made for.
_made_for = (0, 0)
_pool: ThreadPoolExecutor | None = None


def _get_pool(threads: int) -> ThreadPoolExecutor:
    global _pool, _made_for
    wanted = (os.getpid(), threads)
    with _lock:
        if _pool is None or _made_for != wanted:
            # The threads of a pool that is let go end by themselves; those of a parent process are not here.
            _pool, _made_for = ThreadPoolExecutor(threads, thread_name_prefix="hf_ssm"), wanted
        return _pool


def _forget_after_fork() -> None:
    # The lock may have been held by a thread that the child does not have.
    global _lock, _pool
    _lock, _pool = Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)


def run_tasks(task: Callable[[int], object], count: int) -> None:
    """Call `task(0), ..., task(count - 1)`, each once, on `torch.get_num_threads()` threads, this one among them.

    Raises:
        Exception: What a task raised, when all that were begun have ended.
    """
    threads = min(torch.get_num_threads(), count)
    numbers = itertools.count()

    def work() -> None:
        # `next` of a count is one step of the interpreter: no number comes twice.
        while (number := next(numbers)) < count:
            task(number)

    if threads <= 1:
        work()
        return
    pool = _get_pool(threads - 1)
    others: list[Future[None]] = [pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for other in others:
            other.exception()
    for other in others:
        other.result()
