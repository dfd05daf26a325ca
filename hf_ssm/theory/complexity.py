"""The data-dependent complexity τ of a linear time-invariant state space model, and what it is compared with.

Legend: `B` batch, `L` length, `D` channels, `N` states, `S` models of a set. "By lag" means by distance to the last
position, which is where the model is read.

Source: Liu & Li 2024.
"""

import math

import torch
from torch import Tensor

from hf_ssm.ops.lti.diagonal import diagonal_kernel
from hf_ssm.ops.lti.discretize import bilinear, zoh

__all__ = [
    "filter_norm",
    "generalization_measure",
    "norm_bound",
    "output_bound",
    "pad_moments",
    "padding_terms",
    "psi",
    "resampled_kernel",
    "rescaling_factor",
    "selective_kernel",
    "selective_kernel_reference",
    "tau",
    "tau_reference",
]


def _terms(kernel: Tensor, mean: Tensor | None, variance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Σ_ℓ |k_ℓ| √K_ℓ and |Σ_ℓ k_ℓ μ_ℓ| of kernels `(..., D, L)`, both `(..., D)`."""
    if variance is None:
        spread = kernel.abs().sum(dim=-1)
    else:
        # The square root has an infinite slope at 0, where a constant input contributes nothing.
        safe = torch.where(variance > 0, variance, 1.0)
        deviation = torch.where(variance > 0, safe.sqrt(), 0.0)
        spread = torch.linalg.vecdot(kernel.abs(), deviation.T)
    if mean is None:
        return spread, torch.zeros_like(spread)
    return spread, torch.linalg.vecdot(kernel, mean.T).abs()


def tau(kernel: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
    """τ of each channel: the size of the output at the last position, given the inputs' moments.

    τ^(1/2) = Σ_ℓ |k_ℓ| √K_ℓ + |Σ_ℓ k_ℓ μ_ℓ|, where ℓ is the distance to the last position.

    Args:
        kernel: `(D, L)`, the convolution kernel; a feed-through term belongs to lag 0.
        mean: `(L, D)`, μ by lag; `None` for 0.
        variance: `(L, D)`, K likewise; `None` for 1 (then τ is the squared ℓ1 norm of the kernel).

    Returns:
        `(D,)`; the mean over channels is the τ of a layer.

    Source: Liu & Li 2024, eq. (6) and Algorithm 1, lines 8 and 9.
    """
    spread, centre = _terms(kernel, mean, variance)
    return (spread + centre).square()


def psi(kernels: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
    """ψ_Θ of each channel for a set Θ of models, of the generalisation bound (ψ_Θ + 1)² O(log^{3/2}(Tn/δ) / √n).

    ψ_Θ = sup_θ Σ_ℓ |k_ℓ| √K_ℓ + sup_θ |Σ_ℓ k_ℓ μ_ℓ|: each term has its own supremum, so ψ_Θ is at least, and may be
    more than, the largest ψ of one model. For one model it is √τ. The bound hides a constant that depends on the data,
    so ψ compares models and data, and promises no number.

    Args:
        kernels: `(S, D, L)`, one kernel for each model of the set.
        mean, variance: As in `tau`.

    Returns:
        `(D,)`.

    Raises:
        ValueError: Not three dimensions, or an empty set.

    Source: Liu & Li 2024, Theorem 4.2.
    """
    if kernels.dim() != 3 or len(kernels) == 0:
        raise ValueError(
            f"`kernels` must have shape (models >= 1, channels, length), got {tuple(kernels.shape)}: "
            "give one kernel as `kernel.unsqueeze(0)`."
        )
    spread, centre = _terms(kernels, mean, variance)
    return spread.amax(dim=0) + centre.amax(dim=0)


def generalization_measure(
    kernel: Tensor, num_sequences: int, mean: Tensor | None = None, variance: Tensor | None = None
) -> Tensor:
    """ψ² / √n of each channel, for the set that holds one trained model alone.

    Args:
        kernel: `(D, L)`.
        num_sequences: n, the number of training sequences.
        mean, variance: As in `tau`: of the process where it is known, else of the training sequences.

    Returns:
        `(D,)`.

    Raises:
        ValueError: `num_sequences` below 1.

    Source: Liu & Li 2024, Theorem 4.2 and Table 1.
    """
    return tau(kernel, mean, variance) / math.sqrt(_at_least_one("num_sequences", num_sequences))


def _at_least_one(name: str, number: int) -> int:
    if number < 1:
        raise ValueError(f"`{name}` must be at least 1, got {number}.")
    return number


def rescaling_factor(tau: Tensor) -> Tensor:
    """1/√τ: what C is multiplied by, and the feed-through D too where there is one, so that τ becomes 1.

    τ is quadratic in (C, D), so nothing else will do. (For the case with feed-through the paper prints C √τ; it divides
    D by √τ in the same sentence and states that τ is 1 afterwards, which needs C / √τ.)

    Args:
        tau: τ of a layer (or of several, any shape).

    Returns:
        As `tau`.

    Raises:
        ValueError: A τ that is 0, negative, NaN or infinite.

    Source: Liu & Li 2024, eq. (7) and Section 4.2.
    """
    bad = tau[~(torch.isfinite(tau) & (tau > 0))]
    if bad.numel():
        raise ValueError(
            f"`tau` must be positive and finite, got {bad[0].item()}. 0 comes from an input that is constant zero (or "
            "a kernel that is); NaN and infinity from NaN or huge values in the batch or the weights."
        )
    return tau.rsqrt()


def output_bound(num_points: int, sub_gaussian: float = 1.0, hoelder_constant: float = 0.0) -> float:
    """A bound of E|y| at the last position for a channel with τ = 1, whatever its kernel and the order of its inputs.

    E|y| ≤ 1 + H + σ √(2 log 2N) + σ / √(2 log 2N). The expected supremum of the normalised input (x - μ)/√K enters the
    proof; for a channel whose τ is not 1 the bound is √τ times as large.

    Args:
        num_points: N. For a sequence, its length; no continuity is needed then. For a process on [0, T], ⌈T⌉ + 1.
        sub_gaussian: σ with P(|x - μ|/√K ≥ u) ≤ 2 exp(-u²/2σ²) at each position; 1 for Gaussian inputs.
        hoelder_constant: H, the factor of the Hölder condition on the normalised process; 0 for a sequence.

    Raises:
        ValueError: `num_points` below 1, or a negative σ or H.

    Source: Liu & Li 2024, Proposition 4.3, with the constants of its proof in Appendix F.
    """
    for name, value in (("sub_gaussian", sub_gaussian), ("hoelder_constant", hoelder_constant)):
        if not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be finite and not negative, got {value}.")
    root = math.sqrt(2 * math.log(2 * _at_least_one("num_points", num_points)))
    return 1 + hoelder_constant + sub_gaussian * (root + 1 / root)


def pad_moments(mean: Tensor, variance: Tensor, left: int = 0, right: int = 0) -> tuple[Tensor, Tensor]:
    """Moments by lag of the same inputs with zeros before (`left`) and after (`right`) them.

    Args:
        mean, variance: `(L, D)`, by lag.
        left, right: Numbers of zeros.

    Returns:
        Mean and variance, both `(right + L + left, D)`: zeros at the end of a sequence have the smallest lags.

    Raises:
        ValueError: A negative number of zeros.
    """
    if min(left, right) < 0:
        raise ValueError(f"`left` and `right` must not be negative, got {left} and {right}.")
    pad = (0, 0, right, left)
    return torch.nn.functional.pad(mean, pad), torch.nn.functional.pad(variance, pad)


def padding_terms(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    dt: Tensor,
    mean: Tensor,
    variance: Tensor,
    padding: int,
    discretization: str = "zoh",
) -> tuple[Tensor, Tensor]:
    """The key term 1 + ψ of the bound when the inputs get zeros on the left, and when they get them on the right.

    Zeros on the left change nothing. After `padding` zeros on the right, C acts as C Ā^padding (e^{AT} in continuous
    time), so that ψ decays and the key term tends to 1. Norms of the inputs cannot tell the one from the other. (A
    feed-through, which is not in these models, would meet a zero on the right.)

    Args:
        a, b, c: `(D, N / 2)`, complex, one of each conjugate pair: see `ops.lti_kernel.diagonal_kernel`.
        dt: `(D,)`.
        mean, variance: `(L, D)`, moments of the inputs without zeros, by lag.
        padding: Number of zeros.
        discretization: `"zoh"` or `"bilinear"`.

    Returns:
        Left and right, both `(D,)`.

    Raises:
        ValueError: A negative `padding`, or what `diagonal_kernel` raises.

    Source: Liu & Li 2024, eqs. (4) and (5).
    """
    if padding < 0:
        raise ValueError(f"`padding` must not be negative, got {padding}.")
    length = len(mean)
    kernel = diagonal_kernel(a, b, c, dt, length, discretization)
    # In double precision: a rounded phase would be multiplied by the number of zeros.
    wide = torch.complex128
    a_bar, _ = (zoh if discretization == "zoh" else bilinear)(a.to(wide), b.to(wide), dt.double().unsqueeze(-1))
    behind = diagonal_kernel(a, b, (c * a_bar**padding).to(c.dtype), dt, length, discretization)
    left, right = (tau(k, mean.to(k), variance.to(k)).sqrt() for k in (kernel, behind))
    return 1 + left, 1 + right


def resampled_kernel(kernel: Tensor, factor: int = 2, *, hold: bool = True) -> Tensor:
    """The kernel for inputs of which only every `factor`-th is kept (the last one, and backwards from there).

    With `hold` (zero-order hold with the step `factor` · Δ): k'_m = k_{rm} + ... + k_{rm+r-1}. It is the kernel of the
    same A, B and C with the longer step, exactly. The output is unchanged, exactly, for inputs that are constant over
    each block of r, and up to O(Δ) for smooth ones. τ is unchanged if besides no block holds taps of both signs, and
    else can only fall, to its old value as Δ → 0.

    Without `hold` (the paper's rule, C ↦ r C): k'_m = r k_{rm}, which agrees with the above as Δ → 0, with a relative
    error O(|A| r Δ).

    Args:
        kernel: `(..., L)`, at the full rate.
        factor: r; 2 halves the sampling rate.
        hold: Which of the two.

    Returns:
        `(..., ⌈L / r⌉)`.

    Raises:
        ValueError: `factor` below 1.

    Source: Liu & Li 2024, Section 4.1 (zero-shot transferability).
    """
    _at_least_one("factor", factor)
    blocks = torch.nn.functional.pad(kernel, (0, -kernel.shape[-1] % factor)).unflatten(-1, (-1, factor))
    return blocks.sum(dim=-1) if hold else factor * blocks[..., 0]


def norm_bound(a: Tensor, b: Tensor, c: Tensor, inputs: Tensor, order: int = 2) -> Tensor:
    """‖x‖ ‖B‖ ‖C‖ ‖A‖ / √n of each channel: how earlier bounds for recurrent networks grow, to compare ψ² / √n with.

    They separate the norm of the data from those of the model, so they see no temporal structure: zeros on either side
    of the inputs leave them as they are. Logarithms and constants are left out, as in the paper.

    Args:
        a: State matrix: `(D, N, N)`, or its diagonal `(D, N)`. A complex diagonal holds one of each conjugate pair and
            stands for both, as do b and c then. The paper writes the continuous A, B, C; for the bounds as they are
            proved for recurrent networks, give the discretised ones.
        b: `(D, N)`, a column.
        c: `(D, N)`, a row.
        inputs: `(n, L, D)`, the training sequences; ‖x‖ is the largest Euclidean norm among them.
        order: The matrix norms: 2 (default) the spectral norm (Chen et al.), 1 the largest column sum (Tu et al.).

    Returns:
        `(D,)`.

    Raises:
        ValueError: Another order, or no sequence.

    Source: Liu & Li 2024, Section 4.1, which quotes Chen et al. 2019 and Tu et al. 2019.
    """
    if order not in (1, 2):
        raise ValueError(f"`order` must be 1 or 2, got {order!r}.")
    num_sequences = _at_least_one("number of `inputs`", len(inputs))
    is_dense = a.dim() == 3
    copies = 2 if a.is_complex() and not is_dense else 1
    size_a = torch.linalg.matrix_norm(a, order) if is_dense else a.abs().amax(dim=-1)
    size_b = torch.linalg.vector_norm(b, order, dim=-1) * copies ** (1 / order)
    # A row has one entry in each column.
    size_c = c.abs().amax(dim=-1) if order == 1 else torch.linalg.vector_norm(c, dim=-1) * copies**0.5
    size_x = torch.linalg.vector_norm(inputs, dim=1).amax(dim=0)
    return size_x * size_a * size_b * size_c / math.sqrt(num_sequences)


def filter_norm(kernel: Tensor, order: int = 1) -> Tensor:
    """‖k‖₁² or ‖k‖₂² of each channel: regularisers that know nothing of the data, to compare τ with.

    The first is τ for inputs of mean 0 and variance 1; the second is the mean square of the output for inputs that are
    uncorrelated besides.

    Args:
        kernel: `(..., L)`.
        order: 1 (default) or 2.

    Returns:
        `(...)`.

    Raises:
        ValueError: Another order.

    Source: Liu & Li 2024, Appendix A.4, whose formula is the first although its text says ℓ2.
    """
    if order not in (1, 2):
        raise ValueError(f"`order` must be 1 or 2, got {order!r}.")
    return kernel.abs().sum(dim=-1).square() if order == 1 else kernel.square().sum(dim=-1)


def tau_reference(kernel: Tensor, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """`tau(kernel, *lag_moments(inputs, mask))`, see `moments`, by loops over channels, lags and rows in float64.

    Args:
        kernel: `(D, L)`.
        inputs: `(B, L, D)`.
        mask: `(B, L)` or `None`.

    Returns:
        `(D,)`, float64.
    """
    batch, length, channels = inputs.shape
    kernel, inputs = kernel.double(), inputs.double()
    rows = [[t for t in range(length) if mask is None or bool(mask[b, t])] for b in range(batch)]
    values = []
    for d in range(channels):
        spread, centre = kernel.new_zeros(()), kernel.new_zeros(())
        for lag in range(length):
            at = [(b, row[-1] - lag) for b, row in enumerate(rows) if row]
            seen = [inputs[b, t, d] for b, t in at if t in rows[b]]
            if seen:
                samples = torch.stack(seen)
                variance = ((samples - samples.mean()) ** 2).mean()
                if variance > 0:
                    spread = spread + kernel[d, lag].abs() * variance.sqrt()
                centre = centre + kernel[d, lag] * samples.mean()
        values.append((spread + centre.abs()) ** 2)
    return torch.stack(values)


def selective_kernel(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None) -> Tensor:
    """The kernel with which a selective state space model sees the past from its last token.

    ρ_ℓ = Σ_n C₀[n] exp(A_n (Δ₀ + ... + Δ_{ℓ-1})) Δ_ℓ B_ℓ[n], where ℓ is the distance to the last token (twice the real
    part where A is complex). With Δ, B and C averaged over a batch, `tau` of it is our extension of Liu & Li's measure
    to models that vary in time.

    Args:
        delta: `(L, D)` or `(L, 1)`, step sizes by distance to the last token.
        A: `(D, N)`, real, or complex with one of each conjugate pair.
        B: `(L, N)`, by distance to the last token.
        C: `(N,)`, at the last token.
        D: `(D,)`, feed-through, which belongs to lag 0; default none.

    Returns:
        `(D, L)`, real.

    Source: an extension of Liu & Li 2024, eq. (6), to Honarpisheh et al. 2025, eq. (20).
    """
    # In double precision, as a long sequence turns complex states many times round.
    elapsed = delta.double().cumsum(0) - delta
    kernel = delta.new_zeros(())
    for a, b, c in zip(A.unbind(1), B.unbind(1), C.unbind(0), strict=True):
        decay = torch.exp(a * elapsed).to(A.dtype)
        term = decay * (c * b).unsqueeze(-1)
        kernel = kernel + (2 * term.real if term.is_complex() else term)
    kernel = (kernel * delta).T
    return kernel if D is None else torch.cat([kernel[:, :1] + D.unsqueeze(-1), kernel[:, 1:]], dim=1)


def selective_kernel_reference(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None) -> Tensor:
    """`selective_kernel` by following an impulse at each lag through the recurrence; same arguments."""
    length, channels = B.shape[0], A.shape[0]
    steps = delta.expand(length, channels)
    columns = []
    for lag in range(length):
        state = steps[lag].unsqueeze(-1) * B[lag]
        for later in range(lag - 1, -1, -1):
            state = torch.exp(steps[later].unsqueeze(-1) * A) * state
        output = (C * state).sum(-1)
        output = 2 * output.real if output.is_complex() else output
        columns.append(output if D is None or lag > 0 else output + D)
    return torch.stack(columns, dim=1)
