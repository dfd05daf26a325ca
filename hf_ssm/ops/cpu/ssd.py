"""The state space duality in float32 by compiled kernels.

Dimensions: `B` batch, `L` length in chunks, `H` heads, `P` channels of a head and `N` states, both in multiples of 16,
`G` groups, `K` chunks, `T` positions of a chunk, a multiple of 16.

A task computes some heads of one group of one sequence, chunk by chunk, in scratch memory that fits the second cache.
All matrix products are one kernel of 4 rows by 4 vectors, whose left factor is read number by number, in any layout.
The letters are those of `ops/ssd.py`, with `g` for the gradient of the state after a chunk; the backward pass starts
from the states before each chunk, which the forward pass keeps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hf_ssm.ops.context import gradients
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vectors import LANES, F, load, pointer, shifted, splat, store, total
from hf_ssm.ops.threads import run_tasks

__all__ = ["compiled_ssd"]

# Heads of a task at most, for the cache, and the number of tasks to aim for. Tasks do not depend on the number of
# threads, and so neither do sums.
_MOST_HEADS, _TASKS = 8, 8
_ZERO, _ONE = F(0), F(1)
# Which part of the left factor of a product is not zero.
_FULL, _LOWER, _UPPER = 0, 1, 2


class _Chunks(NamedTuple):
    """Sizes, and addresses of contiguous tensors.

    `x` and `y` are `(B, H, L, P)`, `B` and `C` `(B, G, L, N)`, `d` and the decays `e` `(B, H, L)`, `state`
    `(B, H, N, P)`, `kept` `(B, H, K, N, P)` or 0. In the backward pass `y` is its gradient, and `state` that of the
    last state, which becomes that of the initial one.
    """

    batch: int
    heads: int
    groups: int
    chunks: int
    chunk: int
    channels: int
    states: int
    x: int
    d: int
    e: int
    B: int
    C: int
    state: int
    kept: int
    y: int


class _Gradients(NamedTuple):
    """Addresses of the gradients: of `d` without the decays, and of the logarithms of the decays (`logs`).

    Those of `B` and `C` are of each task of a group, `(tasks, B, G, L, N)`.
    """

    x: int
    d: int
    logs: int
    B: int
    C: int


@kernel
def _square(out, out_row, a, a_row, a_column, b, b_row, first, end, adds):
    """4 rows by 4 vectors of `_multiply`."""
    r1, r2, r3, v1, v2, v3 = out_row, 2 * out_row, 3 * out_row, LANES, 2 * LANES, 3 * LANES
    zero = splat(_ZERO)
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
        a0 = a[at]
        c00, c01, c02, c03 = c00 + a0 * b0, c01 + a0 * b1, c02 + a0 * b2, c03 + a0 * b3
        a1 = a[at + a_row]
        c10, c11, c12, c13 = c10 + a1 * b0, c11 + a1 * b1, c12 + a1 * b2, c13 + a1 * b3
        a2 = a[at + 2 * a_row]
        c20, c21, c22, c23 = c20 + a2 * b0, c21 + a2 * b1, c22 + a2 * b2, c23 + a2 * b3
        a3 = a[at + 3 * a_row]
        c30, c31, c32, c33 = c30 + a3 * b0, c31 + a3 * b1, c32 + a3 * b2, c33 + a3 * b3
    _store4(out, 0, c00, c01, c02, c03)
    _store4(out, r1, c10, c11, c12, c13)
    _store4(out, r2, c20, c21, c22, c23)
    _store4(out, r3, c30, c31, c32, c33)


@kernel
def _store4(out, at, v0, v1, v2, v3):
    store(out, at, v0)
    store(out, at + LANES, v1)
    store(out, at + 2 * LANES, v2)
    store(out, at + 3 * LANES, v3)


@kernel
def _column(out, out_row, a, a_row, a_column, b, b_row, first, end, adds):
    """4 rows by a vector of `_multiply`."""
    r1, r2, r3 = out_row, 2 * out_row, 3 * out_row
    c0 = c1 = c2 = c3 = splat(_ZERO)
    if adds:
        c0, c1, c2, c3 = load(out, 0), load(out, r1), load(out, r2), load(out, r3)
    for k in range(first, end):
        at, b0 = k * a_column, load(b, k * b_row)
        c0, c1 = c0 + a[at] * b0, c1 + a[at + a_row] * b0
        c2, c3 = c2 + a[at + 2 * a_row] * b0, c3 + a[at + 3 * a_row] * b0
    store(out, 0, c0)
    store(out, r1, c1)
    store(out, r2, c2)
    store(out, r3, c3)


@kernel
def _multiply(out, a, a_row, a_column, b, rows, depth, columns, part, adds):
    """`out = a b`, or with `adds` `out += a b`, for a `(rows, depth)` of any strides and dense `out` and b.

    Args:
        rows: A multiple of 4.
        columns: A multiple of 16.
        part: `_FULL`, `_LOWER` or `_UPPER`: the part of a that is read, up to squares of 4 on its diagonal.
    """
    for j in range(0, columns, 4 * LANES):
        vectors = min(4, (columns - j) // LANES)
        for i in range(0, rows, 4):
            first, end = (i if part == _UPPER else 0), (min(i + 4, depth) if part == _LOWER else depth)
            target, left = shifted(out, i * columns + j), shifted(a, i * a_row)
            if vectors == 4:
                _square(target, columns, left, a_row, a_column, shifted(b, j), columns, first, end, adds)
            else:
                for v in range(0, vectors * LANES, LANES):
                    at = shifted(b, j + v)
                    _column(shifted(target, v), columns, left, a_row, a_column, at, columns, first, end, adds)


@kernel
def _scale_rows(source, factors, target, rows, columns):
    """`target[i] = factors[i] source[i]` for dense rows."""
    for i in range(rows):
        for j in range(i * columns, (i + 1) * columns, LANES):
            store(target, j, factors[i] * load(source, j))


@kernel
def _scale(target, factor, size):
    for i in range(0, size, LANES):
        store(target, i, factor * load(target, i))


@kernel
def _transpose(source, target, rows, columns):
    for j in range(columns):
        for i in range(rows):
            target[j * rows + i] = source[i * columns + j]


@kernel
def _read_decays(d, e, p, r, factors, chunk):
    """Decays from before the chunk, those to its end, and these times the step sizes."""
    p[0], r[chunk - 1] = e[0], _ONE
    for t in range(1, chunk):
        p[t] = p[t - 1] * e[t]
    for t in range(chunk - 1, 0, -1):
        r[t - 1] = r[t] * e[t]
    for t in range(0, chunk, LANES):
        store(factors, t, load(d, t) * load(r, t))


@kernel
def _advance_row(row, e, i):
    """The next row of `l`: the one before times the decay."""
    for j in range(0, i, LANES):
        store(row, j, e[i] * load(row, j))
    row[i] = _ONE


@kernel
def _forward(s, b, group, part, first, end, work):
    """Compute the heads `first` to `end - 1` of a group of sequence `b`."""
    chunk, wide, deep = s.chunk, s.channels, s.states
    products, weights = pointer(work, 0), pointer(work, chunk * chunk)
    scaled, turned = pointer(work, 2 * chunk * chunk), pointer(work, chunk * (2 * chunk + wide))
    p, r, factors, row = (
        pointer(work, chunk * (2 * chunk + wide + deep)),
        pointer(work, chunk * (2 * chunk + wide + deep + 1)),
        pointer(work, chunk * (2 * chunk + wide + deep + 2)),
        pointer(work, chunk * (2 * chunk + wide + deep + 3)),
    )
    for k in range(s.chunks):
        at = ((b * s.groups + group) * s.chunks + k) * chunk * deep
        B, C = pointer(s.B, at), pointer(s.C, at)
        _transpose(B, turned, chunk, deep)
        _multiply(products, C, deep, 1, turned, chunk, deep, chunk, _FULL, False)
        for head in range(b * s.heads + first, b * s.heads + end):
            here = head * s.chunks + k
            x, y = pointer(s.x, here * chunk * wide), pointer(s.y, here * chunk * wide)
            d, e, state = pointer(s.d, here * chunk), pointer(s.e, here * chunk), pointer(s.state, head * deep * wide)
            if s.kept != 0:
                kept = pointer(s.kept, here * deep * wide)
                for i in range(0, deep * wide, LANES):
                    store(kept, i, load(state, i))
            _read_decays(d, e, p, r, factors, chunk)
            _clear(row, chunk)
            for i in range(chunk):
                _advance_row(row, e, i)
                for j in range(0, i + 1, LANES):
                    store(weights, i * chunk + j, load(row, j) * load(d, j) * load(products, i * chunk + j))
            _multiply(y, C, deep, 1, state, chunk, deep, wide, _FULL, False)
            _scale_rows(y, p, y, chunk, wide)
            _multiply(y, weights, chunk, 1, x, chunk, chunk, wide, _LOWER, True)
            _scale_rows(x, factors, scaled, chunk, wide)
            _scale(state, p[chunk - 1], deep * wide)
            _multiply(state, B, 1, deep, scaled, deep, chunk, wide, _FULL, True)


@kernel
def _clear(target, size):
    for i in range(0, size, LANES):
        store(target, i, splat(_ZERO))


@kernel
def _add_dots(a, b, rows, columns, sums, grads):
    """`sums[i] = a_i · b_i`, and `grads += a`."""
    for i in range(rows):
        value = splat(_ZERO)
        for j in range(i * columns, (i + 1) * columns, LANES):
            value = value + load(a, j) * load(b, j)
            store(grads, j, load(grads, j) + load(a, j))
        sums[i] = total(value)


@kernel
def _differentiate_weights(outer, products, d, e, row, weights, grad_products, chunk):
    """From `outer = (gradient of y) xᵀ`: `weights = l_ij (C_i · B_j)`, and the gradients of `C_i · B_j`, added.

    `outer` becomes the gradient of the logarithm of `l`.
    """
    _clear(row, chunk)
    for i in range(chunk):
        _advance_row(row, e, i)
        for j in range(0, i + 1, LANES):
            place = i * chunk + j
            factor, product = load(row, j), load(products, place)
            store(weights, place, factor * product)
            grad = load(outer, place) * factor * load(d, j)
            store(grad_products, place, load(grad_products, place) + grad)
            store(outer, place, grad * product)


@kernel
def _sum_paths(grads, into, out_of, through, column, logs, chunk):
    """Gradients of the logarithms at each position k: of all paths from j < k, or the state before, to i >= k."""
    _clear(column, chunk)
    after = through
    for k in range(chunk - 1, -1, -1):
        for j in range(0, k + 1, LANES):
            store(column, j, load(column, j) + load(grads, k * chunk + j))
        column[k] = _ZERO
        value = splat(_ZERO)
        for j in range(0, k, LANES):
            value = value + load(column, j)
        after += into[k]
        logs[k] = total(value) + after
    before = _ZERO
    for k in range(chunk):
        logs[k] += before
        before += out_of[k]


@kernel
def _backward(s, g, b, group, part, first, end, work):
    """Compute the gradients of the heads `first` to `end - 1` of a group of sequence `b`, task `part` of the group."""
    chunk, wide, deep = s.chunk, s.channels, s.states
    products, weights = pointer(work, 0), pointer(work, chunk * chunk)
    outer, grad_products = pointer(work, 2 * chunk * chunk), pointer(work, 3 * chunk * chunk)
    lines = pointer(work, 4 * chunk * chunk)
    p, r, factors, row, into, out_of = (
        lines,
        shifted(lines, chunk),
        shifted(lines, 2 * chunk),
        shifted(lines, 3 * chunk),
        shifted(lines, 4 * chunk),
        shifted(lines, 5 * chunk),
    )
    added = shifted(lines, 6 * chunk)
    scaled_x, scaled_y = shifted(added, chunk * deep), shifted(added, chunk * (deep + wide))
    turned = shifted(added, chunk * (deep + 2 * wide))
    size = deep * wide
    for k in range(s.chunks - 1, -1, -1):
        at = ((b * s.groups + group) * s.chunks + k) * chunk * deep
        B, C = pointer(s.B, at), pointer(s.C, at)
        at += part * s.batch * s.groups * s.chunks * chunk * deep
        grad_B, grad_C = pointer(g.B, at), pointer(g.C, at)
        _transpose(B, turned, chunk, deep)
        _multiply(products, C, deep, 1, turned, chunk, deep, chunk, _FULL, False)
        _clear(grad_products, chunk * chunk)
        for head in range(b * s.heads + first, b * s.heads + end):
            here = head * s.chunks + k
            x, gy = pointer(s.x, here * chunk * wide), pointer(s.y, here * chunk * wide)
            d, e = pointer(s.d, here * chunk), pointer(s.e, here * chunk)
            grad, state = pointer(s.state, head * size), pointer(s.kept, here * size)
            gu, direct, logs = (
                pointer(g.x, here * chunk * wide),
                pointer(g.d, here * chunk),
                pointer(g.logs, here * chunk),
            )
            _read_decays(d, e, p, r, factors, chunk)
            _scale_rows(x, factors, scaled_x, chunk, wide)
            _scale_rows(gy, p, scaled_y, chunk, wide)
            # Through the states.
            _transpose(state, turned, deep, wide)
            _multiply(added, scaled_y, wide, 1, turned, chunk, wide, deep, _FULL, False)
            _add_dots(added, C, chunk, deep, into, grad_C)
            _transpose(grad, turned, deep, wide)
            _multiply(added, scaled_x, wide, 1, turned, chunk, wide, deep, _FULL, False)
            _add_dots(added, B, chunk, deep, out_of, grad_B)
            value = splat(_ZERO)
            for i in range(0, size, LANES):
                value = value + load(grad, i) * load(state, i)
            through = total(value) * p[chunk - 1]
            _multiply(gu, B, deep, 1, grad, chunk, deep, wide, _FULL, False)
            _scale_rows(gu, r, gu, chunk, wide)
            _scale(grad, p[chunk - 1], size)
            _multiply(grad, C, 1, deep, scaled_y, deep, chunk, wide, _FULL, True)
            # Within the chunk.
            _transpose(x, turned, chunk, wide)
            _multiply(outer, gy, wide, 1, turned, chunk, wide, chunk, _FULL, False)
            _differentiate_weights(outer, products, d, e, row, weights, grad_products, chunk)
            _multiply(gu, weights, 1, chunk, gy, chunk, chunk, wide, _UPPER, True)
            _sum_paths(outer, into, out_of, through, row, logs, chunk)
            for t in range(chunk):
                value = splat(_ZERO)
                for j in range(t * wide, (t + 1) * wide, LANES):
                    value = value + load(x, j) * load(gu, j)
                direct[t] = total(value)
            _scale_rows(gu, d, gu, chunk, wide)
        _multiply(grad_C, grad_products, chunk, 1, B, chunk, chunk, deep, _LOWER, True)
        _multiply(grad_B, grad_products, 1, chunk, C, chunk, chunk, deep, _UPPER, True)


class _CompiledDuality(torch.autograd.Function):
    """The scan of float32 tensors without skip; keeps them as they are, and the states before each chunk."""

    @staticmethod
    def forward(ctx: Any, plain: Callable[..., Any], size: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.plain, ctx.size = partial(plain, size=size), -(-min(size, tensors[0].shape[1]) // LANES) * LANES
        (x, d, e, B, C, state), original = _dense(ctx.size, *tensors), tensors[0]
        chunks = x.shape[2] // ctx.size
        size_kept = (*state.shape[:2], chunks, *state.shape[2:]) if any(ctx.needs_input_grad) else (0,)
        y, last, kept = torch.empty_like(x), state.clone(), x.new_empty(size_kept)
        _run(_forward, (), ctx.size, x, d, e, B, C, last, kept, y)
        ctx.save_for_backward(*tensors, kept)
        return _undo(y, original), last.transpose(2, 3)[:, :, : original.shape[3], : tensors[3].shape[3]].contiguous()

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, None, *gradients(ctx.plain, tensors, (grad_y, grad_last))
        original, step, logs, weights, others, initial = tensors
        x, d, e, B, C, state = _dense(ctx.size, original, step, logs, weights, others, grad_last)
        gy = _by_row(grad_y, ctx.size)
        grad_x, grad_d, grad_logs = torch.empty_like(x), torch.empty_like(d), torch.empty_like(d)
        parts = -(-(x.shape[1] // B.shape[1]) // _heads_of_a_task(x, B))
        grad_B, grad_C = (x.new_zeros(parts, *B.shape) for _ in range(2))
        _run(_backward, (grad_x, grad_d, grad_logs, grad_B, grad_C), ctx.size, x, d, e, B, C, state, kept, gy)
        grad_B, grad_C = (_undo(grad.sum(0), weights) for grad in (grad_B, grad_C))
        grad_d, grad_logs = (grad[..., : step.shape[1]].transpose(1, 2) for grad in (grad_d, grad_logs))
        first = state.transpose(2, 3)[:, :, : initial.shape[2], : initial.shape[3]]
        return None, None, _undo(grad_x, original), grad_d, grad_logs, grad_B, grad_C, first


def _padded(t: Tensor, *more: int) -> Tensor:
    # `pad` copies where there is nothing to add, too.
    return functional.pad(t, more) if any(more) else t


def _by_row(t: Tensor, size: int) -> Tensor:
    """`(B, L, H, P)` -> `(B, H, L, P)`, dense, with zeros up to whole chunks and vectors."""
    return _padded(t.transpose(1, 2), 0, -t.shape[3] % LANES, 0, -t.shape[1] % size).contiguous()


def _undo(t: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_by_row`, in the shape of another tensor."""
    return t.transpose(1, 2)[:, : like.shape[1], :, : like.shape[3]].contiguous()


