"""Convolution of long sequences with long kernels, by FFT, block by block.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps of the kernel, `F` frequencies of a real transform.

Inputs are `(B, L, D)`, transforms want `(B, D, L)`, and a complex spectrum takes twice the memory of what is padded to
twice its length. So blocks of a few channels and rows are transposed, transformed and written back one after the other,
in scratch that stays in the cache; the backward keeps the inputs and transforms them once more.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.autocast import no_autocast
from hf_ssm.ops.cpu.long_conv_threads import run_single_threaded
from hf_ssm.ops.cpu_kernels import can_transpose, copy_transposed
from hf_ssm.ops.kernels import compiled, reference
from hf_ssm.ops.namespace import NAMESPACE

__all__ = ["kernel_spectrum", "long_conv", "long_conv_reference", "next_fast_len"]

# Samples of a block, as few as keep the calls cheap and as many as fit the caches: on a CPU, and elsewhere.
_FEWEST_SAMPLES, _MOST_SAMPLES = 1 << 18, 1 << 20
_MOST_SAMPLES_ON_A_GPU = 1 << 26
# Channels of a block at the least: a line of the cache is read at once, and one of this many floats is no waste.
_FEWEST_CHANNELS = 16
# Transforms longer than this leave the caches anyway, and half a line less memory.
_LONG_TRANSFORM = 1 << 18
# Up to so many positions and lags a loop over the lags is quicker than transforms (measured, forward and backward).
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
    # The compiler sees through the cache, and warns.
    return _smallest_smooth(n) if torch.compiler.is_compiling() else _remembered_smooth(n)


def _smallest_smooth(n: int) -> int:
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


_remembered_smooth = lru_cache(maxsize=1024)(_smallest_smooth)


def _fft_length(length: int, taps: int, back_taps: int) -> int:
    """Points on which no lag in reach wraps around.

    Real transforms of odd lengths take three to five times as long, those of twice an odd length half as long again.
    """
    points = length + max(taps - 1, back_taps)
    unit = 16 if points > 256 else 2
    return unit * next_fast_len(-(-points // unit))


def _is_short(length: int, taps: int, back_taps: int) -> bool:
    return max(length, taps + back_taps) <= _DIRECT


def _count(taps: Tensor | None) -> int:
    return 0 if taps is None else taps.shape[1]


def _precision(u: torch.dtype, kernel: torch.dtype) -> torch.dtype:
    return torch.promote_types(torch.promote_types(u, kernel), torch.float32)


class _Blocks:
    """How inputs `(B, L, D)` are divided into blocks: some channels make a task, which goes through all rows."""

    def __init__(self, like: Tensor, dtype: torch.dtype, n_fft: int):
        self.batch, self.length, self.width = like.shape
        self.n_fft, self.dtype, self.device = n_fft, dtype, like.device
        most = _MOST_SAMPLES if like.device.type == "cpu" else _MOST_SAMPLES_ON_A_GPU
        fewest = min(most, _FEWEST_SAMPLES) if like.device.type == "cpu" else most
        least = max(1, _FEWEST_CHANNELS // (2 if n_fft > _LONG_TRANSFORM else 1))
        self.rows = max(1, min(self.batch, most // (least * n_fft)))
        self.channels = max(1, min(self.width, max(least, fewest // (self.rows * n_fft))))

    def for_each_part(self, task: Callable[[slice, "_Scratch"], None]) -> None:
        """Call `task` with each slice of channels, and scratch for its blocks."""
        _for_each(self.width, self.channels, self.device, lambda part: task(part, _Scratch(self)))

    def over_rows(self) -> Iterator[slice]:
        return _slices(self.batch, self.rows)


class _Scratch:
    """The transforms of the blocks of one task, in scratch that all of them share."""

    def __init__(self, blocks: _Blocks):
        self.length, self.n_fft = blocks.length, blocks.n_fft
        self._compiled = compiled(blocks.device)
        # Channels are often a large power of two apart, and a cache of eight ways holds eight lines of such.
        self._together = 8 if blocks.device.type == "cpu" and self.n_fft >= 1024 else blocks.channels
        # Beyond the inputs it stays zero.
        samples = blocks.rows * blocks.channels * self.n_fft
        self._padded = torch.zeros(samples, dtype=blocks.dtype, device=blocks.device)

    def transform(self, u: Tensor) -> Tensor:
        """Spectra `(b, d, F)` of a block `(b, L, d)`."""
        rows, length, channels = u.shape
        padded = self._padded[: rows * channels * self.n_fft].view(rows, channels, self.n_fft)
        if self._compiled and can_transpose(u, padded):
            for inputs, samples in zip(u, padded, strict=True):
                copy_transposed(inputs, samples[:, :length])
        else:
            # To gather the block first and to transpose it then takes two thirds of the time of doing both at once.
            padded[..., :length] = u.to(self._padded.dtype).contiguous().transpose(1, 2)
        return torch.fft.rfft(padded)

    def invert(self, spectra: Tensor, out: Tensor) -> None:
        """Write the block of spectra `(b, d, F)` to `out`, `(b, L, d)`."""
        samples = torch.fft.irfft(spectra, n=self.n_fft)[..., : self.length]
        if self._compiled and can_transpose(samples, out):
            for row, outputs in zip(samples, out, strict=True):
                copy_transposed(row, outputs)
            return
        samples = samples.transpose(1, 2)
        for part in _slices(out.shape[2], self._together):
            out[..., part] = samples[..., part]


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _for_each(count: int, size: int, device: torch.device, task: Callable[[slice], None]) -> None:
    """Call `task` with each slice; on a CPU several at once, in threads of their own."""
    parts = list(_slices(count, size))
    if device.type == "cpu":
        run_single_threaded(lambda number: task(parts[number]), len(parts))
    else:
        for part in parts:
            task(part)


def _transform_taps(taps: Tensor, back: Tensor | None, part: slice, n_fft: int) -> Tensor:
    """Spectra `(d, F)` of the taps of some channels; lag -m sits at n_fft - m, with a gap between both sides."""
    if back is None:
        return torch.fft.rfft(taps[part], n=n_fft)
    padded = taps[part].new_zeros(part.stop - part.start, n_fft)
    padded[:, : taps.shape[1]] = taps[part]
    padded[:, n_fft - back.shape[1] :] = back[part].flip(-1)
    return torch.fft.rfft(padded)


def _cut(kernel: Tensor, back: Tensor | None, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The taps in reach of an input, in the precision of the computation."""
    taps = kernel[:, :length].to(dtype)
    # Nothing is ahead of a single position.
    return taps, None if back is None or length == 1 else back[:, : length - 1].to(dtype)


