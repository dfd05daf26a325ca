"""Long convolution by FFT, block by block.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel, `F` frequencies of a real transform.

Inputs are `(B, L, D)`, transforms need `(B, D, L)`, and a complex spectrum takes twice the memory of inputs padded to
twice their length. Therefore blocks of a few channels and rows are transposed, transformed and written back one after
the other, in scratch memory that stays in the cache; the backward keeps the inputs and transforms them again.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE, differentiable_gradients, in_function_transform, no_autocast
from hf_ssm.ops.long_conv.reference import usable_taps
from hf_ssm.ops.threads import run_single_threaded

__all__ = ["MOST_SAMPLES_ON_A_GPU", "convolve_plainly", "fft_length", "long_conv_fft", "next_fast_len", "slices"]

# Samples of a block: enough to amortise the calls, few enough for the caches; on a CPU and on other devices.
_FEWEST_SAMPLES, _MOST_SAMPLES = 1 << 18, 1 << 20
MOST_SAMPLES_ON_A_GPU = 1 << 26
# Channels of a block at least: as many float32 numbers as a cache line holds, which is read at once.
_FEWEST_CHANNELS = 16
# Transforms longer than this exceed the caches anyway; half a cache line saves memory.
_LONG_TRANSFORM = 1 << 18
# Up to this number of positions and lags a loop over the lags is faster than transforms (measured, with gradients).
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
    unit = 16 if points > 256 else 2
    return unit * next_fast_len(-(-points // unit))


def _is_short(length: int, taps: int, back_taps: int) -> bool:
    return max(length, taps + back_taps) <= _DIRECT


def _num_taps(taps: Tensor | None) -> int:
    return 0 if taps is None else taps.shape[1]


def _pad_transposed(u: Tensor, padded: Tensor) -> None:
    """`padded.copy_(u.mT)` with a cast; two copies take two thirds of the time of one that does both."""
    padded.copy_(u.to(padded.dtype).contiguous().mT)


def _write_transposed(samples: Tensor, out: Tensor) -> None:
    """`out.copy_(samples.mT)` with a cast."""
    # Rows are often a large power of two apart, and a cache of eight ways holds eight such lines.
    together = 8 if samples.device.type == "cpu" and samples.stride(1) >= 1024 else samples.shape[1]
    for columns in slices(out.shape[2], together):
        out[..., columns] = samples.mT[..., columns]


class _ConvBlocks:
    """Division of inputs `(B, L, D)` into blocks; the blocks of some channels and all rows form a task."""

    def __init__(self, like: Tensor, dtype: torch.dtype, n_fft: int):
        self.batch, self.length, self.width = like.shape
        self.n_fft, self.dtype, self.device = n_fft, dtype, like.device
        most = _MOST_SAMPLES if like.device.type == "cpu" else MOST_SAMPLES_ON_A_GPU
        fewest = min(most, _FEWEST_SAMPLES) if like.device.type == "cpu" else most
        least = max(1, _FEWEST_CHANNELS // (2 if n_fft > _LONG_TRANSFORM else 1))
        self.rows = max(1, min(self.batch, most // (least * n_fft)))
        self.channels = max(1, min(self.width, max(least, fewest // (self.rows * n_fft))))

    def for_each_part(self, task: Callable[[slice, "_Transforms"], None]) -> None:
        """Call `task` with each slice of channels, and the transforms of its blocks."""
        _for_each_slice(self.width, self.channels, self.device, lambda channels: task(channels, _Transforms(self)))

    def over_rows(self) -> Iterator[slice]:
        return slices(self.batch, self.rows)


class _Transforms:
    """Transforms of the blocks of one task, in scratch memory that these share."""

    def __init__(self, blocks: _ConvBlocks):
        self.length, self.n_fft = blocks.length, blocks.n_fft
        # Zero beyond the inputs, and never written there.
        samples = blocks.rows * blocks.channels * self.n_fft
        self._padded = torch.zeros(samples, dtype=blocks.dtype, device=blocks.device)

    def transform(self, u: Tensor) -> Tensor:
        """Spectra `(b, d, F)` of a block `(b, L, d)`."""
        rows, length, channels = u.shape
        padded = self._padded[: rows * channels * self.n_fft].view(rows, channels, self.n_fft)
        _pad_transposed(u, padded[..., :length])
        return torch.fft.rfft(padded)

    def invert(self, spectra: Tensor, out: Tensor) -> None:
        """Write the block of spectra `(b, d, F)` to `out`, `(b, L, d)`."""
        _write_transposed(torch.fft.irfft(spectra, n=self.n_fft)[..., : self.length], out)


def slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _for_each_slice(count: int, size: int, device: torch.device, task: Callable[[slice], None]) -> None:
    """Call `task` with each slice; on a CPU several at once, in threads of their own."""
    parts = list(slices(count, size))
    if device.type == "cpu":
        run_single_threaded(lambda number: task(parts[number]), len(parts))
    else:
        for part in parts:
            task(part)


def _transform_taps(taps: Tensor, back: Tensor | None, channels: slice, n_fft: int) -> Tensor:
    """Spectra `(d, F)` of the taps of some channels; lag -m is at n_fft - m, with a gap between both sides."""
    if back is None:
        return torch.fft.rfft(taps[channels], n=n_fft)
    padded = taps[channels].new_zeros(channels.stop - channels.start, n_fft)
    padded[:, : taps.shape[1]] = taps[channels]
    padded[:, n_fft - back.shape[1] :] = back[channels].flip(-1)
    return torch.fft.rfft(padded)


@torch.no_grad()
def _kernel_spectrum(taps: Tensor, back: Tensor | None, length: int) -> Tensor | None:
    """The transform of the taps for inputs of this length, `(D, F)`; `None` where no transform is needed."""
    sizes = length, taps.shape[1], _num_taps(back)
    if _is_short(*sizes):
        return None
    n_fft = fft_length(*sizes)
    spectrum = taps.new_empty(taps.shape[0], n_fft // 2 + 1, dtype=taps.dtype.to_complex())

    def transform(channels: slice) -> None:
        spectrum[channels] = _transform_taps(taps, back, channels, n_fft)

    _for_each_slice(taps.shape[0], max(_FEWEST_CHANNELS, _MOST_SAMPLES // n_fft), taps.device, transform)
    return spectrum


class _KernelSpectrum(torch.autograd.Function):
    """`_kernel_spectrum` with a graph to the taps, for second derivatives; it keeps no tensor."""

    @staticmethod
    def forward(ctx: Any, taps: Tensor, back: Tensor | None, length: int) -> Tensor | None:
        ctx.sizes = length, taps.shape[1], _num_taps(back)
        ctx.set_materialize_grads(False)
        return _kernel_spectrum(taps, back, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad is None:
            # The first derivative reaches the taps directly.
            return None, None, None
        count, back_count = ctx.sizes[1:]
        n_fft = fft_length(*ctx.sizes)
        padded = torch.nn.functional.pad(grad, (0, n_fft - grad.shape[-1]))
        by_lag = torch.fft.ifft(padded, norm="forward").real
        return by_lag[:, :count], by_lag[:, n_fft - back_count :].flip(-1) if back_count else None, None


def _lags(length: int, count: int, back_count: int) -> Iterator[tuple[int, slice, slice]]:
    """Each lag with its source and target positions."""
    for lag in range(-back_count, count):
        yield lag, slice(max(-lag, 0), length - max(lag, 0)), slice(max(lag, 0), length + min(lag, 0))


def _convolve_directly(u: Tensor, taps: Tensor, back: Tensor | None) -> Tensor:
    y = torch.zeros_like(u)
    for lag, source, target in _lags(u.shape[1], taps.shape[1], _num_taps(back)):
        weight = taps[:, lag] if back is None or lag >= 0 else back[:, -lag - 1]
        y[:, target].addcmul_(u[:, source], weight)
    return y


def _correlate_directly(grad: Tensor, taps: Tensor, back: Tensor | None) -> Tensor:
    """The gradient of the inputs: the convolution with both sides exchanged."""
    grad_u = torch.zeros_like(grad)
    for lag, source, target in _lags(grad.shape[1], taps.shape[1], _num_taps(back)):
        weight = taps[:, lag] if back is None or lag >= 0 else back[:, -lag - 1]
        grad_u[:, source].addcmul_(grad[:, target], weight)
    return grad_u


def _sum_directly(grad: Tensor, u: Tensor, grad_taps: Tensor, grad_back: Tensor) -> None:
    """Write the gradients of the taps of both sides."""
    for lag, source, target in _lags(grad.shape[1], grad_taps.shape[1], grad_back.shape[1]):
        column = grad_taps[:, lag] if lag >= 0 else grad_back[:, -lag - 1]
        column.copy_((grad[:, target] * u[:, source]).sum((0, 1)))


@torch.library.custom_op(f"{NAMESPACE}::long_conv", mutates_args=())
def _convolve(u: Tensor, taps: Tensor, back: Tensor | None, spectrum: Tensor | None) -> Tensor:
    y = _empty_convolution(u, taps, back, spectrum)
    sizes = u.shape[1], taps.shape[1], _num_taps(back)
    with no_autocast(u.device):
        if _is_short(*sizes):
            return y.copy_(_convolve_directly(u.to(taps.dtype), taps, back))
        blocks = _ConvBlocks(u, taps.dtype, fft_length(*sizes))

        def convolve(channels: slice, transforms: _Transforms) -> None:
            weights = _transform_taps(taps, back, channels, blocks.n_fft) if spectrum is None else spectrum[channels]
            for rows in blocks.over_rows():
                transforms.invert(transforms.transform(u[rows, :, channels]).mul_(weights), y[rows, :, channels])

        blocks.for_each_part(convolve)
    return y


@_convolve.register_fake
def _empty_convolution(u: Tensor, taps: Tensor, back: Tensor | None, spectrum: Tensor | None) -> Tensor:
    return u.new_empty(u.shape)


@torch.library.custom_op(f"{NAMESPACE}::long_conv_backward", mutates_args=())
def _convolve_backward(
    grad: Tensor,
    u: Tensor | None,
    taps: Tensor | None,
    back: Tensor | None,
    spectrum: Tensor | None,
    count: int,
    back_count: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the inputs (empty without taps and spectrum), and of the taps of both sides (empty without `u`)."""
    results = _empty_convolution_gradients(grad, u, taps, back, spectrum, count, back_count, dtype)
    grad_u, grad_taps, grad_back = results
    sizes = grad.shape[1], count, back_count
    with no_autocast(grad.device):
        if _is_short(*sizes):
            if taps is not None:
                grad_u.copy_(_correlate_directly(grad.to(dtype), taps, back))
            if u is not None:
                _sum_directly(grad.to(dtype), u.to(dtype), grad_taps, grad_back)
            return results
        blocks = _ConvBlocks(grad, dtype, fft_length(*sizes))

        def differentiate(channels: slice, transforms: _Transforms) -> None:
            weights = total = None
            if spectrum is not None:
                weights = spectrum[channels].conj().resolve_conj()
            elif taps is not None:
                weights = _transform_taps(taps, back, channels, blocks.n_fft).conj_physical_()
            for rows in blocks.over_rows():
                grads = transforms.transform(grad[rows, :, channels])
                if u is not None:
                    products = transforms.transform(u[rows, :, channels]).conj_physical_().mul_(grads)
                    # A single row, the common case of long sequences, needs no sum.
                    added = products[0] if len(products) == 1 else products.sum(0)
                    total = added if total is None else total.add_(added)
                if weights is not None:
                    transforms.invert(grads.mul_(weights), grad_u[rows, :, channels])
            if total is not None:
                by_lag = torch.fft.irfft(total, n=blocks.n_fft)
                grad_taps[channels] = by_lag[:, :count]
                grad_back[channels] = by_lag[:, blocks.n_fft - back_count :].flip(-1)

        blocks.for_each_part(differentiate)
    return results


