"""The linear scan by compiled kernels: sequential in time, vectorised over states, threaded over batch and lines.

Dimensions: `B` batch, `L` length, `M` lines of a sequence, `S` states. Complex numbers are pairs of real numbers.
"""

from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import in_function_transform, is_plain_call
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import pointer
from hf_ssm.ops.linear_scan.parallel import scan_gradients, shifted_states
from hf_ssm.ops.threads import run_tasks

__all__ = ["scan_numba", "supports_scan"]

# Numbers of a position that a task computes: its states stay in the first cache.
_TILE = 1024
_TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


@kernel
def _real_tile(like, a, a_step, a_line, b, state, x, grad, before, sizes, start, end, first, last):
    """The scan of the states `first` to `last - 1` of the lines `start` to `end - 1` of one sequence.

    Args:
        like: A number of the type of the arithmetic.
        a, a_step, a_line: Address of the decay of the first position to compute, and its strides.
        b: Address of the input of that position.
        state: Address of the initial state, or 0.
        x: Address of the result at that position.
        grad: Address of the sum over positions of the products `x conj(before)`, or 0.
        before: Address of the states before each position, for the sum.
        sizes: Number of positions, stride of a position of `b` and `x`, states of a line, and in the adjoint 1: a
            decay is that of the position before, and its conjugate.
    """
    length, stride, states, adjoint = sizes
    A, B, X = pointer(a, like), pointer(b, like), pointer(x, like)
    G, W = pointer(grad, like), pointer(before, like)
    for t in range(length):
        at, previous = t * stride, (t - 1) * stride
        decay = (t - adjoint) * a_step
        for m in range(start, end):
            row = m * states
            line = decay + m * a_line
            if t > 0:
                for s in range(first, last):
                    X[at + row + s] = A[line + s] * X[previous + row + s] + B[at + row + s]
            elif state != 0:
                Z = pointer(state, like)
                for s in range(first, last):
                    X[at + row + s] = A[line + s] * Z[row + s] + B[at + row + s]
            else:
                for s in range(first, last):
                    X[at + row + s] = B[at + row + s]
            if grad != 0:
                total = m * a_line
                for s in range(first, last):
                    G[total + s] += X[at + row + s] * W[at + row + s]


@kernel
def _complex_tile(like, a, a_step, a_line, b, state, x, grad, before, sizes, start, end, first, last):
    """`_real_tile` for pairs of real numbers; strides are numbers of real numbers, `first` and `last` of pairs."""
    length, stride, states, adjoint = sizes
    A, B, X = pointer(a, like), pointer(b, like), pointer(x, like)
    G, W = pointer(grad, like), pointer(before, like)
    sign = like - like + 1 - 2 * adjoint
    for t in range(length):
        at, previous = t * stride, (t - 1) * stride
        decay = (t - adjoint) * a_step
        for m in range(start, end):
            row = at + 2 * m * states
            line = decay + m * a_line
            # Not one loop with a chosen pointer, which LLVM does not vectorise.
            if t > 0:
                past = previous + 2 * m * states
                for s in range(first, last):
                    ar, ai = A[line + 2 * s], sign * A[line + 2 * s + 1]
                    zr, zi = X[past + 2 * s], X[past + 2 * s + 1]
                    X[row + 2 * s] = ar * zr - ai * zi + B[row + 2 * s]
                    X[row + 2 * s + 1] = ar * zi + ai * zr + B[row + 2 * s + 1]
            elif state != 0:
                Z = pointer(state, like)
                past = 2 * m * states
                for s in range(first, last):
                    ar, ai = A[line + 2 * s], sign * A[line + 2 * s + 1]
                    zr, zi = Z[past + 2 * s], Z[past + 2 * s + 1]
                    X[row + 2 * s] = ar * zr - ai * zi + B[row + 2 * s]
                    X[row + 2 * s + 1] = ar * zi + ai * zr + B[row + 2 * s + 1]
            else:
                for s in range(2 * first, 2 * last):
                    X[row + s] = B[row + s]
            if grad != 0:
                total = m * a_line
                for s in range(first, last):
                    xr, xi = X[row + 2 * s], X[row + 2 * s + 1]
                    wr, wi = W[row + 2 * s], W[row + 2 * s + 1]
                    G[total + 2 * s] += xr * wr + xi * wi
                    G[total + 2 * s + 1] += xi * wr - xr * wi


