"""Bisection over a positive parameter, with which Yu et al. 2025 choose the frequency scale α."""

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Bisection", "bisect_minimum"]


@dataclass(frozen=True)
class Bisection:
    """The trials of a bisection.

    Attributes:
        values: The objective at each point of a trial, in the order of the trials.
        low: Lower end of the last interval.
        high: Upper end of the last interval.
    """

    values: dict[float, float]
    low: float
    high: float

    @property
    def best(self) -> float:
        """The point with the smallest value; the first of these points if values are equal.

        Raises:
            ValueError: No value is finite.
        """
        point = min(self.values, key=lambda x: _rank(self.values[x]))
        if not math.isfinite(self.values[point]):
            raise ValueError(f"no trial has a finite value of the objective: {self.values}")
        return point

    @property
    def is_unimodal(self) -> bool:
        """Whether the values fall up to the best point and rise after it, which the bisection takes for granted.

        Otherwise the objective has several local minima, or is noisy, and the bisection may have missed the smallest
        one.
        """
        ranks = [_rank(self.values[x]) for x in sorted(self.values)]
        place = ranks.index(min(ranks))
        before, after = ranks[: place + 1], ranks[place:]
        return before == sorted(before, reverse=True) and after == sorted(after)


def bisect_minimum(
    objective: Callable[[float], float], low: float, high: float, *, factor: float = 2.0, start_at_high: bool = True
) -> Bisection:
    """Minimise a function with a single local minimum by halving an interval, on a logarithmic scale.

    Of the interval [low, high], the middle x (the geometric mean) is tried first, then the middle of each half. If
    the objective is smaller in the middle of a half, the minimum is in that half, and otherwise in the two quarters
    around x. The interval thus halves, on the logarithmic scale, with at most two more trials, until high / low is at
    most `factor`. With r = ln(high / low) / ln(factor) there are at most 2 + 2 ⌈log₂ r⌉ trials.

    Yu et al. propose bisection for α, which they expect to have a unique local minimum of the loss, from an upper end
    α_max, in O(log α_max) trials, and give no further details. The logarithmic scale, the lower end, and the halving by
    trials in the middles of the halves (the interval halving method for unimodal functions) are our reading.

    Args:
        objective: Called with each point once; such as the validation error of a model that was trained with α = x. A
            value that is not finite (a diverged run) counts as larger than any other; if all points of a comparison
            have such values, the lower half is kept.
        low: Lower end, positive.
        high: Upper end, above `low`.
        factor: Ratio of the ends at which the bisection stops, above 1.
        start_at_high: Whether `high` is the first trial, as the paper starts with α_max. It is a candidate only: the
            halving does not depend on its value.

    Returns:
        The trials and the last interval. The best trial lies in it, or is `high`, if the objective is unimodal.

    Raises:
        ValueError: An argument out of range.

    Source: Yu et al. 2025, Appendix G.
    """
    for name, value in (("low", low), ("high", high), ("factor", factor)):
        if not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, got {value!r}.")
    if not low < high:
        raise ValueError(f"`low` must be below `high`, got {low:g} and {high:g}.")
    if not factor > 1:
        raise ValueError(f"`factor` must exceed 1, got {factor!r}.")
    values: dict[float, float] = {}

    def rank(place: float) -> tuple[bool, float]:
        point = math.exp(place)
        if point not in values:
            values[point] = float(objective(point))
        return _rank(values[point])

    if start_at_high:
        values[high] = float(objective(high))
    left, right = math.log(low), math.log(high)
    middle = (left + right) / 2
    # The tolerance keeps the rounding of the logarithms from adding a step.
    while right - left > math.log(factor) * (1 + 1e-9):
        quarter, three_quarters = (left + middle) / 2, (middle + right) / 2
        here = rank(middle)
        below = rank(quarter)
        if below < here or here[0]:
            middle, right = quarter, middle
        elif rank(three_quarters) < here:
            left, middle = middle, three_quarters
        else:
            left, right = quarter, three_quarters
    rank(middle)
    return Bisection(values, math.exp(left), math.exp(right))


def _rank(value: float) -> tuple[bool, float]:
    """A key that puts values that are not finite last."""
    return (False, value) if math.isfinite(value) else (True, 0.0)
