"""The cost of a probe before it starts: forward passes of one sequence, and seconds on this machine.

Legend: `M` maskable tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hf_ssm.probes.evaluators import Evaluator
from hf_ssm.probes.strategies import RESCORE_SHARE, SearchSettings

__all__ = ["ProbeCost", "count_evaluations"]

# Variants that are timed.
_TIMED = 16


@dataclass(frozen=True)
class ProbeCost:
    """An estimate of the cost of a probe.

    Attributes:
        evaluations: Forward passes of one sequence; for "shortlist" an upper bound.
        seconds: Wall time in one process.
    """

    evaluations: int
    seconds: float


def count_evaluations(settings: SearchSettings, count: int) -> int:
    """Forward passes of a search over M tokens; a backward pass of an attribution counts as two.

    Exact for "exact" and for "one_shot" and "occlusion" by occlusion; for "shortlist" an upper bound, as it masks
    several tokens per step where that costs nothing; approximate for the other attributions.

    Args:
        settings: Settings of the search.
        count: M.
    """
    strategy = settings.strategy
    along = count + 1
    if strategy == "exact":
        return count * (count + 1) // 2 + 1
    if strategy == "shortlist":
        return _shortlist(settings, count) + 1
    if strategy == "one_shot":
        return along + (count if settings.score == "occlusion" else 3)
    if strategy == "occlusion":
        return along + count + 1
    if strategy == "in_silico_mutagenesis":
        return along + count * (len(settings.attribution.letters) - 1) + 1
    if strategy == "deep_lift":
        return along + 6
    return along + 3 * settings.attribution.steps


def _shortlist(settings: SearchSettings, count: int) -> int:
    if settings.score == "gradient":
        return sum(min(settings.candidates, left) + 3 for left in range(1, count + 1))
    passes, due = 0, count
    for left in range(count, 0, -1):
        if left <= due:
            due = int(RESCORE_SHARE * left)
            passes += left
        else:
            passes += min(settings.candidates, left)
    return passes


def seconds_per_evaluation(evaluator: Evaluator) -> float:
    """Wall time of one variant, measured on a few of them; to be used within `probing(model)`."""
    places = evaluator.candidates[torch.linspace(0, len(evaluator.candidates) - 1, _TIMED).long()].tolist()
    chosen: Sequence[int] = sorted(set(places))
    masked = evaluator.masked([])
    # The first call compiles and allocates.
    evaluator.values_if_masked(masked, chosen)
    started = time.perf_counter()
    evaluator.values_if_masked(masked, chosen)
    return (time.perf_counter() - started) / len(chosen)
