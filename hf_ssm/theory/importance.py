"""Importance of tokens by the similarity of features, and rates of estimation.

Legend: `...` any leading shape, `L` positions, `F` features of a position. The last position is the one whose output is
predicted (position 0 of the paper).

Source: Nishikawa & Suzuki 2025 (arXiv 2405.19036, version 1).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "estimation_exponent",
    "similarity_importance",
    "smoothness_index",
]


def similarity_importance(features: Tensor, similarity: str = "distance") -> Tensor:
    """Importance of each position for the last one, by the similarity of their features v.

    "distance": μ_j = -‖v_0 - v_j‖; "inner_product": μ_j = v_0ᵀ v_j. The two give the same order if all features have
    equal norms. With "distance", the last position is always the most important.

    Args:
        features: `(..., L, F)`.
        similarity: "distance" or "inner_product".

    Returns:
        `(..., L)`.

    Raises:
        ValueError: Another `similarity`, or features without the two last dimensions.

    Source: Nishikawa & Suzuki 2025, Appendix B, case (ii).
    """
    if features.dim() < 2 or 0 in features.shape[-2:]:
        raise ValueError(
            f"`features` must have shape (..., L, F) with L and F of at least 1, got {tuple(features.shape)}."
        )
    query = features[..., -1:, :]
    if similarity == "distance":
        return -torch.linalg.vector_norm(query - features, dim=-1)
    if similarity == "inner_product":
        return (query * features).sum(-1)
    raise ValueError(f"`similarity` must be 'distance' or 'inner_product', got {similarity!r}.")


def smoothness_index(smoothness: Sequence[float], kind: str = "mixed") -> float:
    """a† of the smoothness a of each number that a function depends on.

    Args:
        smoothness: a, positive; infinite for numbers that do not matter.
        kind: "mixed" (γ(s) = ⟨a, s⟩): the smallest a. "anisotropic" (γ(s) = max a s): (Σ 1/a)^{-1}.

    Raises:
        ValueError: No numbers, a number that is not positive, only infinite numbers, or another kind.

    Source: Nishikawa & Suzuki 2025, Section 2.1; the text writes a‡ in the anisotropic case, its theorems a† in both.
    """
    if not smoothness or not all(a > 0 for a in smoothness) or all(math.isinf(a) for a in smoothness):
        raise ValueError(f"`smoothness` must be positive numbers, not all infinite, got {list(smoothness)}.")
    if kind == "mixed":
        return min(smoothness)
    if kind == "anisotropic":
        return 1 / math.fsum(1 / a for a in smoothness)
    raise ValueError(f"`kind` must be 'mixed' or 'anisotropic', got {kind!r}.")


def estimation_exponent(index: float) -> float:
    """2a†/(2a† + 1): the squared error of the least-squares estimate falls as n^{-2a†/(2a†+1)}, up to powers of log n.

    The same exponent holds for γ-smooth functions (Theorem 4.2), piecewise γ-smooth functions whose importance is
    itself γ-smooth (Theorem 4.4), and piecewise γ-smooth functions whose importance is a similarity (Theorem B.1;
    `similarity_importance`). The theorems are upper bounds for the exact minimiser of the squared error over a class of
    networks that grows with n, with labels that carry Gaussian noise; they make no statement about networks that
    gradient descent finds.

    Args:
        index: a†, from `smoothness_index`.

    Raises:
        ValueError: An index that is not positive.

    Source: Nishikawa & Suzuki 2025, Theorems 4.2, 4.4 and B.1.
    """
    if not index > 0:
        raise ValueError(f"`index` must be positive, got {index!r}.")
    return 1.0 if math.isinf(index) else 2 * index / (2 * index + 1)
