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
    enter,
    load_parameter,
    load_planes,
    load_row,
    load_state,
    load_weights,
    output_of,
    row_of,
    step_at,
    store_state,
    sum_of_products,
)

__all__ = ["BLOCK_D", "cotangent_ends", "scan_backward"]

# With 4 warps a thread holds a quarter of the states of a channel, so that the states of a tile fit in its registers.
BLOCK_D = 32
"""Channels of a block of `scan_backward` in all configurations: the number of its partial sums depends on it."""
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
def _back(g_real, g_imag, decay_real, decay_imag, COMPLEX: tl.constexpr):
    """The cotangent of the state before a position."""
    if COMPLEX:
        decay_imag = -decay_imag
    g_real, g_imag = advance(g_real, g_imag, decay_real, decay_imag, COMPLEX)
    return g_real, g_imag


@triton.jit
def _store_sums(row, a_real, a_imag, b, factor: tl.constexpr, n, there, STATES: tl.constexpr, COMPLEX: tl.constexpr):
    """Write the sums of `factor a b` over the channels, of a `(N, D)` and b `(D,)`, as a row of a tensor like B."""
    b = (factor * b)[None, :]
    keep = there & (n < STATES)
    if COMPLEX:
        tl.store(row + 2 * n, tl.sum(a_real * b, 1), mask=keep)
        tl.store(row + 2 * n + 1, tl.sum(a_imag * b, 1), mask=keep)
    else:
        tl.store(row + n, tl.sum(a_real * b, 1), mask=keep)


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
    grad += row * grad_batch
    delta += row * delta_batch
    C += row * C_batch
    if z is not None:
        z += row * z_batch
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
        grad_tile, delta_tile = row_of(grad, first, grad_row), row_of(delta, first, delta_row)
        C_tile = row_of(C, first, C_row)
        for i in tl.static_range(TILE - 1, -1, -1):
            there = first + i < stop
            _, step = step_at(delta_tile + i * delta_row, offset, d, there, channels, SOFTPLUS, SHARED)
            slope = load_row(grad_tile + i * grad_row, d, there, channels)
            if z is not None:
                slope *= silu(load_row(row_of(z, first, z_row) + i * z_row, d, there, channels))
            c_real, c_imag = load_weights(C_tile + i * C_row, n, there, STATES, COMPLEX)
            g_real, g_imag = _add_output(g_real, g_imag, slope, c_real, c_imag, COMPLEX)
            decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
            g_real, g_imag = _back(g_real, g_imag, decay_real, decay_imag, COMPLEX)
            span += step
    store_state(ends, place, g_real, g_imag, n, d, STATES, channels, COMPLEX)
    tl.store(spans + place * channels + d, span, mask=d < channels)


