"""Backward kernel of the state space duality; dimensions and tasks as in `numba_tiles.py`.

Chunks are computed from the last to the first, from the states that the forward has kept. The letters are those of
`chunked.py`, with `g` for the gradient of the state after a chunk.
"""

from typing import NamedTuple

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, add, constant, fma, load, mul, pointer, shifted, splat, store, total
from hf_ssm.ops.ssd.numba_forward import read_weights
from hf_ssm.ops.ssd.numba_tiles import (
    FULL,
    LOWER,
    UPPER,
    multiply,
    read_decays,
    read_rows,
    scale_rows,
    transpose,
    write_rows,
)

__all__ = ["GradientArguments", "backward", "backward_scratch"]


class GradientArguments(NamedTuple):
    """Strides of the gradient of the output, with a dense last dimension, and addresses of contiguous tensors.

    The gradients of x `(B, L, H, channels)`, d and the logarithms of the decays `(B, L, H)`; those of B and C of each
    task of a group `(tasks, B, L, G, states)`; that of D for each sequence `(B, H, P)`. The state of the job is the
    gradient of the last state, and becomes that of the first.
    """

    y: int
    y_batch: int
    y_row: int
    y_head: int
    x: int
    d: int
    logs: int
    B: int
    C: int
    D: int


def backward_scratch(chunk: int, wide: int, deep: int) -> int:
    """Size of the scratch memory of a task, in numbers."""
    return chunk * (6 * deep + 4 * chunk + 6 * wide + 10) + deep * wide


@kernel
def _row_dots(a, b, rows, columns, sums, like):
    """`sums[i] = a_i · b_i`."""
    for i in range(rows):
        value, row = constant(0.0, like), i * columns
        for j in range(0, columns, LANES):
            value = fma(load(a, row + j), load(b, row + j), value)
        sums[i] = total(value)


@kernel
def _add_to(target, source, size):
    for i in range(0, size, LANES):
        store(target, i, add(load(target, i), load(source, i)))


@kernel
def _fill_zeros(target, size, like):
    for i in range(0, size, LANES):
        store(target, i, constant(0.0, like))


@kernel
def _differentiate_weights(outer, products, d, e, row, weights, grad_products, chunk, like):
    """From `outer = (gradient of y) xᵀ`: `weights = l_ij (C_i · B_j)`, and the gradients of `C_i · B_j`, added.

    `outer` becomes the gradient of the logarithm of `l`.
    """
    _fill_zeros(row, chunk, like)
    for i in range(chunk):
        decay = splat(e[i])
        for j in range(0, i, LANES):
            store(row, j, mul(decay, load(row, j)))
        row[i] = 1.0
        at = i * chunk
        for j in range(0, i + 1, LANES):
            place = at + j
            factor, product = load(row, j), load(products, place)
            store(weights, place, mul(factor, product))
            grad = mul(mul(load(outer, place), factor), load(d, j))
            store(grad_products, place, add(load(grad_products, place), grad))
            store(outer, place, mul(grad, product))


@kernel
def _sum_paths(grads, into, out_of, through, column, logs, chunk, like):
    """Gradients of the logarithms at each position k: of all paths from j < k, or the state before, to i >= k."""
    _fill_zeros(column, chunk, like)
    after = through
    for k in range(chunk - 1, -1, -1):
        for j in range(0, k + 1, LANES):
            store(column, j, add(load(column, j), load(grads, k * chunk + j)))
        column[k] = 0.0
        value = constant(0.0, like)
        for j in range(0, k, LANES):
            value = add(value, load(column, j))
        after += into[k]
        logs[k] = total(value) + after
    before = 0.0 * through
    for k in range(chunk):
        logs[k] += before
        before += out_of[k]


