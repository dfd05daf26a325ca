"""The selective scan by compiled kernels: custom operators, tasks and gradients.

Dimensions as in `numba_tiles.py`; `P` real planes, 1 for real and 2 for complex states.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.context import in_function_transform
from hf_ssm.ops.cpu.arguments import address, dense_rows, place, round_up
from hf_ssm.ops.cpu.vector import LANES
from hf_ssm.ops.operators import needs_gradient
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.numba_backward import GradientArguments, backward, backward_scratch
from hf_ssm.ops.selective_scan.numba_forward import forward_rows, forward_scratch
from hf_ssm.ops.selective_scan.numba_tiles import GROUP, TILE, ScanArguments
from hf_ssm.ops.selective_scan.operators import selective_scan_operator
from hf_ssm.ops.threads import run_tasks

__all__ = ["scan_numba", "supports_scan"]

# Blocks of channels of one task at most, for the cache, and at least, since each task computes the sums over channels
# itself; and the number of tasks to aim for. Tasks do not depend on the number of threads, and so neither do sums.
_MAX_BLOCKS, _MIN_BLOCKS, _TASKS = 16, 2, 8
# A task of the forward takes several sequences of a large batch: starting a task costs as much as some positions.
_MAX_TASKS = 16


def _planes(t: Tensor) -> Tensor:
    """`(...)` -> `(..., P)`, real."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.unsqueeze(-1)


