"""The forward kernels of the selective scan, and the kernel that carries states from chunk to chunk.

The sequence is divided into chunks, which run in parallel: `chunk_ends` computes the state that a chunk adds and the
sum of its steps, `carry` the states before all chunks from those, and `scan` the outputs. With a single chunk only
`scan` runs. See `triton_tiles.py` for how a program is laid out.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `K` chunks, `S` segments, `P` planes.
"""

import triton
import triton.language as tl

from hf_ssm.ops.gpu.kernels import config, kernel
from hf_ssm.ops.gpu.language import silu
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
    store_state,
)

__all__ = ["EXAMPLES", "SEGMENT", "carry", "chunk_ends", "scan"]

SEGMENT = 64
"""Positions from one state that the forward keeps for the backward to the next; chunks are multiples of it."""

_STRIDES = ("u_batch", "u_row", "delta_batch", "delta_row", "z_batch", "z_row", "B_batch", "B_row", "C_batch", "C_row")
# Real states in half precision, and complex states in single precision, with all options.
EXAMPLES = {
    dtype: {
        **dict.fromkeys(("u", "delta", "B", "C", "z"), f"*{dtype}"),
        **dict.fromkeys(("A", "D", "bias"), "*fp32"),
        **dict.fromkeys(_STRIDES, "i32:16"),
        **dict.fromkeys(("length", "chunk"), "i32"),
        "channels": "i32:16",
        "SOFTPLUS": True,
        "SHARED": False,
        "SHARED_BIAS": False,
        "COMPLEX": dtype == "fp32",
        "STATES": 8 if dtype == "fp32" else 16,
        "BLOCK_N": 8 if dtype == "fp32" else 16,
    }
    for dtype in ("bf16", "fp32")
}


def _example(*names: str, **more: object) -> dict[str, dict[str, object]]:
    return {dtype: {**{name: example[name] for name in names}, **more} for dtype, example in EXAMPLES.items()}


_INPUTS = ("u", "delta", "A", "B", "bias", "u_batch", "u_row", "delta_batch", "delta_row", "B_batch")
_SIZES = ("B_row", "length", "channels", "chunk", "SOFTPLUS", "SHARED", "SHARED_BIAS", "COMPLEX", "STATES", "BLOCK_N")


