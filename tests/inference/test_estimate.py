"""The estimate of a run: batches that grow, the throughput of the largest, and the time of all items."""

import pytest

from hf_ssm.inference import estimate as module
from hf_ssm.inference.estimate import duration, estimate


class Clock:
    """Time passes only while items are computed: 10 s for the first batch, and 0.5 s for each unit of others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now, self.batches = 0.0, []
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)

    def __call__(self, items: list[int]) -> None:
        self.now += 0.5 * sum(items) if self.batches else 2.0
        self.batches.append(len(items))


def test_the_first_batch_does_not_count(monkeypatch):
    clock = Clock(monkeypatch)
    text = estimate(iter([2] * 100), clock, 14_400, "letters", size=float)
    # 2, then 4 letters in 2 s, then 8 in 4 s.
    assert clock.batches == [1, 2, 4]
    assert text == "2 letters per second, timed on 8 of them: all 14,400 take about 2.0 h."


def test_few_items_and_none(monkeypatch):
    clock = Clock(monkeypatch)
    # The last batch, of one item, says less than the one before it.
    assert estimate([1] * 4, clock, 4, "variants", least_seconds=60).startswith("2 variants per second, timed on 2 of")
    assert clock.batches == [1, 2, 1]
    with pytest.raises(ValueError, match="the input holds no sequence"):
        estimate([], clock, 4, "variants")


@pytest.mark.parametrize(("seconds", "text"), [(0.1, "1 s"), (89, "89 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text