def _packed(planes: Tensor) -> Tensor:
    """`(..., D, N, P)` -> `(..., K, P S, 16)`, padded with zeros."""
    *lead, channels, states, parts = planes.shape
    wide, high = round_up(channels, LANES), round_up(states, GROUP)
    filled = F.pad(planes, (0, 0, 0, high - states, 0, wide - channels))
    blocks = filled.view(*lead, wide // LANES, LANES, high, parts)
    return blocks.movedim((-1, -2, -3), (-3, -2, -1)).contiguous().flatten(-3, -2)


def _unpacked(packed: Tensor, A: Tensor) -> Tensor:
    """The inverse of `_packed`: `(..., D, N)`, complex if A `(D, N)` is."""
    (channels, states), paired = A.shape, A.is_complex()
    parts = 2 if paired else 1
    blocks = packed.unflatten(-2, (parts, -1)).movedim((-3, -2, -1), (-1, -2, -3))
    tensor = blocks.flatten(-4, -3)[..., :channels, :states, :].contiguous()
    return torch.view_as_complex(tensor) if paired else tensor.squeeze(-1)


def _exponents(A: Tensor) -> Tensor:
    """A packed for `exp2`, its real part in units of log 2; for complex states also its imaginary part, in turns and,
    for the gradient of the step, in units of log 2."""
    if not A.is_complex():
        return _packed(_planes(A / math.log(2)))
    A = A.resolve_conj()
    return _packed(torch.stack([A.real / math.log(2), A.imag / math.tau, A.imag / math.log(2)], dim=-1))


class _ScanJob:
    """The arguments of the kernels of a scan, and its division into tasks."""

    def __init__(self, args: ScanTensors, softplus: bool, state: Tensor, **outputs: Tensor | None):
        u, delta, A, B, C, D, z, bias, _ = args
        self.batch, length, channels = u.shape
        blocks, rows = state.shape[1:3]
        # Few tasks would leave threads idle; results must not depend on the number of threads.
        width = min(_MAX_BLOCKS, max(_MIN_BLOCKS, blocks * self.batch // _TASKS))
        self.groups = -(-blocks // width)
        self.paired = True if A.is_complex() else None
        u, delta, B, C = (dense_rows(t.resolve_conj()) for t in (u, delta, B, C))
        z = None if z is None else dense_rows(z)
        beyond = (0, blocks * LANES - channels)
        D = None if D is None else F.pad(D, beyond)
        bias = None if bias is None else F.pad(bias.expand(channels), beyond)
        exponents, starts, y = _exponents(A), outputs.get("starts"), outputs.get("y")
        # Keeps the tensors, and so their addresses, alive.
        self.kept = (u, delta, B, C, z, D, bias, exponents, state, starts, y)
        numbers: list[Any] = [
            *(self.batch, length, channels, A.shape[1], rows, blocks, -(-length // TILE), width),
            *(softplus, delta.shape[-1] < channels),
            *(number for t in (u, delta, z, B, C) for number in place(t, 2)),
            *(address(t) for t in (exponents, D, bias, state, starts)),
            *place(y, 2),
        ]
        self.arguments = ScanArguments(*numbers)
        self.like = u.new_zeros(()).numpy()[()]

    def run(self, kernel: Any, scratch: int, *more: Any) -> None:
        """Call `kernel` for every task, with `more` after the first of its arguments."""

        def task(number: int) -> None:
            b, group = divmod(number, self.groups)
            work = torch.zeros(scratch, dtype=self.kept[0].dtype)
            kernel(self.arguments, *more, self.like, self.paired, b, group, work.data_ptr())

        run_tasks(task, self.batch * self.groups)

    def run_rows(self, kernel: Any, scratch: int) -> None:
        """Call `kernel` for every task; a task of a large batch has several sequences."""
        if self.batch == 0:
            return
        count = max(1, self.batch * self.groups // _MAX_TASKS)

        def task(number: int) -> None:
            batch_part, group = divmod(number, self.groups)
            first = batch_part * count
            work = torch.zeros(scratch, dtype=self.kept[0].dtype)
            rows = first, min(first + count, self.batch)
            kernel(self.arguments, self.like, self.paired, *rows, group, work.data_ptr())

        run_tasks(task, -(-self.batch // count) * self.groups)


def _sizes(u: Tensor, A: Tensor) -> tuple[int, int, int, int]:
    """`tiles, K, R, 16`."""
    blocks, rows = round_up(A.shape[0], LANES) // LANES, round_up(A.shape[1], GROUP) * (2 if A.is_complex() else 1)
    return (u.shape[1] + TILE - 1) // TILE, blocks, rows, LANES


def _run_forward(args: ScanTensors, delta_softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state and, with `keep`, the states before each tile for the backward."""
    u, A = args.u, args.A
    tiles, *block = _sizes(u, A)
    y = u.new_empty(u.shape)
    starts = u.new_empty((len(u), tiles, *block) if keep else (0,))
    state = u.new_zeros(len(u), *block) if args.state is None else _packed(_planes(args.state))
    job = _ScanJob(args, delta_softplus, state, starts=starts, y=y)
    job.run_rows(forward_rows, forward_scratch(job.arguments.rows))
    return y, _unpacked(state, A), starts


def _empty_results(args: ScanTensors, delta_softplus: bool, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, A = args.u, args.A
    starts = u.new_empty((len(u), *_sizes(u, A)) if keep else (0,))
    return u.new_empty(u.shape), A.new_empty(len(u), *A.shape), starts


def _run_backward(
    grad_y: Tensor,
    grad_last: Tensor | None,
    args: ScanTensors,
    delta_softplus: bool,
    starts: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Gradients of u, delta, A, B, C, D, z, the bias and the initial state."""
    u, A, delta_bias = args.u, args.A, args.delta_bias
    (batch, length, channels), states, block = u.shape, A.shape[1], starts.shape[2:]
    grad_y = dense_rows(grad_y)
    state = u.new_zeros(batch, *block) if grad_last is None else _packed(_planes(grad_last))
    job = _ScanJob(args, delta_softplus, state, starts=starts)
    grad_u, grad_z = (u.new_empty(u.shape if w else (0,)) for w in (wanted[0], wanted[6]))
    shared = bool(job.arguments.shared_step)
    grad_delta = u.new_empty(((job.groups, batch, length, 1) if shared else u.shape) if wanted[1] else (0,))
    parts = (2,) if A.is_complex() else ()
    grad_B, grad_C = (u.new_empty((job.groups, batch, length, states, *parts)) for _ in range(2))
    grad_A, grad_D, grad_bias = u.new_zeros(batch, *block), *u.new_zeros(2, batch, block[0] * LANES)
    outputs = (state, grad_u, grad_delta, grad_z, grad_A, grad_B, grad_C, grad_D, grad_bias)
    numbers: list[int] = [*place(grad_y, 2), *(address(t) for t in outputs)]
    job.run(backward, backward_scratch(job.arguments.rows), GradientArguments(*numbers))
    grad_B, grad_C = (grad[0] if job.groups == 1 else grad.sum(0) for grad in (grad_B, grad_C))
    if parts:
        grad_B, grad_C = torch.view_as_complex(grad_B), torch.view_as_complex(grad_C)
    if shared and wanted[1]:
        grad_delta = grad_delta.sum(0)
    bias = grad_bias.sum(0)[:channels]
    bias = bias.sum(0, keepdim=True) if delta_bias is not None and delta_bias.shape[0] < channels else bias.clone()
    grad_A = _unpacked(grad_A.sum(0), A)
    initial = _unpacked(state, A)
    return grad_u, grad_delta, grad_A, grad_B, grad_C, grad_D.sum(0)[:channels].clone(), grad_z, bias, initial


_OPERATOR = {"forward": _run_forward, "fake": _empty_results, "backward": _run_backward}
_forward, _backward = selective_scan_operator("hf_ssm::selective_scan", **_OPERATOR, device="cpu")


def supports_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> bool:
    """The kernels have no rules for transforms of functions."""
    return not in_function_transform()


def scan_numba(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """The output and the last state."""
    tensors = tuple(args.cast(args.dtype))
    y, last, _ = _forward(*tensors, delta_softplus, needs_gradient(*tensors))
    return y.to(args.u.dtype), last