def _run(
    a: Tensor,
    b: Tensor,
    state: Tensor | None,
    reverse: bool,
    before: Tensor | None = None,
    adjoint: bool = False,
) -> tuple[Tensor, Tensor]:
    """The states, and with `before` sums over positions of `x conj(before)`, `(B, ..., 1 or M, S)`."""
    batch, length, lines, states = b.shape
    pairs = 2 if b.is_complex() else 1
    a = a.resolve_conj()
    a = a if a.stride(-1) == 1 or states == 1 else a.contiguous()
    b = b.resolve_conj().contiguous()
    state = None if state is None else state.resolve_conj().contiguous()
    x = torch.empty_like(b)
    before = None if before is None else before.resolve_conj().contiguous()
    like = (b.real if b.is_complex() else b).new_zeros(()).numpy()[()]
    width = b.element_size()
    stride = lines * states
    a_batch, a_time, a_line, _ = (s if size > 1 else 0 for s, size in zip(a.stride(), a.shape, strict=True))
    begin, sign = (length - 1, -1) if reverse else (0, 1)
    run = _complex_tile if b.is_complex() else _real_tile
    # Whole lines of a sequence, or part of one line where it is long.
    high = max(1, _TILE // states)
    tiles = [(m, min(m + high, lines), 0, states) for m in range(0, lines, high)]
    if states > _TILE:
        tiles = [(m, n, s, min(s + _TILE, states)) for m, n, _, _ in tiles for s in range(0, states, _TILE)]
    sizes = (length, pairs * sign * stride, states, int(adjoint))
    # Tasks that share decays have sums of their own.
    sums = len(tiles) if a_line == 0 else 1
    grad = b.new_zeros((batch, sums, *a.shape[2:]) if before is not None else (0,))

    def task(number: int) -> None:
        n, tile = divmod(number, len(tiles))
        at = n * length * stride + begin * stride
        run(
            like,
            a.data_ptr() + width * (n * a_batch + (begin if a.shape[1] > 1 else 0) * a_time),
            pairs * sign * a_time,
            pairs * a_line,
            b.data_ptr() + width * at,
            0 if state is None else state.data_ptr() + width * n * stride,
            x.data_ptr() + width * at,
            0 if before is None else grad[n, tile if sums > 1 else 0].data_ptr(),
            0 if before is None else before.data_ptr() + width * at,
            sizes,
            *tiles[tile],
        )

    run_tasks(task, batch * len(tiles))
    return x, grad


@torch.library.custom_op("hf_ssm::linear_scan", mutates_args=(), device_types="cpu")
def _operator(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    return _run(a, b, state, reverse)[0]


@_operator.register_fake
def _(a, b, state, reverse):
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@torch.library.custom_op("hf_ssm::linear_scan_backward", mutates_args=(), device_types="cpu")
def _backward(a: Tensor, grad: Tensor, state: Tensor | None, x: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """Gradients of the inputs, and of decays that are the same at all positions."""
    g, sums = _run(a, grad, None, not reverse, before=shifted_states(x, state, reverse), adjoint=True)
    return g, sums.sum(1).sum_to_size(a.shape[0], *a.shape[2:]).unsqueeze(1)


@_backward.register_fake
def _(a, grad, state, x, reverse):
    return torch.empty_like(x, memory_format=torch.contiguous_format), a.new_empty(a.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, state, ctx.reverse = inputs
    ctx.save_for_backward(a, state, output)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    a, state, x = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    if torch.is_grad_enabled() or a.shape[1] > 1 or not wanted[0]:
        grads = scan_gradients(scan_numba, grad, a, state, x, ctx.reverse, wanted)
    else:
        g, grad_a = _backward(a, grad, state, x, ctx.reverse)
        first = g[:, -1] if ctx.reverse else g[:, 0]
        grads = grad_a, g, a[:, 0].conj() * first if wanted[2] else None
    return *grads, None


_operator.register_autograd(_gradients, setup_context=_save)


def supports_scan(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> bool:
    return not in_function_transform() and b.dtype in _TYPES


def scan_numba(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """All states `(B, L, M, S)`; arguments as in `loop_scan`."""
    if is_plain_call(a, b, state):
        return _run(a, b, state, reverse)[0]
    x: Tensor = _operator(a, b, state, reverse)
    return x
