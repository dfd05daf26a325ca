"""Kernel, dense form and transfer function of diagonal-plus-low-rank (DPLR) state space models.

Dimensions: `B` batch, `L` length, `D` channels, `N` real states, `H = N // 2` stored conjugate pairs, `S`
frequencies.

`A = diag(λ) - p p^*` on the space completed by the conjugates, of size `N`.
"""

import torch

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.lti.diagonal import check_system, diagonal_transfer, working_dtype
from hf_ssm.ops.lti.discretize import bilinear_dense, zoh_dense
from hf_ssm.ops.lti.krylov import dense_kernel

__all__ = ["dplr_dense", "dplr_kernel", "dplr_kernel_reference", "dplr_real", "dplr_transfer"]


def dplr_dense(
    lam: torch.Tensor, p: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The DPLR system as dense matrices on the conjugate-completed space.

    Args:
        lam: Diagonal part `(D, H)`, one of each conjugate pair.
        p: Low-rank factor `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`; `y = 2 Re Σ c x` over the stored half.

    Returns:
        `A = diag(λ) - p p^*` `(D, N, N)`, `B` `(D, N)` and `C` `(D, N)`, complex, the stored half first.
    """
    lam, p, b, c = (torch.cat([t, t.conj()], dim=-1) for t in (lam, p, b, c))
    return torch.diag_embed(lam) - p.unsqueeze(-1) * p.conj().unsqueeze(-2), b, c


def dplr_real(
    lam: torch.Tensor, p: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same system in real coordinates, `(Re x, Im x)` of the stored half: a quarter of the arithmetic."""
    re, im = torch.diag_embed(lam.real), torch.diag_embed(lam.imag)
    diagonal = torch.cat([torch.cat([re, -im], dim=-1), torch.cat([im, re], dim=-1)], dim=-2)
    p_real, b_real = (torch.cat([t.real, t.imag], dim=-1) for t in (p, b))
    a = diagonal - 2 * p_real.unsqueeze(-1) * p_real.unsqueeze(-2)
    return a, b_real, 2 * torch.cat([c.real, -c.imag], dim=-1)


def dplr_kernel(
    lam: torch.Tensor,
    p: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "bilinear",
) -> torch.Tensor:
    """Kernel of a DPLR system, `k[l] = C A_bar^l B_bar` with `A = diag(λ) - p p^*`.

    The two-level product of `dense_kernel`: rows `C A_bar^(iM)` times columns `A_bar^j B_bar`, computed in float64 and
    rounded once; `O(N^3 log L + N^2 √L + N L)` per channel. There is no aliasing error.

    S4's own algorithm, four Woodbury-corrected Cauchy sums at the roots of unity, is as accurate if `C (I - A_bar^L)`
    is computed in float64, but slower: for 256 channels with `N = 64`, the sums of its forward alone take as long as
    the whole forward here at `L = 1024`, and ten times as long at `L = 16384` (complex64, one thread), without the
    powers for `A_bar^L`.

    Args:
        lam: Diagonal part `(D, H)`, complex, real part negative (then every `A` of this form is stable).
        p: Low-rank factor `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        length: Number of taps `L`.
        discretization: `"bilinear"` (S4's rule) or `"zoh"`.

    Returns:
        `(D, L)`, float64 if one of lam, p, b, c is complex128, else float32.

    Raises:
        ValueError: Shapes or types do not fit, unknown discretization, or `length < 1`.

    Source: Gu, Goel & Ré 2022 (S4), Section 3, for the system; the algorithm is original.
    """
    check_system(length, discretization, dt, lam=lam, p=p, b=b, c=c)
    kernel: torch.Tensor = _DPLR_KERNEL(lam, p, b, c, dt, length, discretization)
    return kernel.to(working_dtype(lam, p, b, c))


def _dplr_kernel_torch(
    lam: torch.Tensor,
    p: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str,
) -> torch.Tensor:
    a, b_real, c_real = dplr_real(*(t.to(torch.complex128) for t in (lam, p, b, c)))
    discretized = (zoh_dense if discretization == "zoh" else bilinear_dense)(a, b_real, dt.to(torch.float64))
    return dense_kernel(*discretized, c_real, length)


def dplr_kernel_reference(
    lam: torch.Tensor,
    p: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "bilinear",
) -> torch.Tensor:
    """`dplr_kernel` by the recurrence of the complex dense system; same arguments."""
    check_system(length, discretization, dt, lam=lam, p=p, b=b, c=c)
    a, b_full, c_full = dplr_dense(lam, p, b, c)
    a_bar, state = (zoh_dense if discretization == "zoh" else bilinear_dense)(a, b_full, dt)
    taps = []
    for _ in range(length):
        taps.append((c_full * state).sum(-1).real)
        state = (a_bar @ state.unsqueeze(-1)).squeeze(-1)
    return torch.stack(taps, dim=-1)


_DPLR_KERNEL = Operation(
    torch=_dplr_kernel_torch,
    reference=dplr_kernel_reference,
)


def dplr_transfer(
    s: torch.Tensor, lam: torch.Tensor, p: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> torch.Tensor:
    """Transfer function of a DPLR system, `G(s) = C (s - A)^{-1} B`, by the Woodbury identity.

    With `⟨x, y⟩` the transfer function of a diagonal system with output weights x and input weights y, it is
    `⟨c, b⟩ - ⟨c, p⟩ ⟨p*, b⟩ / (1 + ⟨p*, p⟩)`.

    Args:
        s: Complex frequencies `(S,)` or `(D, S)`.
        lam: Diagonal part `(D, H)`.
        p: Low-rank factor `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.

    Returns:
        `(D, S)`, complex.

    Source: Gu, Goel & Ré 2022 (S4), Appendix C.3.
    """
    g_cb, g_cp = diagonal_transfer(s, lam, b, c), diagonal_transfer(s, lam, p, c)
    g_pb, g_pp = diagonal_transfer(s, lam, b, p.conj()), diagonal_transfer(s, lam, p, p.conj())
    return g_cb - g_cp * g_pb / (1 + g_pp)
