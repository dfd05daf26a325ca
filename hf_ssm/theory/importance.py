"""Importance of tokens: similarity of features, selection of tokens, and rates of estimation.

Legend: `...` any leading shape, `L` positions, `F` features of a position, `C` numbers of a position. The last position
is the one whose output is predicted (position 0 of the paper).

Source: Nishikawa & Suzuki 2025 (arXiv 2405.19036, version 1).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "estimation_exponent",
    "importance_gap",
    "select_by_importance",
    "selection_error_bound",
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


def importance_gap(importance: Tensor, beta: float = 0.0) -> Tensor:
    """The largest c for which the importances are well-separated: μ_(i) >= μ_(i+1) + c i^{-β} for i = 1, 2, ...

    μ_(1) >= μ_(2) >= ... are the sorted importances. 0 means that two positions tie.

    Args:
        importance: `(..., L)` with L at least 2.
        beta: β, not negative.

    Returns:
        `(...)`.

    Raises:
        ValueError: Fewer than two positions, or a negative `beta`.

    Source: Nishikawa & Suzuki 2025, Section 2.2 (below Definition 2.4).
    """
    if importance.dim() < 1 or importance.shape[-1] < 2:
        raise ValueError(
            f"`importance` must have shape (..., L) with at least 2 positions, got {tuple(importance.shape)}."
        )
    if not 0 <= beta < math.inf:
        raise ValueError(f"`beta` must be finite and not negative, got {beta!r}.")
    ordered = importance.sort(-1, descending=True).values
    differences = ordered[..., :-1] - ordered[..., 1:]
    ranks = torch.arange(1, importance.shape[-1], dtype=importance.dtype, device=importance.device)
    return (differences * ranks**beta).amin(-1)


def select_by_importance(values: Tensor, importance: Tensor, count: int, sharpness: float = math.inf) -> Tensor:
    """The values of the `count` most important positions, most important first: the map Π of a piecewise function.

    With a finite sharpness χ the m-th value is Σ_j x_j w_j with w ∝ exp(χ μ_j), over the positions that are not among
    the m - 1 most important ones. The paper's network approximates each of these sums by a gated convolution. The error
    of the network is therefore the error of this approximation plus `selection_error_bound`.

    Args:
        values: x, `(..., L, C)`.
        importance: μ, `(..., L)`.
        count: Positions to select, 1 to L.
        sharpness: χ, positive; infinity selects exactly.

    Returns:
        `(..., count, C)`.

    Raises:
        ValueError: Shapes that do not match, or arguments out of range.

    Source: Nishikawa & Suzuki 2025, Definition 2.3; the sums: Appendix I, "Picking up the important features".
    """
    length = importance.shape[-1] if importance.dim() else 0
    if values.shape[:-1] != importance.shape or not 1 <= count <= length:
        raise ValueError(
            f"`values` must have shape (..., L, C), `importance` (..., L), and `count` must be from 1 to L: got "
            f"{tuple(values.shape)}, {tuple(importance.shape)} and {count!r}."
        )
    if not sharpness > 0:
        raise ValueError(f"`sharpness` must be positive, got {sharpness!r}.")
    order = importance.argsort(dim=-1, descending=True, stable=True)
    if math.isinf(sharpness):
        return values.gather(-2, order[..., :count, None].expand(*order.shape[:-1], count, values.shape[-1]))
    rank = order.argsort(-1)
    used = rank[..., None, :] < torch.arange(count, device=rank.device)[:, None]
    scores = (sharpness * importance)[..., None, :].masked_fill(used, -math.inf)
    return scores.softmax(-1) @ values


def selection_error_bound(gap: float, length: int, sharpness: float, largest: float = 1.0) -> float:
    """Bound on the error of `select_by_importance` with a finite sharpness: 2 L exp(-χ δ) max |x|.

    Args:
        gap: δ, the smallest difference between the importance of a selected position and that of any less important
            one.
        length: L.
        sharpness: χ.
        largest: Largest absolute value.

    Source: Lemma C.1 of Takakura & Suzuki 2023, as Lemma G.1 of Nishikawa & Suzuki 2025.
    """
    return 2 * length * math.exp(-sharpness * gap) * largest


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
