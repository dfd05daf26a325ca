"""The data-dependent complexity τ of a linear time-invariant state space model (Liu & Li 2024).

Legend: `B` batch, `L` length, `D` channels.
"""

import torch
from torch import Tensor

__all__ = ["filter_norm", "selective_kernel", "selective_kernel_reference", "tau", "tau_reference"]


def tau(kernel: Tensor, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
    """τ of each channel: the size of the output at the last position, given the inputs' moments.

    τ^(1/2) = Σ_ℓ |k_ℓ| √K_ℓ + |Σ_ℓ k_ℓ μ_ℓ|, where ℓ is the distance to the last position.

    Args:
        kernel: `(D, L)`, the convolution kernel; a feed-through term belongs to lag 0.
        mean: `(L, D)`, μ by distance to the last position; `None` for 0.
        variance: `(L, D)`, K likewise; `None` for 1 (then τ is the squared ℓ1 norm of the kernel).

    Returns:
        `(D,)`; the mean over channels is the τ of a layer.

    Source: Liu & Li 2024, eq. (6) and Algorithm 1, lines 8 and 9.
    """
    if variance is None:
        root = kernel.abs().sum(dim=-1)
    else:
        # The square root has an infinite slope at 0, where a constant input contributes nothing.
        safe = torch.where(variance > 0, variance, 1.0)
        deviation = torch.where(variance > 0, safe.sqrt(), 0.0)
        root = torch.linalg.vecdot(kernel.abs(), deviation.T)
    if mean is not None:
        root = root + torch.linalg.vecdot(kernel, mean.T).abs()
    return root.square()


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
    """`tau(kernel, *lag_moments(inputs, mask))` (see `moments`) by plain loops over channels, lags and rows, in float64.

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
