"""Short depth-wise convolution by compiled kernels: tiles of time and channels, casts, tasks, gradients.

Legend: `B` batch, `L` length, `D` channels, `K` taps. In kernels channels are innermost, strides are numbers of
elements, tensors are given by the address of their first element (0: none), and weights are `(K, D)`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.context import in_function_transform, is_plain_call
from hf_ssm.ops.cpu.arguments import dense_rows
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, add, fma, load_some, mul, pointer, sigmoid, splat, store_some, sub
from hf_ssm.ops.short_conv.operators import ConvInputs, short_conv_operator
from hf_ssm.ops.short_conv.reference import taps_before, to_arithmetic_dtype
from hf_ssm.ops.threads import run_tasks

__all__ = ["extend_numba", "short_conv_numba", "supports_extend", "supports_short_conv"]

# Numbers that a task of the forward writes; positions and channels of a task of the backward. Sums over positions are
# made per tile, so that they do not depend on the number of threads.
_TASK_SIZE = 1 << 16
_TILE, _WIDTH = 512, 256
_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


@kernel
def _is_padding(mask, t):
    return mask != 0 and pointer(mask, np.uint8(0))[t] == 0


@kernel
def _convolved(like, u, u_row, past, past_row, weight, bias, mask, length, channels, taps, left, t, d, lanes):
    """`Σ_i weight[i] u[t - left + i] + bias` of up to 16 channels from `d` on, with `past`, if any, before `u`."""
    x, w = pointer(u, like), pointer(weight, like)
    value = splat(like)
    if bias != 0:
        value = load_some(pointer(bias, like), d, lanes)
    if past != 0:
        before = pointer(past, like)
        for i in range(left - t):
            value = fma(load_some(before, (t + i) * past_row + d, lanes), load_some(w, i * channels + d, lanes), value)
    for i in range(max(0, left - t), min(taps, length + left - t)):
        at = t - left + i
        if not _is_padding(mask, at):
            value = fma(load_some(x, at * u_row + d, lanes), load_some(w, i * channels + d, lanes), value)
    return value


@kernel
def _forward_tile(
    like, u, u_row, past, past_row, weight, bias, mask, y, length, channels, taps, left, silu, start, stop
):
    """Positions `start` to `stop` of all channels.

    Args:
        like: 0 in the type of all numbers.
        u, u_row: `(L, D)`, and the stride of its positions.
        past, past_row: The `left` positions before `u`, `(left, D)`, or 0 for zeros.
        weight: `(K, D)`.
        bias: `(D,)` or 0.
        mask: Bytes `(L,)` or 0. A position whose byte is 0 is read as zeros, and its output is zero.
        y: Written, `(L, D)`.
        length, channels, taps, left: L, D, K, and the number of taps before the one of the current position.
        silu: Whether SiLU follows.
        start, stop: The positions to write.
    """
    out = pointer(y, like)
    for t in range(start, stop):
        padding = _is_padding(mask, t)
        for d in range(0, channels, LANES):
            lanes = channels - d
            value = splat(like)
            if not padding:
                value = _convolved(
                    like, u, u_row, past, past_row, weight, bias, mask, length, channels, taps, left, t, d, lanes
                )
                if silu:
                    value = mul(value, sigmoid(value))
            store_some(out, t * channels + d, value, lanes)


@kernel
def _slope(s):
    """Derivative of `s p` with `p = sigmoid(s)`: `p + s p (1 - p)`."""
    p = sigmoid(s)
    value = mul(s, p)
    return sub(add(p, value), mul(value, p))


@kernel
def _backward_tile(
    like,
    grad,
    grad_row,
    u,
    u_row,
    weight,
    bias,
    mask,
    rows,
    du,
    sums,
    length,
    channels,
    taps,
    left,
    silu,
    start,
    stop,
    first,
    last,
):
    """Gradients of the positions `start` to `stop` and the channels `first` to `last`.

    `ds`, the gradient of SiLU's input, is recomputed at the positions of neighbouring tiles that the tile needs, and
    held in a ring buffer of K rows.

    Args:
        like, u, u_row, weight, bias, mask, length, channels, taps, left, silu: As in `_forward_tile`.
        grad, grad_row: Gradient of `y`, `(L, D)`, and the stride of its positions.
        rows: Scratch, `(K, last - first)`.
        du: Written, `(L, D)`, or 0 if it is not needed.
        sums: Gradient of the K weights and the bias of this tile, `(K + 1, D)`, accumulated; or 0.
        start, stop, first, last: The positions and channels.
    """
    g, x, w = pointer(grad, like), pointer(u, like), pointer(weight, like)
    ring, out, total = pointer(rows, like), pointer(du, like), pointer(sums, like)
    width = last - first
    for t in range(max(0, start + left - taps + 1), stop + left):
        beyond = t >= length or _is_padding(mask, t)
        target = t - left
        writes = du != 0 and start <= target < stop
        adds = sums != 0 and start <= t < stop and not beyond
        unread = writes and _is_padding(mask, target)
        for d in range(first, last, LANES):
            lanes, c = last - d, d - first
            ds = splat(like)
            if not beyond:
                ds = load_some(g, t * grad_row + d, lanes)
                if silu:
                    s = _convolved(like, u, u_row, 0, 0, weight, bias, mask, length, channels, taps, left, t, d, lanes)
                    ds = mul(ds, _slope(s))
            store_some(ring, (t % taps) * width + c, ds, lanes)
            if adds:
                for i in range(max(0, left - t), min(taps, length + left - t)):
                    at = t - left + i
                    if not _is_padding(mask, at):
                        value = fma(ds, load_some(x, at * u_row + d, lanes), load_some(total, i * channels + d, lanes))
                        store_some(total, i * channels + d, value, lanes)
                place = taps * channels + d
                store_some(total, place, add(ds, load_some(total, place, lanes)), lanes)
            if writes:
                value = splat(like)
                if not unread:
                    for i in range(min(taps, t + 1)):
                        of = load_some(ring, ((t - i) % taps) * width + c, lanes)
                        value = fma(of, load_some(w, i * channels + d, lanes), value)
                store_some(out, target * channels + d, value, lanes)


def _dense(
    u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """u with dense channels, the weights `(K, D)` and the bias in the dtype of the arithmetic, and the mask; dense."""
    u, weight, bias = to_arithmetic_dtype(u, weight, bias)
    bias, mask = (None if t is None else t.contiguous() for t in (bias, mask))
    return dense_rows(u), weight.t().contiguous(), bias, mask


def _address(t: Tensor | None, row: int = 0) -> int:
    """Address of the first element of a row of the batch; 0 for `None`."""
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
    (batch, length, channels), (rows, taps, bias, mask) = u.shape, _dense(u, weight, bias, mask)
    dtype = rows.dtype
    y = torch.empty(u.shape, dtype=dtype)
    past = None if past is None else dense_rows(past.to(dtype))
    tile = max(1, _TASK_SIZE // max(1, channels))
    tiles = -(-length // tile)

    def task(number: int) -> None:
        row, start = number // tiles, number % tiles * tile
        _forward_tile(
            *(_ZERO[dtype], _address(rows, row), rows.stride(1)),
            *(_address(past, row), 0 if past is None else past.stride(1)),
            *(taps.data_ptr(), _address(bias), _address(mask, row), _address(y, row)),
            *(length, channels, len(taps), left, silu, start, min(length, start + tile)),
        )

    run_tasks(task, batch * tiles)
    return y.to(u.dtype)


def _run_forward(args: ConvInputs, left: int, silu: bool) -> Tensor:
    return _forward(*args, None, left, silu)


def _run_backward(
    grad: Tensor, args: ConvInputs, left: int, silu: bool, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    (u, weight, bias, mask), needs_u, needs_sums = args, wanted[0], any(wanted[1:])
    (batch, length, channels), (rows, taps, offset, mask) = u.shape, _dense(u, weight, bias, mask)
    dtype = rows.dtype
    grads = dense_rows(grad.to(dtype))
    tiles, widths = -(-length // _TILE), -(-channels // _WIDTH)
    du = torch.empty(u.shape if needs_u else (0,), dtype=dtype)
    sums = torch.zeros((batch * tiles, len(taps) + 1, channels) if needs_sums else (0,), dtype=dtype)

    def task(number: int) -> None:
        number, block = divmod(number, widths)
        row, start, first = number // tiles, number % tiles * _TILE, block * _WIDTH
        last = min(channels, first + _WIDTH)
        ring = torch.empty(len(taps), last - first, dtype=dtype)
        _backward_tile(
            *(_ZERO[dtype], _address(grads, row), grads.stride(1), _address(rows, row), rows.stride(1)),
            *(taps.data_ptr(), _address(offset), _address(mask, row), ring.data_ptr()),
            *(_address(du, row) if needs_u else 0, _address(sums, number) if needs_sums else 0),
            *(length, channels, len(taps), left, silu),
            *(start, min(length, start + _TILE), first, last),
        )

    run_tasks(task, batch * tiles * widths)
    if not needs_sums:
        return du.to(u.dtype), None, None, None
    dweight, dbias = sums[:, :-1].sum(0), sums[:, -1].sum(0)
    dweight = dweight.t().to(weight.dtype).contiguous()
    return du.to(u.dtype), dweight, dbias.to((weight if bias is None else bias).dtype), None


_operator, _ = short_conv_operator("hf_ssm::short_conv", forward=_run_forward, backward=_run_backward)


def supports_short_conv(
    u: Tensor, weight: Tensor, bias: Tensor | None, bidirectional: bool, activation: str | None, mask: Tensor | None
) -> bool:
    return u.is_floating_point() and not in_function_transform()


def short_conv_numba(
    u: Tensor, weight: Tensor, bias: Tensor | None, bidirectional: bool, activation: str | None, mask: Tensor | None
) -> Tensor:
    """`short_conv`; the rows of `u` need not be contiguous, as in a slice of a wider projection."""
    left, silu = taps_before(weight.shape[1], bidirectional), activation is not None
    if is_plain_call(u, weight, bias, mask):
        return _forward(u, weight, bias, mask, None, left, silu)
    y: Tensor = _operator(u, weight, bias, mask, left, silu)
    return y


def supports_extend(
    u: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, mask: Tensor | None
) -> bool:
    return u.is_floating_point() and is_plain_call(u, past, weight, bias, mask)


def extend_numba(
    u: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, mask: Tensor | None
) -> Tensor:
    """The causal convolution of `u` `(B, L, D)` after the inputs `past` `(B, K - 1, D)`, without gradients."""
    return _forward(u, weight, bias, mask, past, weight.shape[1] - 1, activation is not None)
