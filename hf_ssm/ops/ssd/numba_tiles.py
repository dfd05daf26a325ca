"""Arguments, matrix products and decays of a chunk, for the forward and the backward kernel of the duality.

A task computes some heads of one group of one sequence, chunk by chunk, in scratch memory that fits the second cache:
rows padded to vectors, zeros after the last position. All matrix products are one kernel of 4 rows by 4 vectors, whose
left factor is read number by number, in any layout.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head padded to vectors, `G` groups, `N` states padded to
vectors, `K` chunks, `T` positions of a chunk, a multiple of 16.
"""

from typing import NamedTuple

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
    constant,
    copy_transposed,
    exp2,
    fma,
    load,
    load_some,
    mul,
    pointer,
    shifted,
    splat,
    store,
    store_some,
)

__all__ = [
    "FULL",
    "LOWER",
    "UPPER",
    "SSDArguments",
    "copy",
    "multiply",
    "read_decays",
    "read_rows",
    "scale_rows",
    "transpose",
    "write_rows",
]

# Which part of the left factor of a product is not zero.
FULL, LOWER, UPPER = 0, 1, 2


class SSDArguments(NamedTuple):
    """Sizes, strides, and addresses of tensors of one real type; 0 for `None`.

    Tensors with strides have a dense last dimension; the others are contiguous.
    """

    batch: int
    length: int
    heads: int
    channels: int
    groups: int
    states: int
    chunk: int
    chunks: int
    # Padded to vectors.
    wide: int
    deep: int
    # Heads of a task; the last task of a group may have fewer.
    width: int
    # `(B, L, H, P)`: strides of the batch, the rows and the heads.
    x: int
    x_batch: int
    x_row: int
    x_head: int
    # `(B, L, G, N)`, likewise.
    B: int
    B_batch: int
    B_row: int
    B_group: int
    C: int
    C_batch: int
    C_row: int
    C_group: int
    # `(B, L, H)`; whether a state persists before a position, 0 or 1, `(B, L)`.
    d: int
    stays: int
    # In units of log 2 `(H,)`; `(H, P)`.
    A2: int
    D: int
    # The state, updated in place, `(B, H, N, P)`; the states before each chunk, `(B, H, K, N, P)`.
    state: int
    kept: int


@kernel
def copy(source, target, size):
    """Copy `size` numbers, a multiple of 16."""
    for i in range(0, size, LANES):
        store(target, i, load(source, i))


@kernel
def _square(out, out_row, a, a_row, a_column, b, b_row, first, end, adds, like):
    """4 rows by 4 vectors of `multiply`."""
    r1, r2, r3 = out_row, 2 * out_row, 3 * out_row
    v1, v2, v3 = LANES, 2 * LANES, 3 * LANES
    zero = constant(0.0, like)
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = zero
    c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = zero
    if adds:
        c00, c01, c02, c03 = load(out, 0), load(out, v1), load(out, v2), load(out, v3)
        c10, c11, c12, c13 = load(out, r1), load(out, r1 + v1), load(out, r1 + v2), load(out, r1 + v3)
        c20, c21, c22, c23 = load(out, r2), load(out, r2 + v1), load(out, r2 + v2), load(out, r2 + v3)
        c30, c31, c32, c33 = load(out, r3), load(out, r3 + v1), load(out, r3 + v2), load(out, r3 + v3)
    for k in range(first, end):
        at, place = k * a_column, k * b_row
        b0, b1, b2, b3 = load(b, place), load(b, place + v1), load(b, place + v2), load(b, place + v3)
        a0 = splat(a[at])
        c00, c01, c02, c03 = fma(a0, b0, c00), fma(a0, b1, c01), fma(a0, b2, c02), fma(a0, b3, c03)
        a1 = splat(a[at + a_row])
        c10, c11, c12, c13 = fma(a1, b0, c10), fma(a1, b1, c11), fma(a1, b2, c12), fma(a1, b3, c13)
        a2 = splat(a[at + 2 * a_row])
        c20, c21, c22, c23 = fma(a2, b0, c20), fma(a2, b1, c21), fma(a2, b2, c22), fma(a2, b3, c23)
        a3 = splat(a[at + 3 * a_row])
        c30, c31, c32, c33 = fma(a3, b0, c30), fma(a3, b1, c31), fma(a3, b2, c32), fma(a3, b3, c33)
    store(out, 0, c00)
    store(out, v1, c01)
    store(out, v2, c02)
    store(out, v3, c03)
    store(out, r1, c10)
    store(out, r1 + v1, c11)
    store(out, r1 + v2, c12)
    store(out, r1 + v3, c13)
    store(out, r2, c20)
    store(out, r2 + v1, c21)
    store(out, r2 + v2, c22)
    store(out, r2 + v3, c23)
    store(out, r3, c30)
    store(out, r3 + v1, c31)
    store(out, r3 + v2, c32)
    store(out, r3 + v3, c33)


