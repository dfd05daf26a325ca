"""Long convolution by Triton kernels: custom operators with their gradients.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `n` points of a row.

- `triton_layout.py`: kernels that gate, transpose and convert inputs to rows of channels, and rows to outputs;
- `triton_toeplitz.py`: a kernel that convolves rows by products of blocks, where there are few taps;
- `triton_spectra.py`: transforms of the vendor, and a kernel for the products of their spectra, for all others;
- `triton_costs.py`: what they cost.

Blocks of channels and rows of the batch follow one another, so that rows and spectra take at most a few times
`MOST_SAMPLES_ON_A_GPU` numbers. The backward keeps the inputs and the taps and transforms both again; with an output
gate whose gradient is needed it also keeps the convolution before the gate, in the dtype of the inputs.
"""

from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE, differentiable_gradients, no_autocast
from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.long_conv.fft import MOST_SAMPLES_ON_A_GPU, convolve_plainly, slices
from hf_ssm.ops.long_conv.reference import gated, usable_taps
from hf_ssm.ops.long_conv.triton_layout import cropped, padded_rows
from hf_ssm.ops.long_conv.triton_spectra import Transforms
from hf_ssm.ops.long_conv.triton_toeplitz import Blocks, takes_blocks

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


def _dense(*tensors: Tensor | None) -> list[Any]:
    return [t if t is None else dense_rows(t) for t in tensors]


def _block(t: Tensor | None, rows: slice, part: slice) -> Tensor | None:
    return None if t is None else t[rows, :, part]


def _count(taps: Tensor | None) -> int:
    return 0 if taps is None else taps.shape[1]


@torch.library.custom_op(f"{NAMESPACE}::long_conv_triton", mutates_args=())
def _convolve(
    u: Tensor, taps: Tensor, back: Tensor | None, in_gate: Tensor | None, out_gate: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    """The gated convolution, and with `keep` that before the output gate (empty otherwise)."""
    y, before = _empty_convolution(u, taps, back, in_gate, out_gate, keep)
    batch, length, channels = u.shape
    way: Any = _way(length, taps.shape[1], _count(back), u.dtype)
    u, in_gate, out_gate = _dense(u, in_gate, out_gate)
    parts, blocks = _division(batch, channels, way.points)
    with no_autocast(u.device):
        for part in parts if batch else ():
            weights = way.prepare(taps[part], None if back is None else back[part])
            for rows in blocks:
                padded = padded_rows(u[rows, :, part], _block(in_gate, rows, part), way.points, way.dtype)
                cropped(
                    way.convolve(padded, weights),
                    y[rows, :, part],
                    _block(out_gate, rows, part),
                    _block(before if keep else None, rows, part),
                )
    return y, before


@_convolve.register_fake
def _empty_convolution(
    u: Tensor, taps: Tensor, back: Tensor | None, in_gate: Tensor | None, out_gate: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), u.new_empty(u.shape if keep else (0,))


@torch.library.custom_op(f"{NAMESPACE}::long_conv_triton_backward", mutates_args=())
def _convolve_backward(
    grad: Tensor,
    u: Tensor,
    taps: Tensor,
    back: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    needs_u: bool,
    needs_in_gate: bool,
    needs_taps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the inputs, the input gate, and the taps of both sides; empty where not needed."""
    needs = needs_u, needs_in_gate, needs_taps
    results = _empty_gradients(grad, u, taps, back, in_gate, out_gate, *needs)
    grad_u, grad_gate, grad_taps, grad_back = results
    batch, length, channels = u.shape
    way: Any = _way(length, taps.shape[1], _count(back), u.dtype)
    grad, u, in_gate, out_gate = _dense(grad, u, in_gate, out_gate)
    parts, blocks = _division(batch, channels, way.points)
    with no_autocast(u.device):
        for part in parts if batch else ():
            weights = total = None
            if needs_u or needs_in_gate:
                weights = way.prepare(taps[part], None if back is None else back[part])
            for rows in blocks:
                values, gate = u[rows, :, part], _block(in_gate, rows, part)
                inputs = padded_rows(values, gate, way.points, way.dtype) if needs_taps else None
                padded = padded_rows(grad[rows, :, part], _block(out_gate, rows, part), way.points, way.dtype)
                found, total = way.differentiate(padded, inputs, weights, total)
                if found is not None:
                    out = _block(grad_u if needs_u else None, rows, part)
                    second = _block(grad_gate if needs_in_gate else None, rows, part)
                    cropped(found, out, gate, second, values)
            if total is not None:
                grad_taps[part], by_back = way.gradients(total)
                if back is not None:
                    grad_back[part] = by_back
    return results


@_convolve_backward.register_fake
def _empty_gradients(
    grad: Tensor,
    u: Tensor,
    taps: Tensor,
    back: Tensor | None,
    in_gate: Tensor | None,
    out_gate: Tensor | None,
    needs_u: bool,
    needs_in_gate: bool,
    needs_taps: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad_u, grad_gate = (u.new_empty(u.shape if needed else (0,)) for needed in (needs_u, needs_in_gate))
    # An empty batch adds nothing to them.
    make = taps.new_zeros if u.shape[0] == 0 else taps.new_empty
    grad_taps = make(taps.shape if needs_taps else (0,))
    return grad_u, grad_gate, grad_taps, make(back.shape if needs_taps and back is not None else (0,))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    before = output[1]
    ctx.mark_non_differentiable(before)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5], before if inputs[5] else None)


def _gradients(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, before = ctx.saved_tensors
    if grad is None:
        return (None,) * 6
    if torch.is_grad_enabled():
        return *differentiable_gradients(gated(convolve_plainly), tensors, [grad]), None
    needs_u, needs_taps, needs_back, needs_in_gate, needs_out_gate, _ = ctx.needs_input_grad
    grad_gate = grad * before if needs_out_gate else None
    grads: list[Tensor | None] = [None] * 4
    if needs_u or needs_taps or needs_back or needs_in_gate:
        needs = needs_u, needs_in_gate, needs_taps or needs_back
        grad_u, grad_in_gate, grad_taps, grad_back = _convolve_backward(grad, *tensors, *needs)
        found = zip(
            (grad_u, grad_taps, grad_back, grad_in_gate),
            (needs_u, needs_taps, needs_back, needs_in_gate),
            strict=True,
        )
        grads = [g if needed else None for g, needed in found]
    return *grads, grad_gate, None


_convolve.register_autograd(_gradients, setup_context=_save)


def supports_long_conv(
    u: Tensor, kernel: Tensor, backward_kernel: Tensor | None, in_gate: Tensor | None, out_gate: Tensor | None
) -> bool:
    """Not float64, since the kernels accumulate in float32, and no gates of another dtype than `u`.

    PyTorch's transforms serve both.
    """
    gates_fit = all(gate is None or gate.dtype == u.dtype for gate in (in_gate, out_gate))
    return gates_fit and runs_kernels(u, kernel, backward_kernel, dtypes=_DTYPES)


def long_conv_triton(
    u: Tensor, kernel: Tensor, backward_kernel: Tensor | None, in_gate: Tensor | None, out_gate: Tensor | None
) -> Tensor:
    """`long_conv` by kernels: the gates are multiplied in float32, without rounding in between for float32 rows."""
    taps, back = usable_taps(u, kernel, backward_kernel)
    keep = out_gate is not None and torch.is_grad_enabled() and out_gate.requires_grad
    return _convolve(u, taps, back, in_gate, out_gate, keep)[0]
