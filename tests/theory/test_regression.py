"""Eq. (2) of Liu & Li: the complexity by all signs, and the gap of simulated data."""

import itertools

import numpy as np
import pytest
from scipy.optimize import brentq

from hf_ssm.theory.regression import linear_regression_bound, squared_loss_rademacher_bound


def largest_value(matrix: np.ndarray, linear: np.ndarray, radius: float) -> float:
    """max θᵀ M θ + 2 vᵀθ over ‖θ‖ ≤ R, exactly: (λ I - M) θ = v with λ at least 0 and the largest eigenvalue."""
    values, vectors = np.linalg.eigh(matrix)
    v = vectors.T @ linear
    top = values[-1]

    def norm(multiplier: float) -> float:
        return float(np.sqrt(np.sum((v / (multiplier - values)) ** 2)))

    if top < 0 and norm(0.0) <= radius:
        theta = v / -values
    else:
        low = max(top, 0.0)
        high = top + np.linalg.norm(v) / radius + 1.0
        theta = v / (brentq(lambda m: norm(m) - radius, low + 1e-12, max(high, low + 1), xtol=1e-14) - values)
    return float(theta @ (values * theta) + 2 * v @ theta)


@pytest.mark.parametrize(("radius", "norm_bound"), [(1.0, 2.0), (3.0, 0.2)])
def test_the_complexity_of_all_signs_is_below_the_bound(radius: float, norm_bound: float) -> None:
    rng = np.random.default_rng(1)
    n = 8
    inputs = rng.normal(size=(n, 3))
    inputs *= radius / np.linalg.norm(inputs, axis=1, keepdims=True)
    labels = rng.uniform(-1, 1, size=n)
    total = 0.0
    for signs in itertools.product((-1.0, 1.0), repeat=n):
        weighted = np.array(signs)[:, None] * inputs
        best = largest_value(weighted.T @ inputs, -weighted.T @ labels, norm_bound)
        total += (best + np.array(signs) @ labels**2) / n
    complexity = total / 2**n
    bound = squared_loss_rademacher_bound(radius, norm_bound, n)
    # Not far below either: a bound that forgot a factor √n or R would fail on one of the sides.
    assert 0.05 * bound < complexity <= bound


@pytest.mark.parametrize("norm_bound", [0.5, 2.0])
def test_the_gap_of_simulated_data_is_below_the_bound(norm_bound: float) -> None:
    """Inputs on the sphere of radius r, labels θ*ᵀx with ‖θ*‖ = 1/r: the population loss is a known quadratic."""
    rng = np.random.default_rng(2)
    radius, size, draws, failure = 2.0, 5, 200, 0.2
    target = np.full(size, 1 / radius / np.sqrt(size))
    covariance = np.eye(size) * radius**2 / size
    gaps = {}
    for n in (50, 800):
        exceeded, largest = 0, []
        for _ in range(draws):
            inputs = rng.normal(size=(n, size))
            inputs *= radius / np.linalg.norm(inputs, axis=1, keepdims=True)
            labels = inputs @ target
            assert np.abs(labels).max() <= 1
            matrix = inputs.T @ inputs / n - covariance
            linear = -(inputs.T @ labels / n - covariance @ target)
            constant = (labels**2).mean() - target @ covariance @ target
            gap = max(
                largest_value(matrix, linear, norm_bound) + constant,
                largest_value(-matrix, -linear, norm_bound) - constant,
            )
            largest.append(gap)
            exceeded += gap > linear_regression_bound(radius, norm_bound, n, failure)
        assert exceeded <= failure * draws
        gaps[n] = np.mean(largest)
    # Both the gap and the bound fall as 1/√n.
    bounds = [linear_regression_bound(radius, norm_bound, n, failure) for n in (50, 800)]
    assert bounds[0] / bounds[1] == pytest.approx(4)
    assert gaps[50] / gaps[800] == pytest.approx(4, rel=0.3)


def test_the_bound_grows_with_the_square_of_the_output() -> None:
    """(r R + 1)² (c + o(1)): only the product r R counts."""
    expected = 4 * 2 / 8 + 3 * 4 * np.sqrt(np.log(80) / 128)
    assert linear_regression_bound(2.0, 0.5, 64) == pytest.approx(expected)
    assert linear_regression_bound(4.0, 0.5, 100) == pytest.approx(linear_regression_bound(1.0, 2.0, 100))
    assert linear_regression_bound(0.0, 5.0, 100) == pytest.approx(3 * np.sqrt(np.log(80) / 200))
    ratio = linear_regression_bound(1e6, 1.0, 100) / linear_regression_bound(1e5, 1.0, 100)
    assert ratio == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0, 5), "`radius` must be finite and not negative, got -1.0"),
        ((1.0, float("inf"), 5), "`norm_bound` must be finite and not negative, got inf"),
        ((1.0, 1.0, 0), "`num_samples` must be at least 1, got 0"),
        ((1.0, 1.0, 5, 1.0), "`failure_probability` must lie between 0 and 1, got 1.0"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_regression_bound(*arguments)