@kernel(
    configs=[config(BLOCK_D=64, TILE=8, num_warps=2), config(BLOCK_D=32, TILE=4, num_warps=1)],
    key=("length", "channels"),
    examples=_example(*_INPUTS, *_SIZES, ends="*fp32", spans="*fp32"),
)
@triton.jit
def chunk_ends(
    u,
    delta,
    A,
    B,
    bias,
    ends,
    spans,
    u_batch,
    u_row,
    delta_batch,
    delta_row,
    B_batch,
    B_row,
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
    """Write the state after each chunk from a zero state before it, and the sum of its steps.

    Args:
        u: `(B, L, D)` with strides; so are `delta`, `(B, L, 1)` if `SHARED`, and B `(B, L, N)`.
        A: `(P, N, D)`, by `scaled_matrix`.
        bias: `(D,)`, or `(1,)` if `SHARED_BIAS`.
        ends: `(B, K, P, N, D)`, float32.
        spans: `(B, K, D)`, float32.
        chunk: Positions of a chunk.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row, index = tl.program_id(2).to(tl.int64), tl.program_id(1)
    u += row * u_batch
    delta += row * delta_batch
    B += row * B_batch
    begin = index * chunk
    stop = tl.minimum(begin + chunk, length)
    place = row * tl.num_programs(1) + index
    matrix = load_planes(A, n, d, STATES, channels, COMPLEX)
    offset = tl.zeros([BLOCK_D], tl.float32)
    if bias is not None:
        offset = load_parameter(bias, d, channels, SHARED_BIAS)
    x_real, x_imag = load_state(None, 0, n, d, STATES, channels, COMPLEX)
    span = tl.zeros([BLOCK_D], tl.float32)
    for number in range(0, tl.cdiv(stop - begin, TILE)):
        first = begin + number * TILE
        u_tile, delta_tile = row_of(u, first, u_row), row_of(delta, first, delta_row)
        B_tile = row_of(B, first, B_row)
        for i in tl.static_range(TILE):
            there = first + i < stop
            state = (x_real, x_imag)
            rows = (u_tile + i * u_row, delta_tile + i * delta_row, B_tile + i * B_row)
            _, _, x_real, x_imag, _, _, step = enter(
                state, rows, matrix, offset, there, n, d, channels, SOFTPLUS, SHARED, STATES, COMPLEX
            )
            span += step
    store_state(ends, place, x_real, x_imag, n, d, STATES, channels, COMPLEX)
    tl.store(spans + place * channels + d, span, mask=d < channels)


@kernel(
    configs=[config(BLOCK_D=32, num_warps=1), config(BLOCK_D=64, num_warps=2)],
    key=("channels",),
    examples=_example(
        *("A", "channels", "COMPLEX", "STATES", "BLOCK_N"),
        **dict.fromkeys(("ends", "spans", "state", "before"), "*fp32"),
        chunks="i32",
        REVERSE=False,
    ),
)
@triton.jit
def carry(
    A,
    ends,
    spans,
    state,
    before,
    channels,
    chunks,
    COMPLEX: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    REVERSE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the state that enters each chunk, from the states that the chunks add.

    Args:
        A: `(P, N, D)`, by `scaled_matrix`.
        ends: States that each chunk adds, `(B, K, P, N, D)`.
        spans: Sum of the steps of each chunk, `(B, K, D)`.
        state: State that enters the first chunk, `(B, P, N, D)`, or absent for zero.
        before: `(B, K, P, N, D)`.
        REVERSE: From the last chunk to the first, with conjugate decays: the cotangents of the states.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = tl.program_id(1).to(tl.int64)
    a_real, a_turns = load_planes(A, n, d, STATES, channels, COMPLEX)
    if REVERSE:
        a_turns = -a_turns
    x_real, x_imag = load_state(state, row, n, d, STATES, channels, COMPLEX)
    for number in range(0, chunks):
        place = row * chunks + number
        if REVERSE:
            place = row * chunks + chunks - 1 - number
        span = tl.load(spans + place * channels + d, mask=d < channels, other=0.0)
        added_real, added_imag = load_state(ends, place, n, d, STATES, channels, COMPLEX)
        store_state(before, place, x_real, x_imag, n, d, STATES, channels, COMPLEX)
        decay_real, decay_imag = decay_of(span, a_real, a_turns, COMPLEX)
        x_real, x_imag = advance(x_real, x_imag, decay_real, decay_imag, COMPLEX)
        x_real += added_real
        if COMPLEX:
            x_imag += added_imag


@kernel(
    configs=[config(BLOCK_D=64, TILE=4, num_warps=2), config(BLOCK_D=32, TILE=4, num_warps=1)],
    key=("length", "channels"),
    examples={
        dtype: {
            **example,
            **dict.fromkeys(("before", "saved", "last"), "*fp32"),
            "y": f"*{dtype}",
            "SEGMENT": SEGMENT,
        }
        for dtype, example in EXAMPLES.items()
    },
)
@triton.jit
def scan(
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    bias,
    before,
    y,
    saved,
    last,
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
    SEGMENT: tl.constexpr,
    STATES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the gated outputs, the last state, and states for the backward; inputs as in `chunk_ends`.

    Args:
        z: `(B, L, D)` with strides, or absent; C as B; D `(D,)` or absent.
        before: State before each chunk, `(B, K, P, N, D)`, or absent for zero.
        y: `(B, L, D)`.
        saved: State before each segment, `(B, S, P, N, D)`, float32, or absent.
        last: State after the last position, `(B, P, N, D)`, float32.
    """
    n, d = tl.arange(0, BLOCK_N), tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    row, index = tl.program_id(2).to(tl.int64), tl.program_id(1)
    u += row * u_batch
    delta += row * delta_batch
    B += row * B_batch
    C += row * C_batch
    if z is not None:
        z += row * z_batch
    y += row * length * channels
    begin = index * chunk
    stop = tl.minimum(begin + chunk, length)
    matrix = load_planes(A, n, d, STATES, channels, COMPLEX)
    offset = tl.zeros([BLOCK_D], tl.float32)
    if bias is not None:
        offset = load_parameter(bias, d, channels, SHARED_BIAS)
    skip = offset
    if D is not None:
        skip = load_parameter(D, d, channels, False)
    x_real, x_imag = load_state(before, row * tl.num_programs(1) + index, n, d, STATES, channels, COMPLEX)
    for segments in range(0, tl.cdiv(stop - begin, SEGMENT)):
        segment = begin + segments * SEGMENT
        if saved is not None:
            place = row * tl.cdiv(length, SEGMENT) + segment // SEGMENT
            store_state(saved, place, x_real, x_imag, n, d, STATES, channels, COMPLEX)
        for number in range(0, tl.cdiv(tl.minimum(SEGMENT, stop - segment), TILE)):
            first = segment + number * TILE
            u_tile, delta_tile = row_of(u, first, u_row), row_of(delta, first, delta_row)
            B_tile, C_tile = row_of(B, first, B_row), row_of(C, first, C_row)
            outputs = ()
            for i in tl.static_range(TILE):
                there = first + i < stop
                state = (x_real, x_imag)
                rows = (u_tile + i * u_row, delta_tile + i * delta_row, B_tile + i * B_row)
                _, _, x_real, x_imag, value, _, _ = enter(
                    state, rows, matrix, offset, there, n, d, channels, SOFTPLUS, SHARED, STATES, COMPLEX
                )
                c_real, c_imag = load_weights(C_tile + i * C_row, n, there, STATES, COMPLEX)
                total = output_of(x_real, x_imag, c_real, c_imag, COMPLEX)
                if D is not None:
                    total += skip * value
                if z is not None:
                    total *= silu(load_row(row_of(z, first, z_row) + i * z_row, d, there, channels))
                outputs += (total,)  # type: ignore[assignment]
            # Loads after a store could not be moved before it.
            y_tile = row_of(y, first, channels)
            for i in tl.static_range(TILE):
                keep = (first + i < stop) & (d < channels)
                tl.store(y_tile + i * channels + d, outputs[i].to(y.dtype.element_ty), mask=keep)
    if stop == length:
        store_state(last, row, x_real, x_imag, n, d, STATES, channels, COMPLEX)
