"""Statistics that use labels: which features, such as powers by frequency, depend on a class or a number.

Legend: `B` rows, `K` classes, `...` features of a row, of any shape.
"""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["correlation", "f_statistic", "log_power", "shuffled_level"]

# Lower limit of a power in a logarithm, relative to the mean power.
_LEAST_POWER = 1e-12


def log_power(spectra: Tensor) -> Tensor:
    """Logarithm of periodograms without the frequency 0: nearly normal with equal variances, as the statistics assume.

    Args:
        spectra: `(B, ..., F)`, not negative, such as those of `hf_ssm.theory.spectrum.periodograms`; for symbols, the
            sum over their channels.

    Returns:
        `(B, ..., F - 1)`. Powers are at least 1e-12 of the mean power, so that constant rows have finite values.

    Raises:
        ValueError: There is no power at frequencies other than 0.
    """
    power = spectra.to(torch.float64)[..., 1:]
    mean = power.mean() if power.numel() else power.sum()
    if not bool(mean > 0):
        raise ValueError(
            "`spectra` have no power at frequencies other than 0: each row is constant, or has one position."
        )
    return power.clamp(min=_LEAST_POWER * mean).log()


def _rows_as_matrix(features: Tensor, labels: Tensor) -> Tensor:
    if features.dim() < 1 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"`labels` must have one value per row of `features`, got {tuple(labels.shape)} for "
            f"{tuple(features.shape)}."
        )
    return features.to(torch.float64).flatten(1) if features.dim() > 1 else features.to(torch.float64).unsqueeze(1)


def f_statistic(features: Tensor, labels: Tensor) -> Tensor:
    """One-way F statistic of each feature: variance between the means of K classes over the variance within classes.

        F = (Σ_k n_k (m_k - m)² / (K - 1)) / (Σ_k Σ_{i in k} (x_i - m_k)² / (B - K))

    It is about 1 for features that do not depend on the class.

    Args:
        features: `(B, ...)`.
        labels: `(B,)`, integers; the classes are the values that occur.

    Returns:
        `(...)`, float64: infinite for features that differ between classes only, 0 for constant features.

    Raises:
        ValueError: Shapes that do not match, fewer than two classes, or no more rows than classes.

    Source: Fisher 1925, analysis of variance; as scikit-learn's `f_classif`.
    """
    matrix = _rows_as_matrix(features, labels)
    classes, index = labels.unique(return_inverse=True)
    if not 1 < len(classes) < len(labels):
        raise ValueError(
            f"`labels` must have two or more classes and more rows than classes, got {len(classes)} classes for "
            f"{len(labels)} rows."
        )
    centred = matrix - matrix.mean(0)
    members = torch.nn.functional.one_hot(index, len(classes)).to(torch.float64)
    means = (members.mT @ centred) / members.sum(0).unsqueeze(-1)
    between = (members.sum(0) @ means.square()) / (len(classes) - 1)
    within = (centred - means[index]).square().sum(0) / (len(labels) - len(classes))
    return torch.where(between > 0, between / within, 0.0).reshape(features.shape[1:])


def correlation(features: Tensor, targets: Tensor) -> Tensor:
    """Pearson correlation of each feature with a number per row; 0 for constant features.

    Args:
        features: `(B, ...)`.
        targets: `(B,)`.

    Returns:
        `(...)`, float64, in [-1, 1].

    Raises:
        ValueError: Shapes that do not match, or constant targets.
    """
    matrix = _rows_as_matrix(features, targets)
    targets = targets.to(torch.float64) - targets.to(torch.float64).mean()
    if not bool(targets.square().sum() > 0):
        raise ValueError("`targets` are constant: nothing correlates with them.")
    centred = matrix - matrix.mean(0)
    norms = centred.square().sum(0).sqrt() * targets.square().sum().sqrt()
    return torch.where(norms > 0, targets @ centred / norms, 0.0).reshape(features.shape[1:])


def shuffled_level(
    statistic: Callable[[Tensor, Tensor], Tensor],
    features: Tensor,
    labels: Tensor,
    *,
    shuffles: int = 99,
    share: float = 0.95,
    seed: int = 0,
) -> float:
    """The level that the largest |statistic| over all features stays below in a share of random orders of the labels.

    A feature above the level depends on the labels, with an error of 1 - share for all features together, whatever
    their distribution and their dependence.

    Args:
        statistic: `f_statistic` or `correlation`.
        features: `(B, ...)`.
        labels: `(B,)`.
        shuffles: Number of random orders.
        share: In (0, 1).
        seed: Seed of the random orders, which are drawn on the CPU.

    Source: the maximum statistic of Westfall & Young 1993.
    """
    generator = torch.Generator().manual_seed(seed)
    largest = []
    for _ in range(shuffles):
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        largest.append(statistic(features, labels[order]).abs().max())
    return torch.stack(largest).quantile(share, interpolation="higher").item()
