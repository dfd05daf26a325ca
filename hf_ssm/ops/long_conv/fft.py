"""Long convolution by FFT, some channels at a time.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel, `F` frequencies of a real transform.

Inputs are `(B, L, D)`, transforms need `(B, D, L)`, and a complex spectrum takes twice the memory of inputs padded to
twice their length. Therefore some channels are transposed, transformed and written back at a time; the backward keeps
the inputs and transforms them again. It takes a fifth of the memory of the same transforms with autograd.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import gradients, in_function_transform, is_exporting, no_autocast
from hf_ssm.ops.long_conv.reference import long_conv_reference, usable_taps

__all__ = ["fft_length", "long_conv_fft", "next_fast_len"]

# Samples that are transformed together: enough to amortise the calls, few enough for the caches; on a CPU and on other
# devices. Channels at least: as many float32 numbers as a cache line holds, which is read at once.
_SAMPLES_ON_CPU, _SAMPLES = 1 << 19, 1 << 26
_FEWEST_CHANNELS = 16
# Up to this number of positions and lags the sum is faster than transforms, and exact.
_DIRECT = 8


def next_fast_len(n: int) -> int:
    """Smallest product of powers of 2, 3, 5 and 7 that is at least `n`: the lengths at which FFTs are fast.

    Args:
        n: A positive integer.

    Raises:
        ValueError: `n` is not positive.
    """
    if n < 1:
        raise ValueError(f"n must be a positive integer, got {n!r}")
    # torch.compile traces through the cache, with a warning.
    return _smallest_smooth(n) if torch.compiler.is_compiling() else _cached_smallest_smooth(n)


def _smallest_smooth(n: int) -> int:
    best = 1 << (n - 1).bit_length()
    p7 = 1
    while p7 < best:
        p5 = p7
        while p5 < best:
            p3 = p5
            while p3 < best:
                # The smallest power of two that brings the odd part to n.
                candidate = p3 << (-(-n // p3) - 1).bit_length()
                best = min(best, candidate)
                p3 *= 3
            p5 *= 5
        p7 *= 7
    return best


_cached_smallest_smooth = lru_cache(maxsize=1024)(_smallest_smooth)


def fft_length(length: int, taps: int, back_taps: int) -> int:
    """Number of points on which no lag wraps around.

    Real transforms of odd lengths take three to five times as long, those of twice an odd length half as long again.
    """
    points = length + max(taps - 1, back_taps)
    if torch.compiler.is_compiling():
        # It may be a symbol, of which no factors are known.
        return 64 * ((points + 63) // 64)
    unit = 16 if points > 256 else 2
    return unit * next_fast_len(-(-points // unit))


class _LongConvolution(torch.autograd.Function):
    """`_convolve` of some channels at a time, whose backward transforms again what it needs."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, taps: Tensor, n_fft: int) -> Tensor:
        ctx.save_for_backward(u, taps)
        ctx.n_fft = n_fft
        y = u.new_empty(u.shape)
        for part in _channels(u, n_fft):
            y[..., part] = _convolve(u[..., part], taps[part], n_fft=n_fft)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (u, taps), n_fft, (wants_u, wants_taps, _) = ctx.saved_tensors, ctx.n_fft, ctx.needs_input_grad
        with no_autocast(grad.device):
            if torch.is_grad_enabled():
                return *gradients(partial(_convolve, n_fft=n_fft), (u, taps), [grad]), None
            grad_u = grad.new_empty(grad.shape) if wants_u else None
            grad_taps = torch.zeros_like(taps) if wants_taps else None
            for part in _channels(grad, n_fft):
                spectra = _spectra(grad[..., part], taps.dtype, n_fft)
                if grad_taps is not None:
                    products = _spectra(u[..., part], taps.dtype, n_fft).conj_physical_().mul_(spectra).sum(0)
                    grad_taps[part] = torch.fft.irfft(products, n=n_fft)[..., : taps.shape[1]]
                if grad_u is not None:
                    spectra *= torch.fft.rfft(taps[part], n=n_fft).conj_physical_()
                    grad_u[..., part] = torch.fft.irfft(spectra, n=n_fft)[..., : grad.shape[1]].mT
        return grad_u, grad_taps, None


def _channels(u: Tensor, n_fft: int) -> Iterator[slice]:
    """Slices of the channels to transform together; none of an empty batch."""
    if torch.compiler.is_compiling():
        # Sizes may be symbols.
        return iter([slice(None)])
    samples = _SAMPLES_ON_CPU if u.device.type == "cpu" else _SAMPLES
    size = max(_FEWEST_CHANNELS, samples // (max(1, u.shape[0]) * n_fft))
    return (slice(start, start + size) for start in range(0, u.shape[2] if len(u) else 0, size))


def _spectra(u: Tensor, dtype: torch.dtype, n_fft: int) -> Tensor:
    """`(B, L, d)` -> `(B, d, F)`."""
    return torch.fft.rfft(u.to(dtype).mT, n=n_fft)


def _convolve(u: Tensor, taps: Tensor, *, n_fft: int) -> Tensor:
    """The circular convolution on `n_fft` points, at the positions of the input."""
    spectra = _spectra(u, taps.dtype, n_fft) * torch.fft.rfft(taps, n=n_fft)
    return torch.fft.irfft(spectra, n=n_fft)[..., : u.shape[1]].mT.to(u.dtype)


def long_conv_fft(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> Tensor:
    """`long_conv` by FFT; same arguments."""
    if is_exporting():
        # Without the tap of lag -L, which meets zeros only, there might be one, of a size that torch.export fixes.
        taps, back = usable_taps(u, kernel, None)[0], backward_kernel
        back = None if back is None else back.to(taps.dtype)
    else:
        taps, back = usable_taps(u, kernel, backward_kernel)
    sizes = u.shape[1], taps.shape[1], 0 if back is None else back.shape[1]
    # The length of an exported program is a symbol.
    n_fft = 2 * u.shape[1] if is_exporting() else fft_length(*sizes)
    if back is not None:
        # Lag -m is at n_fft - m.
        gap = taps.new_zeros(taps.shape[0], n_fft - sizes[1] - sizes[2])
        taps = torch.cat([taps, gap, back.flip(-1)], dim=-1)
    with no_autocast(u.device):
        if in_function_transform() or is_exporting():
            return _convolve(u, taps, n_fft=n_fft)
        if max(sizes[0], sizes[1] + sizes[2]) <= _DIRECT:
            return long_conv_reference(u, kernel, backward_kernel)
        y: Tensor = _LongConvolution.apply(u, taps, n_fft)
    return y
