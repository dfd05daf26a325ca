"""Forward kernel of the state space duality; tasks as in `numba_tiles.py`, formulas as in `chunked.py`."""

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, constant, fma, load, mul, pointer, shifted, splat, store
from hf_ssm.ops.ssd.numba_tiles import (
    FULL,
    LOWER,
    copy,
    multiply,
    read_decays,
    read_rows,
    scale_rows,
    transpose,
    write_rows,
)

__all__ = ["forward", "forward_scratch", "read_weights"]


def forward_scratch(chunk: int, wide: int, deep: int) -> int:
    """Size of the scratch memory of a task, in numbers."""
    return chunk * (3 * deep + 2 * chunk + 3 * wide + 6)


@kernel
def read_weights(args, b, group, first, steps, B, C, turned, products, like):
    """Read B and C of a chunk, and compute `products = C Bᵀ` `(T, T)`, with `turned` = `Bᵀ`."""
    chunk, deep = args.chunk, args.deep
    B_in = shifted(pointer(args.B, like), b * args.B_batch + first * args.B_row + group * args.B_group)
    C_in = shifted(pointer(args.C, like), b * args.C_batch + first * args.C_row + group * args.C_group)
    read_rows(B_in, args.B_row, steps, args.states, B, chunk, deep, like)
    read_rows(C_in, args.C_row, steps, args.states, C, chunk, deep, like)
    transpose(B, turned, chunk, deep)
    multiply(products, chunk, C, deep, 1, turned, chunk, chunk, deep, chunk, FULL, False, like)


@kernel
def _read_weighted(products, d, e, row, weights, chunk, like):
    """`weights[i, j] = l_ij (C_i · B_j) d_j`; `row` is a row of `l`, each the one before times the decay."""
    for j in range(0, chunk, LANES):
        store(row, j, constant(0.0, like))
    for i in range(chunk):
        decay = splat(e[i])
        for j in range(0, i, LANES):
            store(row, j, mul(decay, load(row, j)))
        row[i] = 1.0
        at = i * chunk
        for j in range(0, i + 1, LANES):
            store(weights, at + j, mul(mul(load(row, j), load(d, j)), load(products, at + j)))


@kernel
def forward(args, y_address, like, b, group, part, address):
    """Compute some heads of a group of one sequence.

    Args:
        args: `SSDArguments`.
        y_address: Address of the output `(B, L, H, channels)`, contiguous.
        like: A number of the type of the arithmetic.
        b: Index of the sequence.
        group: Index of the group.
        part: Index of the task of the group.
        address: Address of the scratch memory.
    """
    chunk, wide, deep = args.chunk, args.wide, args.deep
    of_group = args.heads // args.groups
    begin = group * of_group
    first_head, end_head = begin + part * args.width, begin + min((part + 1) * args.width, of_group)
    B = pointer(address, like)
    C, turned = shifted(B, chunk * deep), shifted(B, 2 * chunk * deep)
    products = shifted(B, 3 * chunk * deep)
    weights = shifted(products, chunk * chunk)
    x = shifted(weights, chunk * chunk)
    scaled, y = shifted(x, chunk * wide), shifted(x, 2 * chunk * wide)
    d = shifted(x, 3 * chunk * wide)
    e, p, r, row, factors = (
        shifted(d, chunk),
        shifted(d, 2 * chunk),
        shifted(d, 3 * chunk),
        shifted(d, 4 * chunk),
        shifted(d, 5 * chunk),
    )
    size, y_row = deep * wide, args.heads * args.channels
    for k in range(args.chunks):
        first = k * chunk
        steps = min(chunk, args.length - first)
        read_weights(args, b, group, first, steps, B, C, turned, products, like)
        for head in range(first_head, end_head):
            state = shifted(pointer(args.state, like), (b * args.heads + head) * size)
            if args.kept != 0:
                kept = ((b * args.heads + head) * args.chunks + k) * size
                copy(state, shifted(pointer(args.kept, like), kept), size)
            read_decays(args, b, head, first, steps, d, e, p, r, like)
            x_in = shifted(pointer(args.x, like), b * args.x_batch + first * args.x_row + head * args.x_head)
            read_rows(x_in, args.x_row, steps, args.channels, x, chunk, wide, like)
            _read_weighted(products, d, e, row, weights, chunk, like)
            multiply(y, wide, C, deep, 1, state, wide, chunk, deep, wide, FULL, False, like)
            scale_rows(y, p, y, chunk, wide)
            multiply(y, wide, weights, chunk, 1, x, wide, chunk, chunk, wide, LOWER, True, like)
            if args.D != 0:
                D = shifted(pointer(args.D, like), head * wide)
                for t in range(steps):
                    for j in range(0, wide, LANES):
                        at = t * wide + j
                        store(y, at, fma(load(D, j), load(x, at), load(y, at)))
            y_out = shifted(pointer(y_address, like), (b * args.length + first) * y_row + head * args.channels)
            write_rows(y, wide, y_out, y_row, steps, args.channels)
            for t in range(0, chunk, LANES):
                store(factors, t, mul(load(d, t), load(r, t)))
            scale_rows(x, factors, scaled, chunk, wide)
            decay = splat(p[chunk - 1])
            for i in range(0, size, LANES):
                store(state, i, mul(decay, load(state, i)))
            multiply(state, wide, B, 1, deep, scaled, wide, deep, chunk, wide, FULL, True, like)