@_convolve_backward.register_fake
def _empty_convolution_gradients(
    grad: Tensor,
    u: Tensor | None,
    taps: Tensor | None,
    back: Tensor | None,
    spectrum: Tensor | None,
    count: int,
    back_count: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, _, channels = grad.shape
    grad_u = grad.new_empty(0 if taps is None and spectrum is None else grad.shape)
    if u is None:
        return grad_u, grad.new_empty(0, dtype=dtype), grad.new_empty(0, dtype=dtype)
    # An empty batch adds nothing to them.
    make = grad.new_zeros if batch == 0 else grad.new_empty
    return grad_u, make(channels, count, dtype=dtype), make(channels, back_count, dtype=dtype)


def _save_convolution(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None], output: Tensor) -> None:
    u, taps, back, spectrum = inputs
    wants_u, wants_taps = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
    has_taps = wants_u and spectrum is None
    ctx.save_for_backward(
        u if wants_taps else None,
        taps if has_taps else None,
        back if has_taps else None,
        spectrum if wants_u else None,
    )
    ctx.sizes = taps.shape[1], _num_taps(back), taps.dtype


def _differentiate_convolution(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad
    if torch.is_grad_enabled():
        return _differentiable_gradients(ctx, grad)
    grads = _convolve_backward(grad, *ctx.saved_tensors, *ctx.sizes)
    grad_u, grad_taps, grad_back = (g if w else None for g, w in zip(grads, wanted, strict=False))
    return grad_u, grad_taps, grad_back, None


def _differentiable_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients with a graph; where the spectrum is kept, its gradient stands for those of the taps."""
    u, taps, back, spectrum = ctx.saved_tensors
    count, back_count, dtype = ctx.sizes
    wants_u, *wants_taps = ctx.needs_input_grad[:3]
    # Gradients of a bilinear function do not depend on their own argument, which may not be kept.
    u = torch.zeros_like(grad).requires_grad_(wants_u) if u is None else u
    if spectrum is not None:
        convolve = partial(_convolve_by_spectrum, n_fft=fft_length(grad.shape[1], count, back_count))
        grad_u, grad_spectrum = differentiable_gradients(convolve, (u, spectrum), [grad])
        return grad_u, None, None, grad_spectrum
    if taps is None:
        taps, back = (
            grad.new_zeros(grad.shape[2], size, dtype=dtype).requires_grad_(wanted)
            for size, wanted in zip((count, back_count), wants_taps, strict=True)
        )
    return *differentiable_gradients(convolve_plainly, (u, taps, back if back_count else None), [grad]), None


_convolve.register_autograd(_differentiate_convolution, setup_context=_save_convolution)


def convolve_plainly(u: Tensor, taps: Tensor, back: Tensor | None) -> Tensor:
    """The convolution by operations of torch that are differentiable any number of times, in any mode."""
    n_fft = fft_length(u.shape[1], taps.shape[1], _num_taps(back))
    if back is not None:
        gap = taps.new_zeros(taps.shape[0], n_fft - taps.shape[1] - back.shape[1])
        taps = torch.cat([taps, gap, back.flip(-1)], dim=-1)
    return _convolve_by_spectrum(u, torch.fft.rfft(taps, n=n_fft), n_fft)


def _convolve_by_spectrum(u: Tensor, spectrum: Tensor, n_fft: int) -> Tensor:
    samples = u.to(spectrum.dtype.to_real()).mT
    return torch.fft.irfft(torch.fft.rfft(samples, n=n_fft) * spectrum, n=n_fft)[..., : u.shape[1]].mT.to(u.dtype)


def long_conv_fft(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> Tensor:
    """`long_conv` by FFT; same arguments."""
    taps, back = usable_taps(u, kernel, backward_kernel)
    if in_function_transform():
        return convolve_plainly(u, taps, back)
    spectrum = None
    if not torch.compiler.is_compiling() and torch.is_grad_enabled() and u.requires_grad:
        # Kept for the backward. A compiled graph, whose lengths may be symbolic, transforms the taps twice instead.
        spectrum = _KernelSpectrum.apply(taps, back, u.shape[1])
    y: Tensor = _convolve(u, taps, back, spectrum)
    return y