@kernel(
    configs=[config(BLOCK_D=BLOCK_D, TILE=2, num_warps=4), config(BLOCK_D=BLOCK_D, TILE=4, num_warps=4)],
    key=("length", "channels"),
    examples={
        dtype: {
            **example,
            **dict.fromkeys(("grad", "grad_u", "grad_delta", "grad_z"), f"*{dtype}"),
            **dict.fromkeys(("saved", "after", "scratch", "grad_weights", "sums", "grad_state"), "*fp32"),
            **dict.fromkeys(("grad_batch", "grad_row"), "i32:16"),
            "SEGMENT": SEGMENT,
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
    saved,
    after,
    scratch,
    grad_u,
    grad_delta,
    grad_z,
    grad_weights,
    sums,
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
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write all gradients; inputs as in `triton_forward.scan`.

    Args:
        grad: Gradient of y, `(B, L, D)` with strides.
        saved: State before each segment, `(B, S, P, N, D)`.
        after: Cotangent of the state after each chunk, `(B, K, P, N, D)`, or absent for zero.
        scratch: `(B, K, SEGMENT / TILE, P, N, D)`, float32.
        grad_u: `(B, L, D)`; so is `grad_z`, absent without z, and `grad_delta`, if the step is `SHARED` `(G, B, L)`.
        grad_weights: Of B and of C for each block of channels, `(G, B, L, 2, N, P)`, float32.
        sums: Of A `(P, N, D)`, D and the bias for each chunk, `(B, K, P N + 2, D)`, float32.
        grad_state: Gradient of the initial state, `(B, P, N, D)`, float32.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row, index = tl.program_id(2).to(tl.int64), tl.program_id(1)
    grad += row * grad_batch
    delta += row * delta_batch
    C += row * C_batch
    if z is not None:
        z += row * z_batch
    u += row * u_batch
    B += row * B_batch
    grad_u += row * length * channels
    if z is not None:
        grad_z += row * length * channels
    if not SHARED:
        grad_delta += row * length * channels
    tiles: tl.constexpr = SEGMENT // TILE
    planes: tl.constexpr = 2 if COMPLEX else 1
    begin = index * chunk
    stop = tl.minimum(begin + chunk, length)
    place = row * tl.num_programs(1) + index
    # Row of the sums over a block of channels.
    sums_row = (tl.program_id(0).to(tl.int64) * tl.num_programs(2) + row) * length
    grad_weights += sums_row * 2 * STATES * planes
    if SHARED:
        grad_delta += sums_row
    inside = d < channels
    a_real, a_turns = load_planes(A, n, d, STATES, channels, COMPLEX)
    matrix = (a_real, a_turns)
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
        before = row * tl.cdiv(length, SEGMENT) + segment // SEGMENT
        x_real, x_imag = load_state(saved, before, n, d, STATES, channels, COMPLEX)
        for tile in range(0, count):
            store_state(scratch, place * tiles + tile, x_real, x_imag, n, d, STATES, channels, COMPLEX)
            first = segment + tile * TILE
            u_tile, delta_tile = row_of(u, first, u_row), row_of(delta, first, delta_row)
            B_tile = row_of(B, first, B_row)
            for i in tl.static_range(TILE):
                there = first + i < stop
                state = (x_real, x_imag)
                rows = (u_tile + i * u_row, delta_tile + i * delta_row, B_tile + i * B_row)
                _, _, x_real, x_imag, _, _, _ = enter(
                    state, rows, matrix, offset, there, n, d, channels, SOFTPLUS, SHARED, STATES, COMPLEX
                )
        tl.debug_barrier()
        for back in range(0, count):
            tile = count - 1 - back
            first = segment + tile * TILE
            u_tile, delta_tile = row_of(u, first, u_row), row_of(delta, first, delta_row)
            B_tile, C_tile = row_of(B, first, B_row), row_of(C, first, C_row)
            grad_tile = row_of(grad, first, grad_row)
            x_real, x_imag = load_state(scratch, place * tiles + tile, n, d, STATES, channels, COMPLEX)
            kept_real, kept_imag, steps, raws = (), (), (), ()
            for i in tl.static_range(TILE):
                there = first + i < stop
                state = (x_real, x_imag)
                rows = (u_tile + i * u_row, delta_tile + i * delta_row, B_tile + i * B_row)
                h_real, h_imag, x_real, x_imag, _, raw, step = enter(
                    state, rows, matrix, offset, there, n, d, channels, SOFTPLUS, SHARED, STATES, COMPLEX
                )
                kept_real += (h_real,)  # type: ignore[assignment]
                kept_imag += (h_imag,)  # type: ignore[assignment]
                steps += (step,)  # type: ignore[assignment]
                raws += (raw,)  # type: ignore[assignment]
            for i in tl.static_range(TILE - 1, -1, -1):
                t = first + i
                there = t < stop
                keep = (t < stop) & inside
                step, h_real, h_imag = steps[i], kept_real[i], kept_imag[i]
                value = load_row(u_tile + i * u_row, d, there, channels)
                slope = load_row(grad_tile + i * grad_row, d, there, channels)
                b_real, b_imag = load_weights(B_tile + i * B_row, n, there, STATES, COMPLEX)
                c_real, c_imag = load_weights(C_tile + i * C_row, n, there, STATES, COMPLEX)
                x = step * value
                x_real, x_imag = h_real + x[None, :] * b_real, h_imag
                if COMPLEX:
                    x_imag = h_imag + x[None, :] * b_imag
                if z is not None:
                    gate = load_row(row_of(z, first, z_row) + i * z_row, d, there, channels)
                    total = output_of(x_real, x_imag, c_real, c_imag, COMPLEX) + skip * value
                    of_gate = tl.where(there, slope * total * silu_slope(gate), 0.0)
                    target = row_of(grad_z, t, channels) + d
                    tl.store(target, of_gate.to(grad_z.dtype.element_ty), mask=keep)
                    slope *= silu(gate)
                g_real, g_imag = _add_output(g_real, g_imag, slope, c_real, c_imag, COMPLEX)
                sum_D += slope * value

                # Sums over channels.
                weights_row = row_of(grad_weights, t, 2 * STATES * planes)
                _store_sums(weights_row, g_real, g_imag, x, 1, n, t < stop, STATES, COMPLEX)
                _store_sums(weights_row + STATES * planes, x_real, -x_imag, slope, planes, n, t < stop, STATES, COMPLEX)

                # The cotangents of the input, of the exponent step A, which is conj(h) g, and of the step.
                of_input = sum_of_products(b_real, b_imag, g_real, g_imag, 0, COMPLEX)
                if COMPLEX:
                    e_real, e_imag = h_real * g_real + h_imag * g_imag, h_real * g_imag - h_imag * g_real
                    of_step = tl.sum(a_real * e_real * _LOG_2 + a_turns * e_imag * _TURN, 0)
                    sum_A_imag += step[None, :] * e_imag
                else:
                    e_real = h_real * g_real
                    of_step = tl.sum(a_real * e_real, 0) * _LOG_2
                sum_A_real += step[None, :] * e_real
                of_step += value * of_input
                if SOFTPLUS:
                    of_step *= sigmoid(raws[i])
                of_step = tl.where(there, of_step, 0.0)
                sum_bias += of_step
                of_value = tl.where(there, step * of_input + skip * slope, 0.0)
                tl.store(row_of(grad_u, t, channels) + d, of_value.to(grad_u.dtype.element_ty), mask=keep)
                if SHARED:
                    tl.store(grad_delta + t, tl.sum(of_step, 0), mask=t < stop)
                else:
                    target = row_of(grad_delta, t, channels) + d
                    tl.store(target, of_step.to(grad_delta.dtype.element_ty), mask=keep)

                decay_real, decay_imag = decay_of(step, a_real, a_turns, COMPLEX)
                g_real, g_imag = _back(g_real, g_imag, decay_real, decay_imag, COMPLEX)
        tl.debug_barrier()
    total_row = sums + place * (STATES * planes + 2) * channels
    store_state(total_row, 0, sum_A_real, sum_A_imag, n, d, STATES, channels, COMPLEX)
    tl.store(total_row + STATES * planes * channels + d, sum_D, mask=inside)
    tl.store(total_row + (STATES * planes + 1) * channels + d, sum_bias, mask=inside)
    if begin == 0:
        store_state(grad_state, row, g_real, g_imag, n, d, STATES, channels, COMPLEX)
