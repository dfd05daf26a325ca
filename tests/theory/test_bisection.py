"""Bisection over a positive parameter, against the minimum on a dense grid."""

import math

import pytest

from hf_ssm.theory.bisection import Bisection, bisect_minimum


def grid_minimum(objective, low: float, high: float, count: int = 2001) -> float:
    """The reference: the best of `count` points, evenly spaced on a logarithmic scale."""
    ratio = math.log(high / low)
    return min((low * math.exp(ratio * place / (count - 1)) for place in range(count)), key=objective)


@pytest.mark.parametrize("factor", [2.0, 1.1, 1.0001])
@pytest.mark.parametrize("optimum", [0.013, 0.1, 1.0, 3.9, 24.0, 49.0])
@pytest.mark.parametrize("slopes", [(1.0, 1.0), (0.2, 5.0), (5.0, 0.2)])
def test_the_minimum_of_a_grid_is_in_the_last_interval(optimum, slopes, factor) -> None:
    low, high = 0.01, 50.0

    def objective(x: float) -> float:
        step = math.log(x / optimum)
        return (slopes[0] if step < 0 else slopes[1]) * abs(step) ** 1.5

    found = bisect_minimum(objective, low, high, factor=factor)
    reference = grid_minimum(objective, low, high)
    spacing = (high / low) ** (1 / 2000)
    assert found.low / spacing <= reference <= found.high * spacing
    assert found.high / found.low <= factor * (1 + 1e-8)
    assert found.best == min(found.values, key=objective)
    assert found.is_unimodal
    assert next(iter(found.values)) == high
    steps = math.ceil(math.log2(math.log(high / low) / math.log(factor)))
    assert len(found.values) <= 2 + 2 * steps


def test_each_point_is_tried_once() -> None:
    tried: list[float] = []

    def objective(x: float) -> float:
        tried.append(x)
        return abs(math.log(x))

    found = bisect_minimum(objective, 0.1, 40.0, start_at_high=False)
    assert len(tried) == len(set(tried)) == len(found.values)
    assert 40.0 not in tried
    # The geometric mean, then the middle of the lower half.
    assert tried[:2] == pytest.approx([2.0, math.sqrt(0.2)])


@pytest.mark.parametrize("limit", [0.5, 0.02])
def test_diverged_trials_are_the_worst(limit) -> None:

    def objective(x: float) -> float:
        return math.nan if x > limit else -x

    found = bisect_minimum(objective, 0.01, 100.0, factor=1.01)
    assert found.low <= limit <= found.high
    assert found.best == pytest.approx(limit, rel=0.01)
    hopeless = bisect_minimum(lambda x: math.inf, 0.01, 100.0)
    with pytest.raises(ValueError, match="no trial has a finite value"):
        _ = hopeless.best


def test_several_minima_are_told() -> None:
    assert not bisect_minimum(lambda x: math.cos(3 * math.log(x)), 0.1, 100.0, factor=1.1).is_unimodal
    assert Bisection({1.0: 2.0, 4.0: 1.0, 2.0: 1.0}, 1.0, 2.0).is_unimodal
    assert not Bisection({1.0: 1.0, 2.0: 2.0, 4.0: 1.5}, 1.0, 2.0).is_unimodal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0), "`low` must be positive"),
        ((1.0, math.inf), "`high` must be positive and finite"),
        ((2.0, 1.0), "`low` must be below `high`, got 2 and 1"),
    ],
)
def test_bad_ends(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        bisect_minimum(abs, *arguments)
    with pytest.raises(ValueError, match="`factor` must exceed 1"):
        bisect_minimum(abs, 1.0, 2.0, factor=1.0)
