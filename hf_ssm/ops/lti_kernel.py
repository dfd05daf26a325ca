"""Kernels, recurrences and transfer functions of linear time-invariant state space models.

Dimensions: `B` batch, `L` length, `D` channels, `N` real states, `H = N // 2` stored conjugate pairs, `S`
frequencies.

A diagonal system stores one eigenvalue of each conjugate pair; the real kernel is `k[l] = 2 Re Σ_n c b_bar
a_bar^l`. A diagonal-plus-low-rank (DPLR) system has `A = diag(λ) - p p^*` on the space completed by the
conjugates, of size `N`.
"""

import math

import torch

from hf_ssm.ops.diagonal_kernel import exponential_sums
from hf_ssm.ops.discretize import bilinear, bilinear_dense, check_discretization, zoh, zoh_dense
from hf_ssm.ops.dplr_kernel import bilinear_start, dense_start, krylov_products
from hf_ssm.ops.kernels import reference


def _check(length: int, discretization: str, dt: torch.Tensor, **states: torch.Tensor) -> None:
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length!r}")
    check_discretization(discretization)
    shapes = {name: tuple(value.shape) for name, value in states.items()}
    first = next(iter(states.values()))
    if first.dim() != 2 or len(set(shapes.values())) != 1:
        raise ValueError(f"{', '.join(shapes)} must share one shape (channels, state_size // 2), got {shapes}")
    for name, value in states.items():
        if not value.is_complex():
            raise ValueError(f"{name} must be complex, got {value.dtype}; torch.view_as_complex makes it so")
    if dt.shape != first.shape[:1]:
        raise ValueError(f"dt must have shape (channels,) = ({first.shape[0]},), got {tuple(dt.shape)}")


def _real_dtype(*tensors: torch.Tensor) -> torch.dtype:
    return torch.float64 if any(t.dtype == torch.complex128 for t in tensors) else torch.float32


def diagonal_kernel(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "zoh",
) -> torch.Tensor:
    """Kernel of a diagonal system, `k[l] = 2 Re Σ_n c_n b_bar_n a_bar_n^l`.

    With `l = i M + j` and `M` near the root of the length, `a_bar^l` is the product of two short tables, so
    that the whole kernel is one real matrix product per channel: see `ops.diagonal_kernel`. The tables are made in
    complex128 and rounded once to the working precision: the phase of `a_bar^l` stays right at any length. Can be
    differentiated once.

    Args:
        a: Eigenvalues `(D, H)`, complex, real part negative.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        length: Number of taps `L`.
        discretization: `"zoh"` or `"bilinear"`.

    Returns:
        `(D, L)`, float64 if one of a, b, c is complex128, else float32.

    Raises:
        ValueError: Shapes or types do not fit, unknown discretization, or `length < 1`.

    Source: Gu et al. 2022 (S4D), eq. (4) and Section 3.2 (there as a Vandermonde product).
    """
    if reference():
        return diagonal_kernel_reference(a, b, c, dt, length, discretization).to(_real_dtype(a, b, c))
    _check(length, discretization, dt, a=a, b=b, c=c)
    dtype = _real_dtype(a, b, c)
    a, b, c = (t.to(torch.complex128) for t in (a, b, c))
    step = dt.to(torch.float64).unsqueeze(-1)
    if discretization == "zoh":
        _, b_bar = zoh(a, b, step)
        log_base = a * step
    else:
        a_bar, b_bar = bilinear(a, b, step)
        # a dt = -2 gives a_bar = 0, whose logarithm is infinite; 1e-30 has the same powers and the same
        # gradient.
        log_base = torch.log(torch.where(a_bar.abs() < 1e-30, a_bar + 1e-30, a_bar))
    return exponential_sums(log_base, 2 * c * b_bar, length, dtype)


def diagonal_kernel_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "zoh",
) -> torch.Tensor:
    """`diagonal_kernel` by running powers of `a_bar`; same arguments."""
    _check(length, discretization, dt, a=a, b=b, c=c)
    a_bar, power = (zoh if discretization == "zoh" else bilinear)(a, b, dt.unsqueeze(-1))
    taps = []
    for _ in range(length):
        taps.append(2 * (c * power).sum(-1).real)
        power = power * a_bar
    return torch.stack(taps, dim=-1)


