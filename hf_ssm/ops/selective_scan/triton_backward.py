"""The backward kernels of the selective scan.

The states are computed again from those that the forward kept at the boundaries of segments: a program goes through its
chunk segment by segment, from the last to the first. It runs forward through a segment once and writes the state before
each tile of a few positions to scratch memory, which stays in the caches; then, again from the last tile to the first,
it keeps the decayed states of a tile in registers and runs back through them with the cotangent of the state.

The cotangent obeys the same recurrence backwards: `cotangent_ends` computes the cotangent that a chunk adds,
`triton_forward.carry` that after each chunk, and the chunks then run in parallel. With a single chunk only
`scan_backward` runs.

Sums over channels (gradients of B, C and of a shared step) are written for each block of channels, sums over positions
(of A, D and the bias) for each chunk, and added by torch.

Dimensions: `B` batch, `L` length, `D` channels, `G` blocks of channels, `N` states, `K` chunks, `S` segments, `P`
planes.
"""

import math

import triton
import triton.language as tl

from hf_ssm.ops.gpu.kernels import config, kernel
from hf_ssm.ops.gpu.language import sigmoid, silu, silu_slope
from hf_ssm.ops.selective_scan.triton_forward import EXAMPLES, SEGMENT
from hf_ssm.ops.selective_scan.triton_tiles import (
    advance,
    decay_of,
    flag_at,
    load_parameter,
    load_planes,
    load_row,
    load_state,
    load_weights,
    step_at,
    store_state,
    store_weights,
    sum_of_products,
)

__all__ = ["TILES", "cotangent_ends", "scan_backward"]

TILE = 2
TILES = SEGMENT // TILE
"""Tiles of a segment."""
_LOG_2 = tl.constexpr(math.log(2))
_TURN = tl.constexpr(math.tau)


@triton.jit
def _add_output(g_real, g_imag, grad, c_real, c_imag, COMPLEX: tl.constexpr):
    """Add the cotangent of a state through its output, `conj(C) grad`, twice that for complex states."""
    if COMPLEX:
        grad = 2.0 * grad
        return g_real + grad[None, :] * c_real, g_imag - grad[None, :] * c_imag
    return g_real + grad[None, :] * c_real, g_imag


@triton.jit
def _back(g_real, g_imag, decay_real, decay_imag, fresh, COMPLEX: tl.constexpr):
    """The cotangent of the state before a position."""
    if COMPLEX:
        decay_imag = -decay_imag
    g_real, g_imag = advance(g_real, g_imag, decay_real, decay_imag, fresh, COMPLEX)
    return g_real, g_imag


