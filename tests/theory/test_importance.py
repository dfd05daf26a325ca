"""Importance of tokens and rates of estimation: against loops over positions, in float64."""

import math

import pytest
import torch

from hf_ssm.theory.importance import (
    estimation_exponent,
    similarity_importance,
    smoothness_index,
)


def plain_similarity(features: list[list[float]], similarity: str) -> list[float]:
    query = features[-1]
    if similarity == "distance":
        return [-math.dist(query, row) for row in features]
    return [sum(a * b for a, b in zip(query, row, strict=True)) for row in features]


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
        (lambda: smoothness_index([]), "`smoothness` must be positive numbers"),
        (lambda: smoothness_index([1.0], "Besov"), "`kind` must be 'mixed' or 'anisotropic'"),
        (lambda: estimation_exponent(0.0), "`index` must be positive, got 0.0"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