def diagonal_step(
    u: torch.Tensor, state: torch.Tensor, a_bar: torch.Tensor, b_bar: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the recurrence `x <- a_bar x + b_bar u`, `y = 2 Re Σ_n c_n x_n`, with the new state.

    Args:
        u: Input `(B, D)`, real.
        state: `(B, D, H)`, complex; zeros at the start of a sequence.
        a_bar: `(D, H)` from `zoh` or `bilinear`.
        b_bar: `(D, H)`.
        c: `(D, H)`.

    Returns:
        `y` `(B, D)` and the new state `(B, D, H)`.
    """
    state = a_bar * state + b_bar * u.unsqueeze(-1)
    return 2 * (c * state).sum(-1).real, state


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


def _dplr_real(
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

    The two-level product of `ops.dplr_kernel`: rows `C A_bar^(iM)` times columns `A_bar^j B_bar`, made in float64 and
    rounded once; `O(N^3 log L + N^2 √L + N L)` per channel. The Woodbury identity saves the solve and the first four
    squarings of the bilinear rule. It has no aliasing error. Can be differentiated once.

    S4's own way, four Woodbury-corrected Cauchy sums at the roots of unity, is as accurate if `C (I - A_bar^L)` is made
    in float64, but slower: for 256 channels with `N = 64`, the sums of its forward alone took as long as the whole
    forward here at `L = 1024`, and ten times as long at `L = 16384` (complex64, one thread); the powers for `A_bar^L`
    come on top.

    Args:
        lam: Diagonal part `(D, H)`, complex, real part negative (then every `A` of this form is stable).
        p: Low-rank factor `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        length: Number of taps `L`.
        discretization: `"bilinear"` (S4's own) or `"zoh"`.

    Returns:
        `(D, L)`, float64 if one of lam, p, b, c is complex128, else float32.

    Raises:
        ValueError: Shapes or types do not fit, unknown discretization, or `length < 1`.

    Source: Gu, Goel & Ré 2022 (S4), Section 3, for the system; the algorithm is ours.
    """
    if reference():
        return dplr_kernel_reference(lam, p, b, c, dt, length, discretization).to(_real_dtype(lam, p, b, c))
    _check(length, discretization, dt, lam=lam, p=p, b=b, c=c)
    dtype = _real_dtype(lam, p, b, c)
    lam, p, b, c = (t.to(torch.complex128) for t in (lam, p, b, c))
    step = dt.to(torch.float64)
    if discretization == "zoh":
        a_real, b_real, c_real = _dplr_real(lam, p, b, c)
        start = dense_start(*zoh_dense(a_real, b_real, step))
    else:
        start, c_real = bilinear_start(lam, p, b, step, length), 2 * torch.cat([c.real, -c.imag], dim=-1)
    return krylov_products(start, c_real, length, dtype)


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
    _check(length, discretization, dt, lam=lam, p=p, b=b, c=c)
    a, b_full, c_full = dplr_dense(lam, p, b, c)
    a_bar, state = (zoh_dense if discretization == "zoh" else bilinear_dense)(a, b_full, dt)
    taps = []
    for _ in range(length):
        taps.append((c_full * state).sum(-1).real)
        state = (a_bar @ state.unsqueeze(-1)).squeeze(-1)
    return torch.stack(taps, dim=-1)


def dplr_step(
    u: torch.Tensor, state: torch.Tensor, a_bar: torch.Tensor, b_bar: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the dense recurrence `x <- A_bar x + B_bar u`, `y = Re C x`, with the new state.

    Args:
        u: Input `(B, D)`, real.
        state: `(B, D, N)`, complex (or real with real matrices); zeros at the start of a sequence.
        a_bar: `(D, N, N)` from `zoh_dense` or `bilinear_dense` of `dplr_dense`.
        b_bar: `(D, N)`.
        c: `(D, N)` from `dplr_dense`.

    Returns:
        `y` `(B, D)` and the new state `(B, D, N)`.
    """
    state = torch.einsum("dnm,bdm->bdn", a_bar, state) + b_bar * u.unsqueeze(-1)
    return (c * state).sum(-1).real, state


def diagonal_transfer(s: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Transfer function of a diagonal system, `G(s) = Σ_n c b / (s - a) + conj(c b) / (s - conj(a))`.

    Complex, with both halves of every conjugate pair: the Laplace transform of the real impulse response. (Yu
    et al. take the real part of it on the imaginary axis, their eq. (3).)

    Args:
        s: Complex frequencies `(S,)` or per channel `(D, S)`, in radians per unit of time times i.
        a: Eigenvalues `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.

    Returns:
        `(D, S)`, complex.
    """
    s, cb = s.unsqueeze(-1), (c * b).unsqueeze(1)
    a = a.unsqueeze(1)
    return (cb / (s - a) + cb.conj() / (s - a.conj())).sum(-1)


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


def _check_window(window: int) -> None:
    if window < 1:
        raise ValueError(f"window must be a positive number of positions, got {window!r}")


def sinusoid_kernel(
    c1: torch.Tensor, c2: torch.Tensor, a1: torch.Tensor, a2: torch.Tensor, window: int, length: int
) -> torch.Tensor:
    """Two-frequency filter `k[t] = c1 cos(2π a1 t / U) + c2 sin(2π a2 t / U)` for `t < U`, 0 from `t = U` on.

    Args:
        c1: Amplitude of the cosine `(D,)`.
        c2: Amplitude of the sine `(D,)`.
        a1: Frequency of the cosine in turns per window `(D,)`.
        a2: Frequency of the sine in turns per window `(D,)`.
        window: `U`, in positions.
        length: Number of taps `L`.

    Returns:
        `(D, L)`.

    Raises:
        ValueError: `window` or `length` below 1.

    Source: Nishikawa & Suzuki 2025, Section 3 (ii); the convolution sums over lags 0 to U - 1 (their proof of
    Thm 4.2).
    """
    _check_window(window)
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length!r}")
    t = torch.arange(min(window, length), device=a1.device, dtype=a1.dtype)
    phase = 2 * math.pi / window * t
    taps = c1.unsqueeze(-1) * torch.cos(a1.unsqueeze(-1) * phase) + c2.unsqueeze(-1) * torch.sin(
        a2.unsqueeze(-1) * phase
    )
    return torch.nn.functional.pad(taps, (0, length - taps.shape[-1]))


def sinusoid_ssm(
    c1: torch.Tensor, c2: torch.Tensor, a1: torch.Tensor, a2: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The filter of `sinusoid_kernel` as a discrete state space model of two rotations.

    Its impulse response `C A_bar^t B_bar` equals the kernel for `t < window` and goes on without end after
    it.

    Args:
        c1: Amplitude of the cosine `(D,)`.
        c2: Amplitude of the sine `(D,)`.
        a1: Frequency of the cosine in turns per window `(D,)`.
        a2: Frequency of the sine in turns per window `(D,)`.
        window: `U`, in positions.

    Returns:
        `A_bar` `(D, 4, 4)`, `B_bar` `(D, 4)` and `C` `(D, 4)`, real.

    Raises:
        ValueError: `window` below 1.

    Source: Nishikawa & Suzuki 2025, Appendix D.
    """
    _check_window(window)
    rotations = []
    for a in (a1, a2):
        cos, sin = torch.cos(2 * math.pi / window * a), torch.sin(2 * math.pi / window * a)
        rotations.append(torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2)))
    empty = torch.zeros_like(rotations[0])
    a_bar = torch.cat([torch.cat([rotations[0], empty], dim=-1), torch.cat([empty, rotations[1]], dim=-1)], dim=-2)
    zero, one = torch.zeros_like(c1), torch.ones_like(c1)
    return a_bar, torch.stack([one, zero, one, zero], dim=-1), torch.stack([c1, zero, zero, c2], dim=-1)
