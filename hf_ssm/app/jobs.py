"""Computations in a thread that report their progress and can be stopped."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import Any

from torch.overrides import TorchFunctionMode

__all__ = ["Job", "Stopped"]

# Seconds between two reports.
_INTERVAL = 0.2


class Stopped(BaseException):
    """The computation was stopped. Not an `Exception`, so that no handler on the way takes it for an error."""


class Job:
    """One computation.

    It is stopped at the next call of a function of torch, whichever part of the package makes it.

    Args:
        unit: What is counted, in the plural.

    Attributes:
        done: Number of units that are done.
        total: Number of all units; `None` if unknown.
    """

    def __init__(self, unit: str = "steps"):
        self.unit = unit
        self.done = 0
        self.total: int | None = None
        self._began = time.monotonic()
        self._stop = Event()
        self._has_raised = False

    def stop(self) -> None:
        """Stop the computation."""
        self._stop.set()

    def expect(self, total: int) -> None:
        """Set the number of units to do; the time left is estimated from now on."""
        self.total, self._began = total, time.monotonic()

    def advance(self, count: int = 1) -> None:
        """Count units as done."""
        self.done += count

    def check(self) -> None:
        """Raise `Stopped`, once, after `stop`: what cleans up afterwards may use torch."""
        if self._stop.is_set() and not self._has_raised:
            self._has_raised = True
            raise Stopped

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the end; `None` if unknown."""
        if not self.total or not self.done:
            return None
        return self.seconds * (self.total - self.done) / self.done

    def run(self, work: Callable[[], Any]) -> Iterator[None]:
        """Run `work` in a thread, and yield now and then; the generator returns the result of `work`.

        Closing the generator stops the computation.

        Raises:
            Stopped: `stop` was called.
            Exception: As `work` raises.
        """
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._stoppable, work)
            try:
                while not future.done():
                    wait([future], timeout=_INTERVAL)
                    yield
            finally:
                self.stop()
        return future.result()

    def _stoppable(self, work: Callable[[], Any]) -> Any:
        with _StopMode(self):
            return work()


class _StopMode(TorchFunctionMode):
    """Calls `Job.check` before each function of torch in this thread."""

    def __init__(self, job: Job):
        super().__init__()
        self.job = job

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.job.check()
        return func(*args, **(kwargs or {}))
