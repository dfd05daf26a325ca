"""State space duality by Triton kernels: decays, states of chunks and outputs.

Dimensions, tiles and decays as in `triton_tiles.py`. `states` are `(B, K, H, P, N)`, float32.
"""

import triton
import triton.language as tl

from hf_ssm.ops.gpu.kernels import config, kernel
from hf_ssm.ops.gpu.language import dot
from hf_ssm.ops.ssd.triton_tiles import (
    FLOOR,
    at_head,
    decay_after,
    decay_matrix,
    decay_to_end,
    examples,
    load_tile,
    products_of_rows,
)

__all__ = ["chunk_scan", "chunk_states", "decay_sums", "pass_states"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@kernel(
    configs=[config(BLOCK_H=8)],
    examples={"fp32": examples("d A starts decays length heads padded CHUNK")["bf16"]},
)
@triton.jit
def decay_sums(d, A, starts, decays, length, heads, padded, CHUNK: tl.constexpr, BLOCK_H: tl.constexpr):
    """Write `decays` `(B, H, 3, K T)`: both parts of the sums of the logarithms to base 2, and d.

    After the last position nothing decays, and d is 0.

    Args:
        d: `(B, L, H)`, dense.
        A: `(H,)`.
        starts: `(B, L)`, dense, or absent.
    """
    h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    t = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    row = tl.program_id(2).to(tl.int64)
    known = (t < length)[:, None] & (h < heads)[None, :]
    steps = tl.load(d + (row * length + t)[:, None] * heads + h[None, :], mask=known, other=0.0)
    rates = tl.load(A + h, mask=h < heads, other=0.0).to(tl.float64) * _LOG2_E
    logs = tl.maximum(steps.to(tl.float64) * rates[None, :], FLOOR)
    if starts is not None:
        resets = tl.load(starts + row * length + t, mask=t < length, other=0) != 0
        logs = tl.where(resets[:, None], FLOOR, logs)
    sums = tl.cumsum(logs, 0)
    high = sums.to(tl.float32)
    to = decays + ((row * heads + h) * 3 * padded)[None, :] + t[:, None]
    keep = (h < heads)[None, :] & (t < padded)[:, None]
    tl.store(to, high, mask=keep)
    tl.store(to + padded, (sums - high.to(tl.float64)).to(tl.float32), mask=keep)
    tl.store(to + 2 * padded, steps, mask=keep)


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    key=("shape", "TILES", "REVERSED", "CARRY"),
    examples=examples(
        "source weights decays states first last saved through sizes shape chunks TILES REVERSED CARRY",
        REVERSED=True,
        CARRY=True,
    ),
)
@triton.jit
def chunk_states(
    source,
    weights,
    decays,
    states,
    first,
    last,
    saved,
    through,
    sizes,
    shape,
    chunks,
    TILES: tl.constexpr,
    REVERSED: tl.constexpr,
    CARRY: tl.constexpr,
):
    """Write what each chunk adds to the state, `Σ_j r_j d_j x_j B_jᵀ`, or to its gradient, `Σ_i p_i grad_i C_iᵀ`.

    With `CARRY`, a program goes through all chunks and writes what `pass_states` does.

    Args:
        source: x, or with `REVERSED` the gradient of y, `(B, L, H, P)` with strides.
        weights: B, or with `REVERSED` C, `(B, L, G, N)` with strides.
        first: As in `pass_states`, like `last`, `saved` and `through`; without `CARRY` all are absent.
    """
    length, heads, of_group, padded = sizes
    channels, width = shape
    blocks = tl.cdiv(width, TILES.COLUMNS)
    h, block, row = tl.program_id(0) // blocks, tl.program_id(0) % blocks, tl.program_id(2).to(tl.int64)
    n, p = block * TILES.COLUMNS + tl.arange(0, TILES.COLUMNS), tl.arange(0, TILES.WIDE)
    k = tl.program_id(1)
    if REVERSED:
        k = chunks - 1 - k
    ahead: tl.constexpr = -TILES.CHUNK if REVERSED else TILES.CHUNK
    begin = (k * TILES.CHUNK).to(tl.int64)
    rest = length - k * TILES.CHUNK
    inputs, factors = at_head(source, row, begin, h), at_head(weights, row, begin, h // of_group)
    decays += (row * heads + h) * 3 * padded + begin
    size = channels * width
    here = p[:, None] * width + n[None, :]
    place = ((row * chunks + k) * heads + h) * size
    sums = through
    if saved is not None:
        sums = through + ((row * heads + h) * chunks + k) * blocks + block
    keep = (p < channels)[:, None] & (n < width)[None, :]
    carry = tl.full((TILES.WIDE, TILES.COLUMNS), 0.0, tl.float32)
    if first is not None:
        carry = tl.load(first + (row * heads + h) * size + here, mask=keep, other=0.0)
    for _ in range(chunks if CARRY else 1):
        total = tl.full((TILES.WIDE, TILES.COLUMNS), 0.0, tl.float32)
        for start in range(0, tl.minimum(rest, TILES.CHUNK), TILES.ROWS):
            t = start + tl.arange(0, TILES.ROWS)
            if REVERSED:
                scale = decay_after(decays, padded, t)
            else:
                scale = decay_to_end(decays, padded, t, TILES.CHUNK) * tl.load(decays + 2 * padded + t)
            given = load_tile(inputs, t, p, tl.minimum(rest, TILES.CHUNK), channels, source.row)
            scaled = (given.to(tl.float32) * scale[:, None]).to(given.dtype)
            weight = load_tile(factors, t, n, tl.minimum(rest, TILES.CHUNK), width, weights.row)
            total += dot(tl.trans(scaled), weight, TILES.PRECISION)
        if CARRY:
            decay = tl.exp2(tl.load(decays + TILES.CHUNK - 1) + tl.load(decays + padded + TILES.CHUNK - 1))
            tl.store(states + place + here, carry, mask=keep)
            if saved is not None:
                before = tl.load(saved + place + here, mask=keep, other=0.0)
                tl.store(sums, decay * tl.sum(carry * before))
                sums += -blocks if REVERSED else blocks
            carry = decay * carry + total
            inputs += ahead * source.row
            factors += ahead * weights.row
            decays += ahead
            rest -= ahead
            place += -(heads * size) if REVERSED else heads * size
        else:
            tl.store(states + place + here, total, mask=keep)
    if CARRY:
        tl.store(last + (row * heads + h) * size + here, carry, mask=keep)


@kernel(
    configs=[config(BLOCK=512)],
    examples={
        "fp32": examples(
            "states decays first last saved through heads chunks size padded CHUNK REVERSED",
            chunks="i32",
            REVERSED=True,
        )["bf16"]
    },
)
@triton.jit
def pass_states(
    states,
    decays,
    first,
    last,
    saved,
    through,
    heads,
    chunks,
    size,
    padded,
    CHUNK: tl.constexpr,
    REVERSED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Replace what chunks add to the state by the state before them, or to its gradient by the one after them.

    The recurrence runs from the first chunk, or with `REVERSED` from the last one.

    Args:
        states: `(B, K, H, P N)`.
        first: State before all chunks of the recurrence `(B, H, P N)`, or absent for zero.
        last: The one after them `(B, H, P N)`, written.
        saved: The states before the chunks, as `states`, or absent.
        through: Gradients of the logarithms of the chunks' decays `(B, H, K, number of blocks)`: sums over a block of
            the products of `states` and `saved`. Written where `saved` is given.
    """
    h, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < size
    decays += (row * heads + h) * 3 * padded + CHUNK - 1
    here = (row * heads + h) * size + at
    carry = tl.zeros([BLOCK], tl.float32)
    if first is not None:
        carry = tl.load(first + here, mask=known, other=0.0)
    # The next addition is loaded before the state of this chunk is stored over the last one.
    k = chunks - 1 if REVERSED else 0
    ahead = tl.load(states + (row * chunks + k) * heads * size + h * size + at, mask=known, other=0.0)
    for number in range(chunks):
        k = chunks - 1 - number if REVERSED else number
        following = tl.maximum(k - 1, 0) if REVERSED else tl.minimum(k + 1, chunks - 1)
        place = states + (row * chunks + k) * heads * size + h * size + at
        added = ahead
        more = known & (number + 1 < chunks)
        ahead = tl.load(states + (row * chunks + following) * heads * size + h * size + at, mask=more, other=0.0)
        decay = tl.exp2(tl.load(decays + k * CHUNK) + tl.load(decays + padded + k * CHUNK))
        tl.store(place, carry, mask=known)
        if saved is not None:
            before = tl.load(saved + (row * chunks + k) * heads * size + h * size + at, mask=known, other=0.0)
            to = through + ((row * heads + h) * chunks + k) * tl.num_programs(0) + tl.program_id(0)
            tl.store(to, decay * tl.sum(carry * before))
        carry = decay * carry + added
    tl.store(last + here, carry, mask=known)


@kernel(
    configs=[config(), config(num_warps=8)],
    key=("shape", "TILES"),
    examples=examples("x B C D decays states y sizes shape TILES"),
)
@triton.jit
def chunk_scan(x, B, C, D, decays, states, y, sizes, shape, TILES: tl.constexpr):
    """Write `y_i = p_i S C_i + Σ_{j<=i} l_ij (C_i · B_j) d_j x_j + D x_i` `(B, L, H, P)`, a tile of positions i.

    Args:
        x: `(B, L, H, P)` with strides, B and C `(B, L, G, N)` likewise.
        D: With strides, or absent.
        states: Those before the chunks.
    """
    length, heads, of_group, padded = sizes
    channels, width = shape
    tiles: tl.constexpr = TILES.CHUNK // TILES.ROWS
    h, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    k, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = (k * TILES.CHUNK).to(tl.int64)
    rest = length - k * TILES.CHUNK
    i, p = tile * TILES.ROWS + tl.arange(0, TILES.ROWS), tl.arange(0, TILES.WIDE)
    xs = at_head(x, row, begin, h)
    Bs, Cs = at_head(B, row, begin, h // of_group), at_head(C, row, begin, h // of_group)
    decays += (row * heads + h) * 3 * padded + begin
    states += ((row * tl.num_programs(1) + k) * heads + h) * channels * width
    total = tl.full((TILES.ROWS, TILES.WIDE), 0.0, tl.float32)
    for first in range(0, width, TILES.COLUMNS):
        n = first + tl.arange(0, TILES.COLUMNS)
        c = load_tile(Cs, i, n, rest, width, C.row)
        state = load_tile(states, p, n, channels, width, width)
        total += dot(c, tl.trans(state.to(c.dtype)), TILES.PRECISION)
    total *= decay_after(decays, padded, i)[:, None]
    for first in range(0, (tile + 1) * TILES.ROWS, TILES.ROWS):
        j = first + tl.arange(0, TILES.ROWS)
        mixed = products_of_rows(Cs, Bs, i, j, rest, width, C.row, B.row, TILES.COLUMNS, TILES.PRECISION)
        mixed *= decay_matrix(decays, padded, i, j) * tl.load(decays + 2 * padded + j)[None, :]
        given = load_tile(xs, j, p, rest, channels, x.row)
        total += dot(mixed.to(given.dtype), given, TILES.PRECISION)
    if D is not None:
        skip = tl.load(D.data + h * D.head + p * D.channel, mask=p < channels, other=0.0)
        total += skip[None, :] * load_tile(xs, i, p, rest, channels, x.row).to(tl.float32)
    y += ((row * length + begin) * heads + h) * channels
    keep = (i < rest)[:, None] & (p < channels)[None, :]
    tl.store(y + i[:, None] * (heads * channels) + p[None, :], total.to(y.dtype.element_ty), mask=keep)
