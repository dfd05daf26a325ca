"""Convolution of long sequences with long kernels, by FFT.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


@lru_cache(maxsize=1024)
def next_fast_len(n: int) -> int:
    """Smallest product of powers of 2, 3, 5 and 7 that is at least `n`: the lengths at which FFTs are fast.

    Args:
        n: A positive integer.

    Raises:
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    best = 1 << (n - 1).bit_length()
    p7 = 1
    while p7 < best:
        p5 = p7
        while p5 < best:
            p3 = p5
            while p3 < best:
                # The smallest power of two that lifts the odd part to n.
                candidate = p3 << (-(-n // p3) - 1).bit_length()
                best = min(best, candidate)
                p3 *= 3
            p5 *= 5
        p7 *= 7
    return best


def _check(u: torch.Tensor, kernel: torch.Tensor, backward_kernel: torch.Tensor | None) -> None:
    if u.dim() != 3 or u.shape[1] < 1:
        raise ValueError(f"u must have shape (batch, length >= 1, channels), got {tuple(u.shape)}")
    for name, k in (("kernel", kernel), ("backward_kernel", backward_kernel)):
        if k is None:
            continue
        if k.dim() != 2 or k.shape[0] != u.shape[2] or k.shape[1] < 1:
            raise ValueError(
                f"{name} must have shape (channels, taps >= 1) with channels = {u.shape[2]} as in u, "
                f"got {tuple(k.shape)}"
            )


class _CircularConv(torch.autograd.Function):
    """Circular convolution of `u` `(B, D, L)` with `taps` `(D, K)` on `n_fft` points, cut to `L`.

    The automatic backward of `rfft` transforms full complex spectra; this one needs three real transforms and
    keeps only the two spectra.
    """

    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, taps: torch.Tensor, n_fft: int) -> torch.Tensor:
        u_hat, taps_hat = torch.fft.rfft(u, n=n_fft), torch.fft.rfft(taps, n=n_fft)
        ctx.save_for_backward(u_hat, taps_hat)
        ctx.sizes = n_fft, u.shape[-1], taps.shape[-1]
        return torch.fft.irfft(u_hat * taps_hat, n=n_fft)[..., : u.shape[-1]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        u_hat, taps_hat = ctx.saved_tensors
        n_fft, length, count = ctx.sizes
        grad_hat = torch.fft.rfft(grad, n=n_fft)
        grad_u = grad_taps = None
        if ctx.needs_input_grad[0]:
            grad_u = torch.fft.irfft(grad_hat * taps_hat.conj(), n=n_fft)[..., :length]
        if ctx.needs_input_grad[1]:
            grad_taps = torch.fft.irfft((grad_hat * u_hat.conj()).sum(0), n=n_fft)[..., :count]
        return grad_u, grad_taps, None


def long_conv(u: torch.Tensor, kernel: torch.Tensor, backward_kernel: torch.Tensor | None = None) -> torch.Tensor:
    """Causal or two-sided convolution along the length, one kernel per channel.

    `y[t] = Σ_{j<=t} kernel[t-j] u[j] + Σ_{j>t} backward_kernel[j-t-1] u[j]`, zero outside the input. Kernels
    may be shorter or longer than the input; taps that reach beyond it are not used (their gradient is zero).

    Args:
        u: Input `(B, L, D)`.
        kernel: Taps of lag 0, 1, ..., `(D, K)`.
        backward_kernel: Taps of lag -1, -2, ..., `(D, K2)`; without it the convolution is causal.

    Returns:
        `(B, L, D)` in the dtype of `u`; differentiable once. Half precision is computed in float32, float64
        stays float64.

    Raises:
        ValueError: Shapes do not fit, or the sequence is empty.
    """
    _check(u, kernel, backward_kernel)
    length = u.shape[1]
    dtype = torch.promote_types(torch.promote_types(u.dtype, kernel.dtype), torch.float32)
    taps = kernel[:, :length].to(dtype)
    reach = taps.shape[1] - 1
    if backward_kernel is not None and length > 1:
        back = backward_kernel[:, : length - 1].to(dtype)
        # Lag -m sits at index n_fft - m; the gap between both sides keeps every lag in reach unaliased.
        n_fft = next_fast_len(length + max(reach, back.shape[1]))
        gap = n_fft - taps.shape[1] - back.shape[1]
        taps = torch.cat([F.pad(taps, (0, gap)), back.flip(-1)], dim=-1)
    else:
        n_fft = next_fast_len(length + reach)
    y: torch.Tensor = _CircularConv.apply(u.to(dtype).transpose(1, 2).contiguous(), taps, n_fft)
    return y.transpose(1, 2).to(u.dtype)


def long_conv_reference(
    u: torch.Tensor, kernel: torch.Tensor, backward_kernel: torch.Tensor | None = None
) -> torch.Tensor:
    """`long_conv` as the direct double sum over positions; same arguments."""
    _check(u, kernel, backward_kernel)
    length = u.shape[1]
    rows = []
    for t in range(length):
        row = torch.zeros_like(u[:, 0])
        for j in range(length):
            if j <= t and t - j < kernel.shape[1]:
                row = row + kernel[:, t - j] * u[:, j]
            elif backward_kernel is not None and j > t and j - t - 1 < backward_kernel.shape[1]:
                row = row + backward_kernel[:, j - t - 1] * u[:, j]
        rows.append(row)
    return torch.stack(rows, dim=1)
