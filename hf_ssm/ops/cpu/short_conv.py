"""The compiled short convolution as operators of torch: casts, tiles, tasks, gradients.

Legend: `B` batch, `L` length, `D` channels, `K` taps.
"""

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.cpu.calling import is_plain_call
from hf_ssm.ops.cpu.pool import run_tasks

__all__ = ["short_conv_after", "short_conv_compiled"]

# Numbers that a task of the forward writes; positions and channels of a task of the backward. The sums over positions
# are cut at these tiles on every machine, so that the number of threads changes no digit.
_TASK_SIZE = 1 << 16
_TILE, _WIDTH = 512, 256
_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def _common_type(*tensors: Tensor | None) -> torch.dtype:
    """The type of the arithmetic."""
    dtype = torch.float32
    for t in tensors:
        dtype = dtype if t is None else torch.promote_types(dtype, t.dtype)
    return dtype


def _in_rows(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t` in the type `dtype`, with channels side by side."""
    t = t.to(dtype)
    return t if t.stride(-1) == 1 else t.contiguous()


def _address(t: Tensor | None, row: int = 0) -> int:
    """Of the first element of a row of the batch; 0 for None."""
    return 0 if t is None else t.data_ptr() + row * t.stride(0) * t.element_size()


def _forward(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    past: Tensor | None,
    left: int,
    silu: bool,
) -> Tensor:
    from hf_ssm.ops.cpu.short_conv_kernels import forward_tile

    dtype = _common_type(u, weight, bias)
    batch, length, channels = u.shape
    y = torch.empty(u.shape, dtype=dtype)
    rows, taps = _in_rows(u, dtype), weight.to(dtype).t().contiguous()
    bias = None if bias is None else bias.to(dtype).contiguous()
    mask = None if mask is None else mask.contiguous()
    past = None if past is None else _in_rows(past, dtype)
    tile = max(1, _TASK_SIZE // max(1, channels))
    tiles = -(-length // tile)

    def task(number: int) -> None:
        row, start = number // tiles, number % tiles * tile
        forward_tile(
            *(_ZERO[dtype], _address(rows, row), rows.stride(1)),
            *(_address(past, row), 0 if past is None else past.stride(1)),
            *(taps.data_ptr(), _address(bias), _address(mask, row), _address(y, row)),
            *(length, channels, len(taps), left, silu, start, min(length, start + tile)),
        )

    run_tasks(task, batch * tiles)
    return y.to(u.dtype)


def _backward(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    left: int,
    silu: bool,
    needs_u: bool,
    needs_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from hf_ssm.ops.cpu.short_conv_kernels import backward_tile

    dtype = _common_type(u, weight, bias)
    batch, length, channels = u.shape
    rows, grads, taps = _in_rows(u, dtype), _in_rows(grad, dtype), weight.to(dtype).t().contiguous()
    offset = None if bias is None else bias.to(dtype).contiguous()
    mask = None if mask is None else mask.contiguous()
    tiles, widths = -(-length // _TILE), -(-channels // _WIDTH)
    du = torch.empty(u.shape if needs_u else (0,), dtype=dtype)
    sums = torch.zeros((batch * tiles, len(taps) + 1, channels) if needs_sums else (0,), dtype=dtype)

    def task(number: int) -> None:
        number, block = divmod(number, widths)
        row, start, first = number // tiles, number % tiles * _TILE, block * _WIDTH
        last = min(channels, first + _WIDTH)
        ring = torch.empty(len(taps), last - first, dtype=dtype)
        backward_tile(
            *(_ZERO[dtype], _address(grads, row), grads.stride(1), _address(rows, row), rows.stride(1)),
            *(taps.data_ptr(), _address(offset), _address(mask, row), ring.data_ptr()),
            *(_address(du, row) if needs_u else 0, _address(sums, number) if needs_sums else 0),
            *(length, channels, len(taps), left, silu),
            *(start, min(length, start + _TILE), first, last),
        )

    run_tasks(task, batch * tiles * widths)
    if not needs_sums:
        return du.to(u.dtype), weight.new_empty(0), weight.new_empty(0)
    dweight, dbias = sums[:, :-1].sum(0), sums[:, -1].sum(0)
    dweight = dweight.t().to(weight.dtype).contiguous()
    return du.to(u.dtype), dweight, dbias.to((weight if bias is None else bias).dtype)


@torch.library.custom_op("hf_ssm::short_conv", mutates_args=())
def _operator(u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, left: int, silu: bool) -> Tensor:
    return _forward(u, weight, bias, mask, None, left, silu)


@_operator.register_fake
def _(u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, left: int, silu: bool) -> Tensor:
    return torch.empty(u.shape, dtype=u.dtype, device=u.device)


@torch.library.custom_op("hf_ssm::short_conv_backward", mutates_args=())
def _operator_backward(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    left: int,
    silu: bool,
    needs_u: bool,
    needs_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(grad, u, weight, bias, mask, left, silu, needs_u, needs_sums)


@_operator_backward.register_fake
def _(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    left: int,
    silu: bool,
    needs_u: bool,
    needs_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    du = torch.empty(u.shape if needs_u else (0,), dtype=u.dtype, device=u.device)
    if not needs_sums:
        return du, weight.new_empty(0), weight.new_empty(0)
    dweight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return du, dweight, (weight if bias is None else bias).new_empty(len(weight))


def _save(ctx, inputs, output) -> None:
    u, weight, bias, mask, ctx.left, ctx.silu = inputs
    ctx.save_for_backward(u, weight, bias, mask)


def _gradients(ctx, grad: Tensor):
    needs_u, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    du, dweight, dbias = _operator_backward(
        grad, *ctx.saved_tensors, ctx.left, ctx.silu, needs_u, needs_weight or needs_bias
    )
    return du if needs_u else None, dweight if needs_weight else None, dbias if needs_bias else None, None, None, None


_operator.register_autograd(_gradients, setup_context=_save)


def short_conv_compiled(
    u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, left: int, silu: bool
) -> Tensor:
    """`short_conv` by compiled kernels, differentiable once.

    Args:
        u: `(B, L, D)`; rows may lie apart, as those of one part of a wider projection do.
        weight: `(D, K)`.
        bias: `(D,)` or `None`.
        mask: `(B, L)`, bool, or `None`.
        left: Taps before the one that meets the current input.
        silu: Whether SiLU follows.

    Returns:
        `(B, L, D)` in the dtype of `u`, contiguous.
    """
    if is_plain_call(u, weight, bias, mask):
        return _forward(u, weight, bias, mask, None, left, silu)
    return _operator(u, weight, bias, mask, left, silu)


def short_conv_after(
    u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, past: Tensor, silu: bool
) -> Tensor:
    """The causal convolution of `u` `(B, L, D)` after the inputs `past` `(B, K - 1, D)`, where `is_plain_call`."""
    return _forward(u, weight, bias, mask, past, weight.shape[1] - 1, silu)
