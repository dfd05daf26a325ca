"""Normal state matrices, which are diagonal in an orthonormal basis, and the quantities of them that the bounds need.

Legend: `d` channels, `N` states per channel, `B` batch, `L` length.

A matrix is normal if it commutes with its conjugate transpose, or, equivalently, is U Λ U* with a unitary U. Then
‖A‖₂ = max |λ|, and λ(A_sym) = Re λ(A), so that the spectral abscissa determines the contraction:
‖e^(tA)‖₂ = e^(t max Re λ). Diagonal matrices are normal, and so are skew-symmetric matrices, rotations and the real
form of complex states in conjugate pairs. HiPPO-LegS is not normal.

Without normality, the spectral abscissa does not bound a single step: ‖e^(tA)‖₂ <= e^(t ω) holds with the numerical
abscissa ω = λ_max(A_sym), which may be positive for a stable matrix.

Source: Honarpisheh et al. 2025, Section 4.2 and Lemma B.1. The constructions are ours.
"""

import math

import torch
from torch import Tensor

__all__ = [
    "normal_attention",
    "normality_defect",
    "numerical_abscissa",
    "real_matrix_of_pairs",
    "unitary_diagonalization",
]

_TOLERANCE = 1e-8
# Weights of the skew part in the Hermitian matrix that is diagonalised: the first that separates eigenvalues serves.
_MIXES = ((1 + math.sqrt(5)) / 2, math.sqrt(2) / 2, math.e)


def normality_defect(A: Tensor) -> Tensor:
    """‖A A* - A* A‖_F / ‖A‖_F² of each matrix `(..., N, N)`: 0 for a normal one, at most √2; 0 for a zero matrix."""
    A = _double(A)
    defect = torch.linalg.matrix_norm(A @ A.mH - A.mH @ A)
    return defect / torch.linalg.matrix_norm(A).square().clamp(min=torch.finfo(torch.float64).tiny)


def numerical_abscissa(A: Tensor) -> Tensor:
    """λ_max((A + A*) / 2) of each matrix `(..., N, N)`: the smallest ω with ‖e^(tA)‖₂ <= e^(tω) for all t >= 0.

    At least the spectral abscissa, and equal to it for a normal matrix.

    Source: Honarpisheh et al. 2025, Section 4.2 (A_sym); Dahlquist 1958 (logarithmic norms).
    """
    A = _double(A)
    return torch.linalg.eigvalsh((A + A.mH) / 2)[..., -1]


def unitary_diagonalization(A: Tensor, tolerance: float = _TOLERANCE) -> tuple[Tensor, Tensor]:
    """Λ and a unitary U with A = U diag(Λ) U*, for normal matrices.

    The Hermitian and the skew-Hermitian part of a normal matrix commute and have the same eigenvectors, which are those
    of a real combination of the two parts. Repeated eigenvalues also have orthonormal eigenvectors, which
    `torch.linalg.eig` does not guarantee.

    Args:
        A: `(..., N, N)`, real or complex.
        tolerance: Largest defect, and largest error of U diag(Λ) U* relative to ‖A‖_F, that count as rounding.

    Returns:
        Eigenvalues `(..., N)` and eigenvectors `(..., N, N)`, complex128.

    Raises:
        ValueError: A matrix that is not normal.
    """
    matrix = _double(A).to(torch.complex128)
    defect = normality_defect(matrix)
    if not bool((defect <= tolerance).all()):
        raise ValueError(
            f"`A` is not normal: ‖AA* - A*A‖ is {defect.max().item():.3g} of ‖A‖² (tolerance {tolerance:g}), so no "
            "unitary matrix diagonalises it, and the theorems do not hold; `numerical_abscissa` bounds its contraction."
        )
    hermitian, skew = (matrix + matrix.mH) / 2, (matrix - matrix.mH) / 2j
    size = torch.linalg.matrix_norm(matrix).clamp(min=torch.finfo(torch.float64).tiny)
    for mix in _MIXES:
        vectors = torch.linalg.eigh(hermitian + mix * skew)[1]
        rotated = vectors.mH @ matrix @ vectors
        eigenvalues = rotated.diagonal(dim1=-2, dim2=-1)
        error = torch.linalg.matrix_norm(rotated - torch.diag_embed(eigenvalues)) / size
        if bool((error <= 10 * tolerance).all()):
            return eigenvalues, vectors
    raise ValueError(
        f"`A` could not be diagonalised within the tolerance {tolerance:g}: it is not close enough to a normal matrix."
    )


def real_matrix_of_pairs(a: Tensor) -> Tensor:
    """The real normal matrix of complex states that stand for conjugate pairs.

    Args:
        a: `(d, N/2)`, complex: one eigenvalue of each pair.

    Returns:
        `(d, N, N)` with the blocks [[Re a, -Im a], [Im a, Re a]], which acts on Re x₁, Im x₁, Re x₂, ...
    """
    a = a.to(torch.complex128)
    blocks = torch.stack([torch.stack([a.real, -a.imag], -1), torch.stack([a.imag, a.real], -1)], -2)
    matrix = a.real.new_zeros(*a.shape[:-1], a.shape[-1], 2, a.shape[-1], 2)
    n = torch.arange(a.shape[-1], device=a.device)
    matrix[..., n, :, n, :] = blocks.movedim(-3, 0)
    return matrix.flatten(-4, -3).flatten(-2)


def normal_attention(delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The attention matrix of a selective model with normal state matrices, M[t, j] = C_tᵀ e^(A Σ Δ) Δ_j B_j.

    With A = U Λ U*, it is that of a diagonal model with the rotated C_tᵀ U and U* B_j. All e^(Δ_t A) of one channel
    commute, whatever A is; a normal A bounds each of them by e^(-s_A Δ_t).

    Args:
        delta: Step sizes, `(B, L, d)` or `(B, L, 1)`.
        A: `(d, N, N)`, normal, the continuous state matrix of each channel.
        B, C: `(B, L, N)`, those of all channels.

    Returns:
        `(B, d, L, L)`, float64, lower triangular; the output depends on the current input, as in `scan_matrix`.

    Raises:
        ValueError: A matrix that is not normal.

    Source: Honarpisheh et al. 2025, eq. (20), for A that is not diagonal.
    """
    eigenvalues, vectors = unitary_diagonalization(A)
    d = delta.double().transpose(1, 2).expand(-1, len(A), -1)
    total = d.cumsum(-1)
    span = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril()
    queries = torch.einsum("btn,dnm->bdtm", C.to(vectors.dtype), vectors)
    keys = torch.einsum("bjn,dnm->bdjm", B.to(vectors.dtype), vectors.conj())
    matrix = torch.zeros((), dtype=torch.float64, device=delta.device)
    for m in range(eigenvalues.shape[-1]):
        decay = torch.exp(eigenvalues[:, m, None, None] * span)
        matrix = matrix + (queries[..., m, None] * decay * keys[..., None, :, m]).real
    return (matrix * d.unsqueeze(-2)).tril()


def _double(A: Tensor) -> Tensor:
    """`(..., N, N)` in double precision."""
    if A.dim() < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"`A` must hold square matrices, (..., N, N), got {tuple(A.shape)}.")
    return A.detach().to(torch.complex128 if A.is_complex() else torch.float64)
