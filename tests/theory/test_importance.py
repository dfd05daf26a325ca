"""Importance of tokens and rates of estimation: against loops over positions, in float64."""

import math

import pytest
import torch

from hf_ssm.theory.importance import (
    estimation_exponent,
    importance_gap,
    select_by_importance,
    selection_error_bound,
    similarity_importance,
    smoothness_index,
)


def plain_similarity(features: list[list[float]], similarity: str) -> list[float]:
    query = features[-1]
    if similarity == "distance":
        return [-math.dist(query, row) for row in features]
    return [sum(a * b for a, b in zip(query, row, strict=True)) for row in features]


def plain_selection(values: list[list[float]], importance: list[float], count: int, sharpness: float):
    left, selected = list(range(len(values))), []
    for _ in range(count):
        best = max(left, key=lambda j: importance[j])
        weights = {j: math.exp(sharpness * (importance[j] - importance[best])) for j in left}
        total = sum(weights.values())
        selected.append([sum(weights[j] * values[j][c] for j in left) / total for c in range(len(values[0]))])
        left.remove(best)
    return selected


@pytest.mark.parametrize("similarity", ["distance", "inner_product"])
def test_similarity_and_its_gradient(similarity: str) -> None:
    features = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    importance = similarity_importance(features, similarity)
    for batch in range(2):
        for row in range(3):
            expected = plain_similarity(features[batch, row].tolist(), similarity)
            torch.testing.assert_close(importance[batch, row].tolist(), expected, rtol=1e-10, atol=1e-10)
    # The distance of the last position to itself has no derivative.
    assert torch.autograd.gradcheck(lambda x: similarity_importance(x, similarity)[..., :-1], features)
    (gradient,) = torch.autograd.grad(importance.sum(), features)
    assert gradient.isfinite().all()


def test_features_of_equal_norm_have_one_order() -> None:
    angle = torch.rand(4, 9, dtype=torch.float64) * 2 * math.pi
    features = torch.stack([angle.cos(), angle.sin()], dim=-1)
    distance, product = (similarity_importance(features, kind) for kind in ("distance", "inner_product"))
    torch.testing.assert_close(distance, -(2 - 2 * product).clamp(min=0).sqrt(), rtol=1e-7, atol=1e-7)
    assert torch.equal(distance.argsort(-1), product.argsort(-1))
    assert (distance.argmax(-1) == 8).all()


def test_gap_is_the_largest_constant_of_the_definition() -> None:
    importance = torch.tensor([0.2, 1.0, 0.5, 0.4], dtype=torch.float64)
    for beta, expected in ((0.0, 0.1), (1.0, 0.2), (3.0, 0.5)):
        assert importance_gap(importance, beta).item() == pytest.approx(expected, abs=1e-12)
    assert importance_gap(torch.tensor([1.0, 1.0, 0.0])).item() == 0


@pytest.mark.parametrize("sharpness", [0.7, 5.0, math.inf])
def test_selection_against_a_loop(sharpness: float) -> None:
    values = torch.randn(3, 6, 2, dtype=torch.float64, requires_grad=True)
    importance = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    selected = select_by_importance(values, importance, 4, sharpness)
    finite = 1e6 if math.isinf(sharpness) else sharpness
    for row in range(3):
        expected = plain_selection(values[row].tolist(), importance[row].tolist(), 4, finite)
        torch.testing.assert_close(selected[row].tolist(), expected, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(lambda x, mu: select_by_importance(x, mu, 4, sharpness), (values, importance))


def test_selection_error_stays_below_its_bound_and_comes_near_it() -> None:
    generator = torch.Generator().manual_seed(0)
    values = 2 * torch.rand(200, 8, 1, dtype=torch.float64, generator=generator) - 1
    importance = torch.rand(200, 8, dtype=torch.float64, generator=generator)
    exact = select_by_importance(values, importance, 3)
    # All that is less important than a selected position, so also the first one that is not selected.
    ordered = importance.sort(-1, descending=True).values
    gaps = (ordered[:, :3] - ordered[:, 1:4]).amin(-1)
    for sharpness in (1.0, 30.0, 300.0):
        errors = (select_by_importance(values, importance, 3, sharpness) - exact).abs().amax((1, 2))
        bounds = torch.tensor([selection_error_bound(gap, 8, sharpness) for gap in gaps.tolist()], dtype=torch.float64)
        assert (errors <= bounds).all()
    two = select_by_importance(torch.tensor([[1.0], [-1.0]]), torch.tensor([2.0, 0.0]), 1, 1.0)
    assert 1 - two.item() > 0.4 * selection_error_bound(2.0, 2, 1.0)


def test_rates() -> None:
    assert smoothness_index([2.0, 1.0, math.inf]) == 1.0
    assert smoothness_index([2.0, 1.0, math.inf], "anisotropic") == pytest.approx(2 / 3)
    assert estimation_exponent(1.0) == pytest.approx(2 / 3)
    assert estimation_exponent(math.inf) == 1.0
    # The classical rate n^{-2s/(2s+d)} of d numbers with one smoothness s.
    for s, d in ((0.5, 1), (1.5, 3), (2.0, 4)):
        assert estimation_exponent(smoothness_index([s] * d, "anisotropic")) == pytest.approx(2 * s / (2 * s + d))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: similarity_importance(torch.ones(3)), r"`features` must have shape \(\.\.\., L, F\)"),
        (lambda: similarity_importance(torch.ones(3, 2), "cosine"), "'distance' or 'inner_product', got 'cosine'"),
        (lambda: importance_gap(torch.ones(1)), "at least 2 positions"),
        (lambda: importance_gap(torch.ones(3), -1.0), "`beta` must be finite and not negative, got -1.0"),
        (lambda: select_by_importance(torch.ones(3, 1), torch.ones(3), 4), "`count` must be from 1 to L"),
        (lambda: select_by_importance(torch.ones(3, 1), torch.ones(3), 1, 0.0), "`sharpness` must be positive"),
        (lambda: smoothness_index([]), "`smoothness` must be positive numbers"),
        (lambda: smoothness_index([1.0], "Besov"), "`kind` must be 'mixed' or 'anisotropic'"),
        (lambda: estimation_exponent(0.0), "`index` must be positive, got 0.0"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
