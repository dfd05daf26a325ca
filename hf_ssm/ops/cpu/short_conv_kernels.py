"""Compiled kernels of the short convolution: one tile of time and channels of one sequence.

Legend: `L` length, `D` channels, `K` taps. Channels are innermost; all strides are in numbers of elements, all tensors
are given by the address of their first element (0: there is none), weights are `(K, D)`.
"""

import numpy as np

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, add, fma, load_some, mul, pointer, sigmoid, splat, store_some, sub

__all__ = ["backward_tile", "forward_tile"]


@kernel
def _is_padding(mask, t):
    return mask != 0 and pointer(mask, np.uint8(0))[t] == 0


@kernel
def _convolved(like, u, u_row, past, past_row, weight, bias, mask, length, channels, taps, left, t, d, lanes):
    """`Σ_i weight[i] u[t - left + i] + bias` of up to 16 channels from `d` on; before `u` stands the `past`, if any."""
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
def forward_tile(
    like, u, u_row, past, past_row, weight, bias, mask, y, length, channels, taps, left, silu, start, stop
):
    """Positions `start` to `stop` of all channels.

    Args:
        like: 0 in the type of all numbers.
        u, u_row: `(L, D)`, and the stride of its positions.
        past, past_row: The `left` positions in front of `u`, `(left, D)`, or 0 where there are zeros.
        weight: `(K, D)`.
        bias: `(D,)` or 0.
        mask: Bytes `(L,)` or 0; a position of 0 is read as zeros, and its output is zero.
        y: Written, `(L, D)`.
        length, channels, taps, left: L, D, K, and how many taps stand before the current position.
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
def backward_tile(
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

    `ds`, the gradient of what SiLU is given, is computed once more for the positions of the neighbours that the tile
    needs; a ring of K rows holds it.

    Args:
        like, u, u_row, weight, bias, mask, length, channels, taps, left, silu: As in `forward_tile`.
        grad, grad_row: Gradient of `y`, `(L, D)`, and the stride of its positions.
        rows: Scratch, `(K, last - first)`.
        du: Written, `(L, D)`, or 0 where it is not wanted.
        sums: Gradient of the K weights and the bias from the positions of this tile, `(K + 1, D)`, added to; or 0.
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
