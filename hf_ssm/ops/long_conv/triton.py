"""Long convolution by Triton kernels: custom operators with their gradients.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `n` points of a row.

- `triton_layout.py`: kernels that transpose and convert inputs to rows of channels, and rows to outputs;
- `triton_toeplitz.py`: a kernel that convolves rows by products of blocks, where there are few taps;
- `triton_spectra.py`: transforms of the vendor, and a kernel for the products of their spectra, for all others.

Blocks of channels and rows of the batch follow one another, so that rows and spectra take at most a few times
`MOST_SAMPLES_ON_A_GPU` numbers. The backward keeps the inputs and the taps and transforms both again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE, no_autocast
from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.long_conv.fft import MOST_SAMPLES_ON_A_GPU, convolve_plainly, slices
from hf_ssm.ops.long_conv.reference import usable_taps
from hf_ssm.ops.long_conv.triton_layout import crop_, padded_rows
from hf_ssm.ops.long_conv.triton_spectra import Transforms
from hf_ssm.ops.long_conv.triton_toeplitz import Blocks, takes_blocks
from hf_ssm.ops.operators import differentiable_operator, empty_gradients

__all__ = ["long_conv_triton", "supports_long_conv"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Channels of a block at least, which are read at once.
_FEWEST_CHANNELS = 32
# Programs along the second and third axis of a grid, at most (CUDA); a multiple of the channels that are read at once.
_MOST_PROGRAMS = 65504


def _way(length: int, count: int, back_count: int, dtype: torch.dtype) -> Blocks | Transforms:
    if takes_blocks(length, count, back_count, dtype):
        return Blocks(length, count, back_count, dtype)
    return Transforms(length, count, back_count)


def _division(batch: int, channels: int, points: int) -> tuple[list[slice], list[slice]]:
    """Slices of channels, and of rows of the batch."""
    rows = max(1, min(batch, _MOST_PROGRAMS, MOST_SAMPLES_ON_A_GPU // (_FEWEST_CHANNELS * points)))
    together = MOST_SAMPLES_ON_A_GPU // (rows * points) // _FEWEST_CHANNELS * _FEWEST_CHANNELS
    together = min(_MOST_PROGRAMS, max(_FEWEST_CHANNELS, together))
    return list(slices(channels, together)), list(slices(batch, rows))


def _count(taps: Tensor | None) -> int:
    return 0 if taps is None else taps.shape[1]


class _Convolution(NamedTuple):
    u: Tensor
    taps: Tensor
    back: Tensor | None


def _empty_output(args: _Convolution) -> Tensor:
    return args.u.new_empty(args.u.shape)


def _run_convolution(args: _Convolution) -> Tensor:
    (u, taps, back), y = args, _empty_output(args)
    batch, length, channels = u.shape
    way: Any = _way(length, taps.shape[1], _count(back), u.dtype)
    u = dense_rows(u)
    parts, blocks = _division(batch, channels, way.points)
    with no_autocast(u.device):
        for part in parts if batch else ():
            weights = way.prepare(taps[part], None if back is None else back[part])
            for rows in blocks:
                padded = padded_rows(u[rows, :, part], way.points, way.dtype)
                crop_(way.convolve(padded, weights), y[rows, :, part])
    return y


def _run_backward(grad: Tensor, args: _Convolution, wanted: Sequence[bool]) -> list[Tensor]:
    """Gradients of the inputs, and of the taps of both sides."""
    (u, taps, back), needs_u, needs_taps = args, wanted[0], any(wanted[1:])
    results = empty_gradients(args, (needs_u, needs_taps, needs_taps and back is not None))
    grad_u, grad_taps, grad_back = results
    batch, length, channels = u.shape
    way: Any = _way(length, taps.shape[1], _count(back), u.dtype)
    grad, u = dense_rows(grad), dense_rows(u)
    parts, blocks = _division(batch, channels, way.points)
    with no_autocast(u.device):
        for part in parts if batch else ():
            weights = total = None
            if needs_u:
                weights = way.prepare(taps[part], None if back is None else back[part])
            for rows in blocks:
                inputs = padded_rows(u[rows, :, part], way.points, way.dtype) if needs_taps else None
                padded = padded_rows(grad[rows, :, part], way.points, way.dtype)
                grad_rows, total = way.differentiate(padded, inputs, weights, total)
                if grad_rows is not None:
                    crop_(grad_rows, grad_u[rows, :, part])
            if total is not None:
                grad_taps[part], by_back = way.gradients(total)
                if back is not None:
                    grad_back[part] = by_back
    if not batch:
        # An empty batch adds nothing to the gradients of the taps.
        grad_taps.zero_()
        grad_back.zero_()
    return results


_convolve, _ = differentiable_operator(
    f"{NAMESPACE}::long_conv_triton",
    tensors=_Convolution,
    options="",
    forward=_run_convolution,
    fake=_empty_output,
    backward=_run_backward,
    plain=lambda args: convolve_plainly(*args),
)


def supports_long_conv(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> bool:
    """Not float64, since the kernels accumulate in float32; PyTorch's transforms serve it."""
    return runs_kernels(u, kernel, backward_kernel, dtypes=_DTYPES)


def long_conv_triton(u: Tensor, kernel: Tensor, backward_kernel: Tensor | None) -> Tensor:
    """`long_conv` by kernels."""
    y: Tensor = _convolve(u, *usable_taps(u, kernel, backward_kernel))
    return y