@kernel(
    configs=[config(BLOCK_D=64, TILE=8, num_warps=2), config(BLOCK_D=32, TILE=4, num_warps=1)],
    key=("length", "channels"),
    examples={
        dtype: {
            **{k: v for k, v in example.items() if k not in ("u", "u_batch", "u_row", "B", "B_batch", "B_row", "D")},
            "grad": f"*{dtype}",
            **dict.fromkeys(("ends", "spans"), "*fp32"),
            **dict.fromkeys(("grad_batch", "grad_row"), "i32:16"),
        }
        for dtype, example in EXAMPLES.items()
    },
)
@triton.jit
def cotangent_ends(
    grad,
    delta,
    A,
    C,
    z,
    bias,
    mask,
    starts,
    ends,
    spans,
    grad_batch,
    grad_row,
    delta_batch,
    delta_row,
    z_batch,
    z_row,
    C_batch,
    C_row,
    length,
    channels,
    chunk,
    SOFTPLUS: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_BIAS: tl.constexpr,
    COMPLEX: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the cotangent of the state before each chunk from a zero cotangent after it, and the sum of its steps.

    Args:
        grad: Gradient of y `(B, L, D)` with strides; the other inputs as in `triton_forward.scan`.
        ends: `(B, K, P, N, D)`, float32.
        spans: `(B, K, D)`, float32.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row, index = tl.program_id(2).to(tl.int64), tl.program_id(1)
    begin = index * chunk
    stop = tl.minimum(begin + chunk, length)
    place = row * tl.num_programs(1) + index
    a_real, a_turns = load_planes(A, n, d, STATES, channels, COMPLEX)
    offset = tl.zeros([BLOCK_D], tl.float32)
    if bias is not None:
        offset = load_parameter(bias, d, channels, SHARED_BIAS)
    g_real, g_imag = load_state(None, 0, n, d, STATES, channels, COMPLEX)
    span = tl.zeros([BLOCK_D], tl.float32)
    tiles = tl.cdiv(stop - begin, TILE)
    for number in range(0, tiles):
        first = begin + (tiles - 1 - number) * TILE
        for i in tl.static_range(TILE):
            t = first + TILE - 1 - i
            at = t.to(tl.int64)
            there = t < stop
            if mask is not None:
                there = flag_at(mask + row * length, t, stop)
            fresh = None
            if starts is not None:
                fresh = flag_at(starts + row * length, t, stop)
            delta_at = delta + row * delta_batch + at * delta_row
            _, step = step_at(delta_at, offset, d, there, channels, SOFTPLUS, SHARED)
            slope = load_row(grad + row * grad_batch + at * grad_row, d, there, channels)
            if z is not None:
                slope *= silu(load_row(z + row * z_batch + at * z_row, d, there, channels))
            c_real, c_imag = load_weights(C + row * C_batch + at * C_row, n, there, STATES, COMPLEX)
            g_real, g_imag = _add_output(g_real, g_imag, slope, c_real, c_imag, COMPLEX)
            decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
            g_real, g_imag = _back(g_real, g_imag, decay_real, decay_imag, fresh, COMPLEX)
            span += step
    store_state(ends, place, g_real, g_imag, n, d, STATES, channels, COMPLEX)
    tl.store(spans + place * channels + d, span, mask=d < channels)


@kernel(
    configs=[config(BLOCK_D=128, num_warps=4), config(BLOCK_D=64, num_warps=2)],
    key=("length", "channels"),
    examples={
        dtype: {
            **example,
            **dict.fromkeys(("grad", "grad_u", "grad_delta", "grad_z"), f"*{dtype}"),
            **dict.fromkeys(("saved", "after", "scratch", "grad_B", "grad_C", "grad_A", "grad_D"), "*fp32"),
            **dict.fromkeys(("grad_bias", "grad_state"), "*fp32"),
            **dict.fromkeys(("grad_batch", "grad_row"), "i32:16"),
            "SEGMENT": SEGMENT,
            "TILE": TILE,
        }
        for dtype, example in EXAMPLES.items()
    },
)
@triton.jit
def scan_backward(
    grad,
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    bias,
    mask,
    starts,
    saved,
    after,
    scratch,
    grad_u,
    grad_delta,
    grad_A,
    grad_B,
    grad_C,
    grad_D,
    grad_z,
    grad_bias,
    grad_state,
    grad_batch,
    grad_row,
    u_batch,
    u_row,
    delta_batch,
    delta_row,
    z_batch,
    z_row,
    B_batch,
    B_row,
    C_batch,
    C_row,
    length,
    channels,
    chunk,
    SOFTPLUS: tl.constexpr,
    SHARED: tl.constexpr,
    SHARED_BIAS: tl.constexpr,
    COMPLEX: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SEGMENT: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write all gradients; inputs as in `triton_forward.scan`.

    Args:
        grad: Gradient of y, `(B, L, D)` with strides.
        saved: State before each segment, `(B, S, P, N, D)`.
        after: Cotangent of the state after each chunk, `(B, K, P, N, D)`, or absent for zero.
        scratch: `(B, K, SEGMENT / TILE, P, N, D)`, float32.
        grad_u: `(B, L, D)`; so is `grad_z`, absent without z, and `grad_delta`, if the step is `SHARED` `(G, B, L)`.
        grad_A: `(B, K, P, N, D)`, float32.
        grad_B: `(G, B, L, N, P)`, float32; so is `grad_C`.
        grad_D: `(B, K, D)`, float32, or absent; so is `grad_bias`.
        grad_state: Gradient of the initial state, `(B, P, N, D)`, float32.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row, index = tl.program_id(2).to(tl.int64), tl.program_id(1)
    tiles: tl.constexpr = SEGMENT // TILE
    planes: tl.constexpr = 2 if COMPLEX else 1
    begin = index * chunk
    stop = tl.minimum(begin + chunk, length)
    place = row * tl.num_programs(1) + index
    # Row of the sums over a block of channels.
    sums_row = (tl.program_id(0).to(tl.int64) * tl.num_programs(2) + row) * length
    inside = d < channels
    a_real, a_turns = load_planes(A, n, d, STATES, channels, COMPLEX)
    offset = tl.zeros([BLOCK_D], tl.float32)
    if bias is not None:
        offset = load_parameter(bias, d, channels, SHARED_BIAS)
    skip = tl.zeros([BLOCK_D], tl.float32)
    if D is not None:
        skip = load_parameter(D, d, channels, False)
    g_real, g_imag = load_state(after, place, n, d, STATES, channels, COMPLEX)
    sum_A_real, sum_A_imag = load_state(None, 0, n, d, STATES, channels, COMPLEX)
    sum_D, sum_bias = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
    segments = tl.cdiv(stop - begin, SEGMENT)
    for number in range(0, segments):
        segment = begin + (segments - 1 - number) * SEGMENT
        count = tl.cdiv(tl.minimum(SEGMENT, stop - segment), TILE)
        state = row * tl.cdiv(length, SEGMENT) + segment // SEGMENT
        x_real, x_imag = load_state(saved, state, n, d, STATES, channels, COMPLEX)
        for tile in range(0, count):
            store_state(scratch, place * tiles + tile, x_real, x_imag, n, d, STATES, channels, COMPLEX)
            for i in tl.static_range(TILE):
                t = segment + tile * TILE + i
                at = t.to(tl.int64)
                there = t < stop
                if mask is not None:
                    there = flag_at(mask + row * length, t, stop)
                fresh = None
                if starts is not None:
                    fresh = flag_at(starts + row * length, t, stop)
                delta_at = delta + row * delta_batch + at * delta_row
                _, step = step_at(delta_at, offset, d, there, channels, SOFTPLUS, SHARED)
                x = step * load_row(u + row * u_batch + at * u_row, d, there, channels)
                b_real, b_imag = load_weights(B + row * B_batch + at * B_row, n, there, STATES, COMPLEX)
                decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
                x_real, x_imag = advance(x_real, x_imag, decay_real, decay_imag, fresh, COMPLEX)
                x_real += x[None, :] * b_real
                if COMPLEX:
                    x_imag += x[None, :] * b_imag
        for back in range(0, count):
            tile = count - 1 - back
            first = segment + tile * TILE
            x_real, x_imag = load_state(scratch, place * tiles + tile, n, d, STATES, channels, COMPLEX)
            kept_real, kept_imag, steps, raws = (), (), (), ()
            for i in tl.static_range(TILE):
                t = first + i
                at = t.to(tl.int64)
                there = t < stop
                if mask is not None:
                    there = flag_at(mask + row * length, t, stop)
                fresh = None
                if starts is not None:
                    fresh = flag_at(starts + row * length, t, stop)
                delta_at = delta + row * delta_batch + at * delta_row
                raw, step = step_at(delta_at, offset, d, there, channels, SOFTPLUS, SHARED)
                x = step * load_row(u + row * u_batch + at * u_row, d, there, channels)
                b_real, b_imag = load_weights(B + row * B_batch + at * B_row, n, there, STATES, COMPLEX)
                decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
                x_real, x_imag = advance(x_real, x_imag, decay_real, decay_imag, fresh, COMPLEX)
                kept_real += (x_real,)  # type: ignore[assignment]
                kept_imag += (x_imag,)  # type: ignore[assignment]
                steps += (step,)  # type: ignore[assignment]
                raws += (raw,)  # type: ignore[assignment]
                x_real += x[None, :] * b_real
                if COMPLEX:
                    x_imag += x[None, :] * b_imag
            for j in tl.static_range(TILE):
                t = first + TILE - 1 - j
                at = t.to(tl.int64)
                there = t < stop
                if mask is not None:
                    there = flag_at(mask + row * length, t, stop)
                fresh = None
                if starts is not None:
                    fresh = flag_at(starts + row * length, t, stop)
                step, raw = steps[TILE - 1 - j], raws[TILE - 1 - j]
                h_real, h_imag = kept_real[TILE - 1 - j], kept_imag[TILE - 1 - j]  # type: ignore[var-annotated]
                value = load_row(u + row * u_batch + at * u_row, d, there, channels)
                x = step * value
                b_real, b_imag = load_weights(B + row * B_batch + at * B_row, n, there, STATES, COMPLEX)
                c_real, c_imag = load_weights(C + row * C_batch + at * C_row, n, there, STATES, COMPLEX)
                x_real, x_imag = h_real + x[None, :] * b_real, h_imag
                if COMPLEX:
                    x_imag = h_imag + x[None, :] * b_imag
                target = (row * length + t) * channels + d
                slope = load_row(grad + row * grad_batch + at * grad_row, d, there, channels)
                if z is not None:
                    gate = load_row(z + row * z_batch + at * z_row, d, there, channels)
                    if COMPLEX:
                        total = 2.0 * tl.sum(c_real * x_real - c_imag * x_imag, 0)
                    else:
                        total = tl.sum(c_real * x_real, 0)
                    wanted = slope * (total + skip * value) * silu_slope(gate)
                    wanted = tl.where(there, wanted, 0.0)
                    tl.store(grad_z + target, wanted.to(grad_z.dtype.element_ty), mask=(t < stop) & inside)
                    slope *= silu(gate)
                g_real, g_imag = _add_output(g_real, g_imag, slope, c_real, c_imag, COMPLEX)
                sum_D += slope * value

                # Sums over channels.
                at_sums = (sums_row + t) * STATES * planes
                if COMPLEX:
                    dc_real, dc_imag = (
                        tl.sum(2.0 * slope[None, :] * x_real, 1),
                        tl.sum(-2.0 * slope[None, :] * x_imag, 1),
                    )
                    db_real, db_imag = tl.sum(x[None, :] * g_real, 1), tl.sum(x[None, :] * g_imag, 1)
                else:
                    dc_real = tl.sum(slope[None, :] * x_real, 1)
                    db_real = tl.sum(x[None, :] * g_real, 1)
                    dc_imag, db_imag = dc_real, db_real
                store_weights(grad_B + at_sums, n, db_real, db_imag, t < stop, STATES, COMPLEX)
                store_weights(grad_C + at_sums, n, dc_real, dc_imag, t < stop, STATES, COMPLEX)

                # The cotangent of the exponent, conj(h) g, and of the input.
                of_input = sum_of_products(b_real, b_imag, g_real, g_imag, 0, COMPLEX)
                if COMPLEX:
                    e_real, e_imag = h_real * g_real + h_imag * g_imag, h_real * g_imag - h_imag * g_real
                    of_step = tl.sum(a_real * e_real * _LOG_2 + a_turns * e_imag * _TURN, 0)
                    sum_A_imag += step[None, :] * e_imag
                else:
                    e_real = h_real * g_real
                    of_step = tl.sum(a_real * e_real, 0) * _LOG_2
                sum_A_real += step[None, :] * e_real
                of_step = of_step + value * of_input
                if SOFTPLUS:
                    of_step *= sigmoid(raw)
                of_step = tl.where(there, of_step, 0.0)
                sum_bias += of_step
                of_value = tl.where(there, step * of_input + skip * slope, 0.0)
                tl.store(grad_u + target, of_value.to(grad_u.dtype.element_ty), mask=(t < stop) & inside)
                if SHARED:
                    tl.store(grad_delta + sums_row + t, tl.sum(of_step, 0), mask=t < stop)
                else:
                    tl.store(grad_delta + target, of_step.to(grad_delta.dtype.element_ty), mask=(t < stop) & inside)

                decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
                g_real, g_imag = _back(g_real, g_imag, decay_real, decay_imag, fresh, COMPLEX)
    store_state(grad_A, place, sum_A_real, sum_A_imag, n, d, STATES, channels, COMPLEX)
    if grad_D is not None:
        tl.store(grad_D + place * channels + d, sum_D, mask=inside)
    if grad_bias is not None:
        tl.store(grad_bias + place * channels + d, sum_bias, mask=inside)
    if begin == 0:
        store_state(grad_state, row, g_real, g_imag, n, d, STATES, channels, COMPLEX)
