"""Whether other settings are better than the defaults, from paired runs with fresh seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Decision", "decide", "paired_difference"]

STANDARD_ERRORS = 2.0
"""Paired standard errors that a gain has to exceed. It was fixed before any benchmark."""


@dataclass(frozen=True)
class Decision:
    """The comparison of a candidate with the default settings.

    Attributes:
        adopt: Whether the candidate replaces the default.
        gain: Mean over the seeds of candidate minus default, with the sign that makes a positive gain an improvement.
        standard_error: Of `gain`; infinite for a single seed.
        failed_default, failed_candidate: Number of seeds with which each of them failed.
        seeds: Number of seeds.
        reason: The decision in one sentence.
    """

    adopt: bool
    gain: float
    standard_error: float
    failed_default: int
    failed_candidate: int
    seeds: int
    reason: str


def paired_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Mean of `second - first` and its standard error s / √n, with s² = Σ (d - d̄)² / (n - 1).

    Scores at the same place are a pair (the same seed) and finite; the standard error of a single pair is infinite.

    Raises:
        ValueError: The sequences have other lengths, or are empty.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"`first` and `second` must be scores of the same seeds, got {len(first)} and {len(second)}.")
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    mean = float(differences.mean())
    if len(differences) == 1:
        return mean, math.inf
    return mean, float(differences.std(ddof=1) / math.sqrt(len(differences)))


def decide(
    default: Sequence[float],
    candidate: Sequence[float],
    *,
    greater_is_better: bool,
    failed_default: Sequence[bool] = (),
    failed_candidate: Sequence[bool] = (),
    baseline: float | None = None,
) -> Decision:
    """Whether a candidate replaces the default: its mean gain exceeds two standard errors, and no more seeds fail.

    No seed is left out. A score that is not finite (diverged training) counts as the worst of the finite scores and
    the trivial baseline, which is what its user would be left with.

    Args:
        default, candidate: Validation scores, with the same seed at the same place. The seeds must not have taken part
            in the choice of the candidate, or the comparison would favour it.
        greater_is_better: Whether larger scores are better.
        failed_default, failed_candidate: Which seeds failed (not finite, or no better than the trivial baseline);
            default: those with scores that are not finite.
        baseline: Score of the best constant prediction.

    Raises:
        ValueError: The scores are not those of the same seeds.
    """
    failures = [
        sum(failed) if len(failed) else sum(not math.isfinite(score) for score in scores)
        for scores, failed in ((default, failed_default), (candidate, failed_candidate))
    ]
    sign = 1.0 if greater_is_better else -1.0
    known = [*default, *candidate, *([] if baseline is None else [baseline])]
    worst = min((sign * score for score in known if math.isfinite(score)), default=0.0)
    benefits = [
        [sign * score if math.isfinite(score) else worst for score in scores] for scores in (default, candidate)
    ]
    gain, error = paired_difference(*benefits)
    measured = f"the gain is {gain:.4g} ± {error:.2g} (standard error of {len(default)} paired seeds)"
    if failures[1] > failures[0]:
        adopt = False
        reason = f"{failures[1]} of {len(default)} seeds fail, and {failures[0]} with the default: the default stays"
    elif adopt := gain > STANDARD_ERRORS * error:
        reason = f"{measured}: these settings replace the default"
        if failures[1]:
            reason += f", although {failures[1]} of {len(default)} seeds are no better than a constant prediction"
    else:
        reason = f"{measured}, not more than {STANDARD_ERRORS:g} standard errors: the default stays"
    return Decision(adopt, gain, error, failures[0], failures[1], len(default), reason)