@kernel
def backward(args, grads, like, b, group, part, address):
    """Gradients of some heads of a group of one sequence.

    Args:
        args: `SSDArguments`.
        grads: `GradientArguments`.
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
    grad_B, grad_C, added = (
        shifted(B, 3 * chunk * deep),
        shifted(B, 4 * chunk * deep),
        shifted(B, 5 * chunk * deep),
    )
    products = shifted(B, 6 * chunk * deep)
    weights, grad_products, outer = (
        shifted(products, chunk * chunk),
        shifted(products, 2 * chunk * chunk),
        shifted(products, 3 * chunk * chunk),
    )
    x = shifted(products, 4 * chunk * chunk)
    gy, scaled_x, scaled_y, gu, x_turned = (
        shifted(x, chunk * wide),
        shifted(x, 2 * chunk * wide),
        shifted(x, 3 * chunk * wide),
        shifted(x, 4 * chunk * wide),
        shifted(x, 5 * chunk * wide),
    )
    square = shifted(x, 6 * chunk * wide)
    d = shifted(square, deep * wide)
    e, p, r, row, factors, into, out_of, logs, direct = (
        shifted(d, chunk),
        shifted(d, 2 * chunk),
        shifted(d, 3 * chunk),
        shifted(d, 4 * chunk),
        shifted(d, 5 * chunk),
        shifted(d, 6 * chunk),
        shifted(d, 7 * chunk),
        shifted(d, 8 * chunk),
        shifted(d, 9 * chunk),
    )
    size, x_row, like_zero = deep * wide, args.heads * args.channels, constant(0.0, like)
    weights_row = args.groups * args.states
    for k in range(args.chunks - 1, -1, -1):
        first = k * chunk
        steps = min(chunk, args.length - first)
        read_weights(args, b, group, first, steps, B, C, turned, products, like)
        _fill_zeros(grad_B, chunk * deep, like)
        _fill_zeros(grad_C, chunk * deep, like)
        _fill_zeros(grad_products, chunk * chunk, like)
        for head in range(first_head, end_head):
            at_head = b * args.heads + head
            g = shifted(pointer(args.state, like), at_head * size)
            state = shifted(pointer(args.kept, like), (at_head * args.chunks + k) * size)
            read_decays(args, b, head, first, steps, d, e, p, r, like)
            x_in = shifted(pointer(args.x, like), b * args.x_batch + first * args.x_row + head * args.x_head)
            read_rows(x_in, args.x_row, steps, args.channels, x, chunk, wide, like)
            y_in = shifted(pointer(grads.y, like), b * grads.y_batch + first * grads.y_row + head * grads.y_head)
            read_rows(y_in, grads.y_row, steps, args.channels, gy, chunk, wide, like)
            for t in range(0, chunk, LANES):
                store(factors, t, mul(load(d, t), load(r, t)))
            scale_rows(x, factors, scaled_x, chunk, wide)
            scale_rows(gy, p, scaled_y, chunk, wide)
            # Through the states.
            transpose(state, square, deep, wide)
            multiply(added, deep, scaled_y, wide, 1, square, deep, chunk, wide, deep, FULL, False, like)
            _row_dots(added, C, chunk, deep, into, like)
            _add_to(grad_C, added, chunk * deep)
            transpose(g, square, deep, wide)
            multiply(added, deep, scaled_x, wide, 1, square, deep, chunk, wide, deep, FULL, False, like)
            _row_dots(added, B, chunk, deep, out_of, like)
            _add_to(grad_B, added, chunk * deep)
            value = like_zero
            for i in range(0, size, LANES):
                value = fma(load(g, i), load(state, i), value)
            through = total(value) * p[chunk - 1]
            multiply(gu, wide, B, deep, 1, g, wide, chunk, deep, wide, FULL, False, like)
            scale_rows(gu, r, gu, chunk, wide)
            decay = splat(p[chunk - 1])
            for i in range(0, size, LANES):
                store(g, i, mul(decay, load(g, i)))
            multiply(g, wide, C, 1, deep, scaled_y, wide, deep, chunk, wide, FULL, True, like)
            # Within the chunk.
            transpose(x, x_turned, chunk, wide)
            multiply(outer, chunk, gy, wide, 1, x_turned, chunk, chunk, wide, chunk, FULL, False, like)
            _differentiate_weights(outer, products, d, e, row, weights, grad_products, chunk, like)
            multiply(gu, wide, weights, 1, chunk, gy, wide, chunk, chunk, wide, UPPER, True, like)
            _sum_paths(outer, into, out_of, through, row, logs, chunk, like)
            _row_dots(x, gu, chunk, wide, direct, like)
            d_out = shifted(pointer(grads.d, like), (b * args.length + first) * args.heads + head)
            logs_out = shifted(pointer(grads.logs, like), (b * args.length + first) * args.heads + head)
            for t in range(steps):
                d_out[t * args.heads], logs_out[t * args.heads] = direct[t], logs[t]
            scale_rows(gu, d, gu, chunk, wide)
            if args.D != 0:
                D = shifted(pointer(args.D, like), head * wide)
                grad_D = shifted(pointer(grads.D, like), at_head * wide)
                for j in range(0, wide, LANES):
                    value = load(grad_D, j)
                    for t in range(steps):
                        at = t * wide + j
                        value = fma(load(x, at), load(gy, at), value)
                        store(gu, at, fma(load(D, j), load(gy, at), load(gu, at)))
                    store(grad_D, j, value)
            x_out = shifted(pointer(grads.x, like), (b * args.length + first) * x_row + head * args.channels)
            write_rows(gu, wide, x_out, x_row, steps, args.channels)
        multiply(grad_C, deep, grad_products, chunk, 1, B, deep, chunk, chunk, deep, LOWER, True, like)
        multiply(grad_B, deep, grad_products, 1, chunk, C, deep, chunk, chunk, deep, UPPER, True, like)
        out = ((part * args.batch + b) * args.length + first) * weights_row + group * args.states
        write_rows(grad_B, deep, shifted(pointer(grads.B, like), out), weights_row, steps, args.states)
        write_rows(grad_C, deep, shifted(pointer(grads.C, like), out), weights_row, steps, args.states)
