"""State space duality by Triton kernels: gradients of inputs, weights and steps.

Dimensions, tiles and decays as in `triton_tiles.py`. `states` are those before the chunks and `grads` the gradients of
those after them, `(B, K, H, P, N)`, float32; the gradients come from `chunk_states` and `pass_states`.

With `G_ij = grad_i · x_j`, the gradient of `C_i · B_j` is the sum of `l_ij d_j G_ij` over the heads of a group, and the
gradient of the logarithm of the decay at k is that of all paths from j < k to i >= k:

    Σ_{j<k<=i} W_ij + Σ_{i>=k} a_i + Σ_{j<k} b_j + c,        W_ij = l_ij d_j G_ij (C_i · B_j),

with paths that come from the state before the chunk (`a`), go to the one after it (`b`), or both (`c`). The first sum
is one over i >= k of the sum of row i minus that of column i, both without the diagonal.
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

__all__ = ["grad_inputs", "grad_products", "grad_steps", "grad_weights"]

_LOG2_E = tl.constexpr(1.4426950408889634)


@kernel(
    configs=[config(), config(num_warps=8)],
    key=("shape", "TILES"),
    examples=examples("x B C D grad decays grads grad_x direct outgoing skip_sums sizes shape TILES"),
)
@triton.jit
def grad_inputs(
    x, B, C, D, grad, decays, grads, grad_x, direct, outgoing, skip_sums, sizes, shape, TILES: tl.constexpr
):
    """Write the gradients of a tile of x, and what they tell about d.

    With `v_j`, the gradient of `d_j x_j`, that of x is `d_j v_j + D grad_j`.

    Args:
        x: `(B, L, H, P)` with strides, as grad, the gradient of y; B and C `(B, L, G, N)` likewise.
        D: With strides, or absent.
        grad_x: `(B, L, H, P)`.
        direct: `x_j · v_j` `(B, H, K T)`.
        outgoing: The part of `d_j x_j · v_j` through the state after the chunk `(B, H, K T)`.
        skip_sums: `Σ_j grad_j x_j` of a tile `(B, K J, H, P)`, written where D is given.
    """
    length, heads, of_group, padded = sizes
    channels, width = shape
    tiles: tl.constexpr = TILES.CHUNK // TILES.ROWS
    h, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    k, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = (k * TILES.CHUNK).to(tl.int64)
    rest = tl.minimum(length - k * TILES.CHUNK, TILES.CHUNK)
    j, p = tile * TILES.ROWS + tl.arange(0, TILES.ROWS), tl.arange(0, TILES.WIDE)
    xs, slopes = at_head(x, row, begin, h), at_head(grad, row, begin, h)
    Bs, Cs = at_head(B, row, begin, h // of_group), at_head(C, row, begin, h // of_group)
    place = (row * heads + h) * padded + begin
    decays += (row * heads + h) * 3 * padded + begin
    grads += ((row * tl.num_programs(1) + k) * heads + h) * channels * width
    total = tl.full((TILES.ROWS, TILES.WIDE), 0.0, tl.float32)
    for first in range(0, width, TILES.COLUMNS):
        n = first + tl.arange(0, TILES.COLUMNS)
        b = load_tile(Bs, j, n, rest, width, B.row)
        after = load_tile(grads, p, n, channels, width, width)
        total += dot(b, tl.trans(after.to(b.dtype)), TILES.PRECISION)
    total *= decay_to_end(decays, padded, j, TILES.CHUNK)[:, None]
    step = tl.load(decays + 2 * padded + j)
    given = load_tile(xs, j, p, rest, channels, x.row).to(tl.float32)
    tl.store(outgoing + place + j, step * tl.sum(given * total, 1))
    for first in range(tile * TILES.ROWS, rest, TILES.ROWS):
        i = first + tl.arange(0, TILES.ROWS)
        mixed = products_of_rows(Bs, Cs, j, i, rest, width, B.row, C.row, TILES.COLUMNS, TILES.PRECISION)
        mixed *= decay_matrix(decays, padded, i, j, TRANSPOSED=True)
        slope = load_tile(slopes, i, p, rest, channels, grad.row)
        total += dot(mixed.to(slope.dtype), slope, TILES.PRECISION)
    given = load_tile(xs, j, p, rest, channels, x.row).to(tl.float32)
    tl.store(direct + place + j, tl.sum(given * total, 1))
    total *= step[:, None]
    if D is not None:
        slope = load_tile(slopes, j, p, rest, channels, grad.row).to(tl.float32)
        skip = tl.load(D.data + h * D.head + p * D.channel, mask=p < channels, other=0.0)
        total += skip[None, :] * slope
        sums = skip_sums + (((row * tl.num_programs(1) + k) * tiles + tile) * heads + h) * channels + p
        tl.store(sums, tl.sum(slope * given, 0), mask=p < channels)
    grad_x += ((row * length + begin) * heads + h) * channels
    keep = (j < rest)[:, None] & (p < channels)[None, :]
    tl.store(grad_x + j[:, None] * (heads * channels) + p[None, :], total.to(grad_x.dtype.element_ty), mask=keep)


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    key=("shape", "TILES"),
    examples=examples("x B C grad decays products paths sizes shape parts TILES"),
)
@triton.jit
def grad_products(x, B, C, grad, decays, products, paths, sizes, shape, parts, TILES: tl.constexpr):
    """Write the gradients of the products `C_i · B_j` of two tiles, and the sums of rows and columns of `W`.

    Args:
        products: Sums over the heads of a part of a group `(B, K, G, parts, T, T)`; written for `j <= i`.
        paths: `(B, H, J, K T)`. For a position of a tile and another tile of the chunk: the sum of the row over an
            earlier one, minus the sum of the column over a later one; in the tile itself the difference of both.
    """
    length, heads, of_group, padded = sizes
    channels, width = shape
    tiles: tl.constexpr = TILES.CHUNK // TILES.ROWS
    number, tile = tl.program_id(0) // (tiles * tiles), tl.program_id(0) % (tiles * tiles)
    later, earlier = tile // tiles, tile % tiles
    if later < earlier:
        return
    g, part = number // parts, number % parts
    k, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = (k * TILES.CHUNK).to(tl.int64)
    rest = tl.minimum(length - k * TILES.CHUNK, TILES.CHUNK)
    i, j, p = (
        later * TILES.ROWS + tl.arange(0, TILES.ROWS),
        earlier * TILES.ROWS + tl.arange(0, TILES.ROWS),
        tl.arange(0, TILES.WIDE),
    )
    xs, slopes = x.data + (row * x.batch + begin * x.row), grad.data + (row * grad.batch + begin * grad.row)
    Bs, Cs = at_head(B, row, begin, g), at_head(C, row, begin, g)
    weights = products_of_rows(Cs, Bs, i, j, rest, width, C.row, B.row, TILES.COLUMNS, TILES.PRECISION)
    weights = tl.where(i[:, None] > j[None, :], weights, 0.0)
    total = tl.full((TILES.ROWS, TILES.ROWS), 0.0, tl.float32)
    of_part = tl.cdiv(of_group, parts)
    for h in range(g * of_group + part * of_part, g * of_group + tl.minimum((part + 1) * of_part, of_group)):
        sums = decays + (row * heads + h) * 3 * padded + begin
        slope = load_tile(slopes + h * grad.head, i, p, rest, channels, grad.row)
        given = load_tile(xs + h * x.head, j, p, rest, channels, x.row)
        pairs = dot(slope, tl.trans(given), TILES.PRECISION)
        pairs *= decay_matrix(sums, padded, i, j) * tl.load(sums + 2 * padded + j)[None, :]
        total += pairs
        pairs *= weights
        to = paths + (row * heads + h) * tiles * padded + begin
        rows, columns = tl.sum(pairs, 1), tl.sum(pairs, 0)
        if later == earlier:
            tl.store(to + later * padded + i, rows - columns)
        else:
            tl.store(to + earlier * padded + i, rows)
            tl.store(to + later * padded + j, -columns)
    to = (
        products
        + (((row * tl.num_programs(1) + k) * (heads // of_group) + g) * parts + part) * TILES.CHUNK * TILES.CHUNK
    )
    tl.store(to + i[:, None] * TILES.CHUNK + j[None, :], total)


@kernel(
    configs=[config(), config(num_warps=8)],
    key=("shape", "TILES", "OF_C"),
    examples=examples(
        "source own other states decays products incoming result sizes shape parts TILES OF_C", OF_C=True
    ),
)
@triton.jit
def grad_weights(
    source,
    own,
    other,
    states,
    decays,
    products,
    incoming,
    result,
    sizes,
    shape,
    parts,
    TILES: tl.constexpr,
    OF_C: tl.constexpr,
):
    """Write the gradients of a tile and block of C, `Σ_h p_i grad_i S + Σ_{j<=i} grad_ij B_j`, or of B.

    That of B is `Σ_h r_j d_j x_j S + Σ_{i>=j} grad_ij C_i`; `grad_ij` are the gradients of the products.

    Args:
        source: The gradient of y, or for B x, `(B, L, H, P)` with strides.
        own: C, or for B absent, `(B, L, G, N)` with strides.
        other: B, or for B C, likewise.
        states: Those before the chunks, or for B the gradients of those after them.
        products: As `grad_products` writes them.
        incoming: Of `C_i · p_i grad_i S` the sums over a block `(B, H, number of blocks, K T)`; for B absent.
        result: Sums over the heads of a part of a group `(parts, B, L, G, N)`.
    """
    length, heads, of_group, padded = sizes
    channels, width = shape
    tiles: tl.constexpr = TILES.CHUNK // TILES.ROWS
    blocks = tl.cdiv(width, TILES.COLUMNS)
    block, number = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    tile, number = number % tiles, number // tiles
    g, part = number // parts, number % parts
    k, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = (k * TILES.CHUNK).to(tl.int64)
    rest = tl.minimum(length - k * TILES.CHUNK, TILES.CHUNK)
    n, p = block * TILES.COLUMNS + tl.arange(0, TILES.COLUMNS), tl.arange(0, TILES.WIDE)
    i = tile * TILES.ROWS + tl.arange(0, TILES.ROWS)
    groups = heads // of_group
    inputs = source.data + (row * source.batch + begin * source.row)
    others = at_head(other, row, begin, g)
    states += (row * tl.num_programs(1) + k) * heads * channels * width
    products += (((row * tl.num_programs(1) + k) * groups + g) * parts + part) * TILES.CHUNK * TILES.CHUNK
    total = tl.full((TILES.ROWS, TILES.COLUMNS), 0.0, tl.float32)
    of_part = tl.cdiv(of_group, parts)
    for h in range(g * of_group + part * of_part, g * of_group + tl.minimum((part + 1) * of_part, of_group)):
        sums = decays + (row * heads + h) * 3 * padded + begin
        given = load_tile(inputs + h * source.head, i, p, rest, channels, source.row)
        state = load_tile(states + h * channels * width, p, n, channels, width, width)
        reached = dot(given, state.to(given.dtype), TILES.PRECISION)
        if OF_C:
            reached *= decay_after(sums, padded, i)[:, None]
            weight = load_tile(own.data + row * own.batch + begin * own.row + g * own.head, i, n, rest, width, own.row)
            to = incoming + ((row * heads + h) * blocks + block) * padded + begin
            tl.store(to + i, tl.sum(reached * weight.to(tl.float32), 1))
        else:
            reached *= (decay_to_end(sums, padded, i, TILES.CHUNK) * tl.load(sums + 2 * padded + i))[:, None]
        total += reached
    if OF_C:
        for first in range(0, (tile + 1) * TILES.ROWS, TILES.ROWS):
            j = first + tl.arange(0, TILES.ROWS)
            weight = load_tile(others, j, n, rest, width, other.row)
            slopes = tl.load(products + i[:, None] * TILES.CHUNK + j[None, :])
            total += dot(slopes.to(weight.dtype), weight, TILES.PRECISION)
    else:
        for first in range(tile * TILES.ROWS, rest, TILES.ROWS):
            j = first + tl.arange(0, TILES.ROWS)
            weight = load_tile(others, j, n, rest, width, other.row)
            slopes = tl.load(products + j[:, None] * TILES.CHUNK + i[None, :])
            total += dot(tl.trans(slopes.to(weight.dtype)), weight, TILES.PRECISION)
    result += ((part * tl.num_programs(2) + row) * length + begin) * groups * width + g * width
    keep = (i < rest)[:, None] & (n < width)[None, :]
    tl.store(result + i[:, None] * (groups * width) + n[None, :], total.to(result.dtype.element_ty), mask=keep)


@kernel(
    configs=[config(BLOCK_H=8)],
    examples={
        "fp32": examples(
            "A starts decays direct outgoing incoming paths through grad_d rate_sums length heads padded blocks pieces "
            "CHUNK ROWS",
            blocks="i32",
            pieces="i32",
        )["bf16"]
    },
)
@triton.jit
def grad_steps(
    A,
    starts,
    decays,
    direct,
    outgoing,
    incoming,
    paths,
    through,
    grad_d,
    rate_sums,
    length,
    heads,
    padded,
    blocks,
    pieces,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write the gradients of d, and the sums over a chunk of those of A.

    Args:
        starts: `(B, L)`, dense, or absent. No gradient passes through the decay of a reset.
        direct: As `grad_inputs` writes it, like `outgoing`.
        incoming: As `grad_weights` writes it, in `blocks` blocks.
        paths: As `grad_products` writes it.
        through: As `pass_states` writes it, in `pieces` blocks.
        grad_d: `(B, L, H)`.
        rate_sums: `(B, K, H)`.
    """
    h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    k, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    t = tl.arange(0, CHUNK)
    at, inside = k * CHUNK + t, k * CHUNK + t < length
    known = (h < heads)[:, None] & inside[None, :]
    head = row * heads + h
    total = tl.zeros([BLOCK_H, CHUNK], tl.float32)
    for tile in range(CHUNK // ROWS):
        total += tl.load(
            paths + ((head * (CHUNK // ROWS) + tile) * padded)[:, None] + at[None, :], mask=known, other=0.0
        )
    for block in range(blocks):
        total += tl.load(incoming + ((head * blocks + block) * padded)[:, None] + at[None, :], mask=known, other=0.0)
    logs = tl.cumsum(total, 1, reverse=True)
    before = known & (t > 0)[None, :]
    logs += tl.cumsum(tl.load(outgoing + (head * padded)[:, None] + at[None, :] - 1, mask=before, other=0.0), 1)
    whole = tl.zeros([BLOCK_H], tl.float32)
    for piece in range(pieces):
        place = (head * tl.num_programs(1) + k) * pieces + piece
        whole += tl.load(through + place, mask=h < heads, other=0.0)
    logs += whole[:, None]
    rate = tl.load(A + h, mask=h < heads, other=0.0)
    steps = tl.load(decays + ((head * 3 + 2) * padded)[:, None] + at[None, :], mask=known, other=0.0)
    passes = (steps * rate[:, None]) * _LOG2_E > FLOOR
    if starts is not None:
        passes = passes & (tl.load(starts + row * length + at, mask=inside, other=0) == 0)[None, :]
    logs = tl.where(passes, logs, 0.0)
    tl.store(rate_sums + (row * tl.num_programs(1) + k) * heads + h, tl.sum(logs * steps, 1), mask=h < heads)
    slope = tl.load(direct + (head * padded)[:, None] + at[None, :], mask=known, other=0.0) + rate[:, None] * logs
    tl.store(grad_d + (row * length + at)[None, :] * heads + h[:, None], slope, mask=known)