@kernel
def _column(out, out_row, a, a_row, a_column, b, b_row, first, end, adds, like):
    """4 rows by a vector of `multiply`."""
    r1, r2, r3 = out_row, 2 * out_row, 3 * out_row
    c0 = c1 = c2 = c3 = constant(0.0, like)
    if adds:
        c0, c1, c2, c3 = load(out, 0), load(out, r1), load(out, r2), load(out, r3)
    for k in range(first, end):
        at, b0 = k * a_column, load(b, k * b_row)
        c0, c1 = fma(splat(a[at]), b0, c0), fma(splat(a[at + a_row]), b0, c1)
        c2, c3 = fma(splat(a[at + 2 * a_row]), b0, c2), fma(splat(a[at + 3 * a_row]), b0, c3)
    store(out, 0, c0)
    store(out, r1, c1)
    store(out, r2, c2)
    store(out, r3, c3)


@kernel
def multiply(out, out_row, a, a_row, a_column, b, b_row, rows, depth, columns, part, adds, like):
    """`out = a b`, or with `adds` `out += a b`.

    Args:
        out: `(rows, columns)`, as b with dense columns and a number of them that is a multiple of 16.
        out_row: Stride.
        a: `(rows, depth)`, with strides `a_row` and `a_column`; a multiple of 4 rows.
        a_row: Stride.
        a_column: Stride.
        b: `(depth, columns)`.
        b_row: Stride.
        rows: A multiple of 4.
        depth: Terms of each sum.
        columns: A multiple of 16.
        part: `FULL`, `LOWER` or `UPPER`: the part of a that is read, up to squares of 4 on its diagonal.
        adds: Whether to add to `out`.
        like: A number of the type of the arithmetic.
    """
    for j in range(0, columns, 4 * LANES):
        vectors = min(4, (columns - j) // LANES)
        for i in range(0, rows, 4):
            first, end = (i if part == UPPER else 0), (min(i + 4, depth) if part == LOWER else depth)
            o, left = shifted(out, i * out_row + j), shifted(a, i * a_row)
            if vectors == 4:
                _square(o, out_row, left, a_row, a_column, shifted(b, j), b_row, first, end, adds, like)
            else:
                for v in range(0, vectors * LANES, LANES):
                    at = shifted(b, j + v)
                    _column(shifted(o, v), out_row, left, a_row, a_column, at, b_row, first, end, adds, like)


@kernel
def scale_rows(source, factors, target, rows, columns):
    """`target[i] = factors[i] source[i]` for dense rows."""
    for i in range(rows):
        factor, row = splat(factors[i]), i * columns
        for j in range(0, columns, LANES):
            store(target, row + j, mul(factor, load(source, row + j)))


@kernel
def transpose(source, target, rows, columns):
    """Transpose a dense matrix; both sizes are multiples of 16."""
    for i in range(0, rows, LANES):
        for j in range(0, columns, LANES):
            copy_transposed(source, i * columns + j, columns, target, j * rows + i, rows)


@kernel
def read_rows(source, row_stride, steps, count, target, rows, columns, like):
    """Copy `steps` rows of `count` numbers to the dense `target` `(rows, columns)`, padded with zeros."""
    zero = constant(0.0, like)
    for t in range(rows):
        for j in range(0, columns, LANES):
            if t < steps:
                store(target, t * columns + j, load_some(source, t * row_stride + j, min(LANES, count - j)))
            else:
                store(target, t * columns + j, zero)


@kernel
def write_rows(source, columns, target, row_stride, steps, count):
    """Copy `steps` rows of `count` numbers from the dense `source`."""
    for t in range(steps):
        for j in range(0, columns, LANES):
            store_some(target, t * row_stride + j, load(source, t * columns + j), min(LANES, count - j))


@kernel
def read_decays(args, b, head, first, steps, d, e, p, r, like):
    """Step sizes; decays at each position, from before the chunk, and to its end; 1 after the last position."""
    chunk, heads = args.chunk, args.heads
    steps_in = shifted(pointer(args.d, like), (b * args.length + first) * heads + head)
    for t in range(chunk):
        d[t] = steps_in[t * heads] if t < steps else 0.0
    rate = splat(pointer(args.A2, like)[head])
    for t in range(0, chunk, LANES):
        store(e, t, exp2(mul(rate, load(d, t))))
    if args.stays != 0:
        stays = shifted(pointer(args.stays, like), b * args.length + first)
        for t in range(steps):
            e[t] *= stays[t]
    p[0], r[chunk - 1] = e[0], 1.0
    for t in range(1, chunk):
        p[t] = p[t - 1] * e[t]
    for t in range(chunk - 1, 0, -1):
        r[t - 1] = r[t] * e[t]