def _dense(
    size: int, x: Tensor, d: Tensor, logs: Tensor, B: Tensor, C: Tensor, state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The tensors in the layout of the kernels, with decays in place of their logarithms."""
    more = -x.shape[1] % size
    # After the last position, steps are 0 and decays 1.
    d, e = _padded(d.transpose(1, 2), 0, more), _padded(logs.transpose(1, 2), 0, more).exp()
    state = _padded(state.transpose(2, 3), 0, -state.shape[2] % LANES, 0, -state.shape[3] % LANES)
    state = state.clone(memory_format=torch.contiguous_format)
    return _by_row(x, size), d.contiguous(), e.contiguous(), _by_row(B, size), _by_row(C, size), state


def _heads_of_a_task(x: Tensor, B: Tensor) -> int:
    of_group = x.shape[1] // B.shape[1]
    return max(1, min(_MOST_HEADS, of_group, len(x) * x.shape[1] // _TASKS))


def _run(kernel: Any, grads: tuple[Tensor, ...], size: int, *tensors: Tensor) -> None:
    """Call a kernel for each task; `tensors` as in `_Chunks`."""
    x, B = tensors[0], tensors[3]
    (batch, heads, length, wide), (groups, deep) = x.shape, (B.shape[1], B.shape[3])
    addresses = [t.data_ptr() if t.numel() else 0 for t in tensors]
    chunks = _Chunks(batch, heads, groups, length // size, size, wide, deep, *addresses)
    more = (_Gradients(*(t.data_ptr() for t in grads)),) if grads else ()
    of_group, width = heads // groups, _heads_of_a_task(x, B)
    parts = -(-of_group // width)
    scratch = size * (4 * size + 6 + deep + 2 * wide) + max(deep * wide, size * deep, size * wide) + 4 * size

    def task(number: int) -> None:
        rest, part = divmod(number, parts)
        b, group = divmod(rest, groups)
        first, end = group * of_group + part * width, group * of_group + min((part + 1) * width, of_group)
        work = torch.empty(scratch)
        kernel(chunks, *more, b, group, part, first, end, work.data_ptr())

    run_tasks(task, batch * groups * parts)


def compiled_ssd(plain: Callable[..., Any], size: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """The output without skip, and the last state.

    Args:
        plain: The same function of the tensors, with chunks of `size`, for derivatives of gradients.
        size: Positions of a chunk at most.
        tensors: x, d, the logarithms of the decays, B, C and the initial state, float32.
    """
    y, last = _CompiledDuality.apply(plain, size, *tensors)
    return y, last