@torch.no_grad()
def kernel_spectrum(
    kernel: Tensor, backward_kernel: Tensor | None = None, *, length: int, dtype: torch.dtype = torch.float32
) -> Tensor | None:
    """The transform of a kernel, for several calls of `long_conv` with this kernel.

    Args:
        kernel, backward_kernel: As for `long_conv`.
        length: L of the inputs.
        dtype: The dtype of the inputs.

    Returns:
        `(D, F)`, complex, without gradient, or `None` where such inputs are so short that no transform is needed.
    """
    taps, back = _cut(kernel, backward_kernel, length, _precision(dtype, kernel.dtype))
    sizes = length, taps.shape[1], _count(back)
    if _is_short(*sizes):
        return None
    n_fft = _fft_length(*sizes)
    spectrum = taps.new_empty(taps.shape[0], n_fft // 2 + 1, dtype=taps.dtype.to_complex())

    def transform(part: slice) -> None:
        spectrum[part] = _transform_taps(taps, back, part, n_fft)

    _for_each(taps.shape[0], max(_FEWEST_CHANNELS, _MOST_SAMPLES // n_fft), taps.device, transform)
    return spectrum


def _lags(length: int, count: int, back_count: int) -> Iterator[tuple[int, slice, slice]]:
    """Each lag, with the positions it leads from and to."""
    for lag in range(-back_count, count):
        yield lag, slice(max(-lag, 0), length - max(lag, 0)), slice(max(lag, 0), length + min(lag, 0))


def _convolve_directly(u: Tensor, taps: Tensor, back: Tensor | None) -> Tensor:
    y = torch.zeros_like(u)
    for lag, source, target in _lags(u.shape[1], taps.shape[1], _count(back)):
        weight = taps[:, lag] if back is None or lag >= 0 else back[:, -lag - 1]
        y[:, target].addcmul_(u[:, source], weight)
    return y


def _correlate_directly(grad: Tensor, taps: Tensor, back: Tensor | None) -> Tensor:
    """The gradient of the inputs: the convolution with both sides exchanged."""
    grad_u = torch.zeros_like(grad)
    for lag, source, target in _lags(grad.shape[1], taps.shape[1], _count(back)):
        weight = taps[:, lag] if back is None or lag >= 0 else back[:, -lag - 1]
        grad_u[:, source].addcmul_(grad[:, target], weight)
    return grad_u


def _sum_directly(grad: Tensor, u: Tensor, grad_taps: Tensor, grad_back: Tensor) -> None:
    """The gradients of the taps of both sides, into the memory given."""
    for lag, source, target in _lags(grad.shape[1], grad_taps.shape[1], grad_back.shape[1]):
        column = grad_taps[:, lag] if lag >= 0 else grad_back[:, -lag - 1]
        column.copy_((grad[:, target] * u[:, source]).sum((0, 1)))


@torch.library.custom_op(f"{NAMESPACE}::long_conv", mutates_args=())
def _convolve(u: Tensor, taps: Tensor, back: Tensor | None, spectrum: Tensor | None) -> Tensor:
    y = _empty_output(u, taps, back, spectrum)
    sizes = u.shape[1], taps.shape[1], _count(back)
    with no_autocast(u.device):
        if _is_short(*sizes):
            return y.copy_(_convolve_directly(u.to(taps.dtype), taps, back))
        blocks = _Blocks(u, taps.dtype, _fft_length(*sizes))

        def convolve(part: slice, scratch: _Scratch) -> None:
            weights = _transform_taps(taps, back, part, blocks.n_fft) if spectrum is None else spectrum[part]
            for rows in blocks.over_rows():
                scratch.invert(scratch.transform(u[rows, :, part]).mul_(weights), y[rows, :, part])

        blocks.for_each_part(convolve)
    return y


@_convolve.register_fake
def _empty_output(u: Tensor, taps: Tensor, back: Tensor | None, spectrum: Tensor | None) -> Tensor:
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
    results = _empty_gradients(grad, u, taps, back, spectrum, count, back_count, dtype)
    grad_u, grad_taps, grad_back = results
    sizes = grad.shape[1], count, back_count
    with no_autocast(grad.device):
        if _is_short(*sizes):
            if taps is not None:
                grad_u.copy_(_correlate_directly(grad.to(dtype), taps, back))
            if u is not None:
                _sum_directly(grad.to(dtype), u.to(dtype), grad_taps, grad_back)
            return results
        blocks = _Blocks(grad, dtype, _fft_length(*sizes))

        def differentiate(part: slice, scratch: _Scratch) -> None:
            weights = total = None
            if spectrum is not None:
                weights = spectrum[part].conj().resolve_conj()
            elif taps is not None:
                weights = _transform_taps(taps, back, part, blocks.n_fft).conj_physical_()
            for rows in blocks.over_rows():
                grads = scratch.transform(grad[rows, :, part])
                if u is not None:
                    products = scratch.transform(u[rows, :, part]).conj_physical_().mul_(grads)
                    # One row, the usual thing where sequences are long, is its own sum.
                    added = products[0] if len(products) == 1 else products.sum(0)
                    total = added if total is None else total.add_(added)
                if weights is not None:
                    scratch.invert(grads.mul_(weights), grad_u[rows, :, part])
            if total is not None:
                by_lag = torch.fft.irfft(total, n=blocks.n_fft)
                grad_taps[part] = by_lag[:, :count]
                grad_back[part] = by_lag[:, blocks.n_fft - back_count :].flip(-1)

        blocks.for_each_part(differentiate)
    return results


@_convolve_backward.register_fake
def _empty_gradients(
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
    # Without rows nothing is ever added to them.
    make = grad.new_zeros if batch == 0 else grad.new_empty
    return grad_u, make(channels, count, dtype=dtype), make(channels, back_count, dtype=dtype)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None], output: Tensor) -> None:
    u, taps, back, spectrum = inputs
    wants_u, wants_taps = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
    has_taps = wants_u and spectrum is None
    ctx.save_for_backward(
        u if wants_taps else None,
        taps if has_taps else None,
        back if has_taps else None,
        spectrum if wants_u else None,
    )
    ctx.sizes = taps.shape[1], _count(back), taps.dtype


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    wanted = ctx.needs_input_grad
    grads = _convolve_backward(grad, *ctx.saved_tensors, *ctx.sizes)
    grad_u, grad_taps, grad_back = (g if w else None for g, w in zip(grads, wanted, strict=False))
    return grad_u, grad_taps, grad_back, None


def _refuse(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "long_conv can be differentiated once (once_differentiable); for second derivatives use long_conv_reference"
    )


_convolve.register_autograd(_differentiate, setup_context=_keep)
_convolve_backward.register_autograd(_refuse)


def _check(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> None:
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


def _check_spectrum(spectrum: Tensor, taps: Tensor, back: Tensor | None, length: int) -> None:
    expected = taps.shape[0], _fft_length(length, taps.shape[1], _count(back)) // 2 + 1
    if spectrum.shape != expected or spectrum.dtype != taps.dtype.to_complex():
        raise ValueError(
            f"spectrum must be of shape {expected} and {taps.dtype.to_complex()}, got {tuple(spectrum.shape)} and "
            f"{spectrum.dtype}: have `kernel_spectrum` compute it from this kernel, for this length and dtype"
        )


def long_conv(
    u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None, *, spectrum: Tensor | None = None
) -> Tensor:
    """Causal or two-sided convolution along the length, one kernel per channel.

    `y[t] = Σ_{j<=t} kernel[t-j] u[j] + Σ_{j>t} backward_kernel[j-t-1] u[j]`, zero outside the input. Kernels
    may be shorter or longer than the input; taps that reach beyond it are not used (their gradient is zero).

    The backward keeps the inputs and the transform of the kernel, and no spectra of the inputs.

    Args:
        u: Input `(B, L, D)`.
        kernel: Taps of lag 0, 1, ..., `(D, K)`.
        backward_kernel: Taps of lag -1, -2, ..., `(D, K2)`; without it the convolution is causal.
        spectrum: `kernel_spectrum` of these kernels, where it is known; the result is the same.

    Returns:
        `(B, L, D)`, contiguous, in the dtype of `u`; differentiable once. Half precision is computed in float32,
        float64 stays float64.

    Raises:
        ValueError: Shapes do not fit, or the sequence is empty.
    """
    if reference():
        return long_conv_reference(u, kernel, backward_kernel)
    _check(u, kernel, backward_kernel)
    length = u.shape[1]
    taps, back = _cut(kernel, backward_kernel, length, _precision(u.dtype, kernel.dtype))
    if spectrum is not None:
        _check_spectrum(spectrum, taps, back, length)
    elif not torch.compiler.is_compiling() and torch.is_grad_enabled() and u.requires_grad:
        # Kept for the backward. A compiled graph, whose lengths may be symbols, transforms the taps twice instead.
        spectrum = kernel_spectrum(taps, back, length=length, dtype=taps.dtype)
    y: Tensor = _convolve(u, taps, back, spectrum)
    return y


def long_conv_reference(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None = None) -> Tensor:
    """`long_conv` as a sum at each position; same arguments, differentiable as often as wanted."""
    _check(u, kernel, backward_kernel)
    length = u.shape[1]
    taps, back = _cut(kernel, backward_kernel, length, _precision(u.dtype, kernel.dtype))
    inputs = u.to(taps.dtype)
    outputs = []
    for t in range(length):
        past = taps[:, : t + 1]
        output = (inputs[:, t + 1 - past.shape[1] : t + 1] * past.flip(-1).T).sum(1)
        if back is not None:
            ahead = back[:, : length - 1 - t]
            output = output + (inputs[:, t + 1 : t + 1 + ahead.shape[1]] * ahead.T).sum(1)
        outputs.append(output)
    return torch.stack(outputs, dim=1).to(u.dtype)
