"""How long a long run will take, from the time of its first items."""

import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from hf_ssm.inference.sharing import launched_workers

__all__ = ["duration", "estimate"]

T = TypeVar("T")


def estimate(
    items: Iterable[T],
    function: Callable[[list[T]], object],
    total: float,
    unit: str,
    *,
    size: Callable[[T], float] = lambda item: 1,
    least_seconds: float = 3.0,
) -> str:
    """A sentence with the throughput and the time of all items.

    The first items are computed in batches that grow until one takes `least_seconds`: what is done once, such as the
    compilation of kernels, does not count. The processes of a launch all compute the same items, at the same time.

    Args:
        items: What is computed; not more are read than are timed.
        function: Computes a list of items.
        total: Size of all items.
        unit: Name of the unit of sizes.
        size: Size of an item, default 1.
        least_seconds: Least time of the measurement, unless there are fewer items.

    Raises:
        ValueError: There are no items.
    """
    remaining, count = iter(items), 1
    timed, seconds = 0.0, 0.0
    while batch := list(islice(remaining, count)):
        start = time.perf_counter()
        function(batch)
        batch_seconds = time.perf_counter() - start
        # The last batch may be smaller than the one before it.
        if (batch_size := sum(map(size, batch))) >= timed:
            timed, seconds = batch_size, batch_seconds
        if seconds >= least_seconds:
            break
        count *= 2
    if not timed:
        raise ValueError("the input holds no sequence.")
    workers = launched_workers()
    rate = sum(workers.agree(timed / seconds))
    number = f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"
    among = f" by {workers.count} processes" if workers.count > 1 else ""
    return (
        f"{number} {unit} per second{among}, timed on {timed:,.0f} of them: all {total:,.0f} take about "
        f"{duration(total / rate)}."
    )


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
