"""The state space duality by compiled kernels: custom operators, tasks and gradients.

Dimensions as in `numba_tiles.py`.
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
from hf_ssm.ops.ssd.arguments import in_dtype_of_steps
from hf_ssm.ops.ssd.numba_backward import GradientArguments, backward, backward_scratch
from hf_ssm.ops.ssd.numba_forward import forward, forward_scratch
from hf_ssm.ops.ssd.numba_tiles import SSDArguments
from hf_ssm.ops.ssd.operators import ScanInputs, ssd_operator
from hf_ssm.ops.threads import run_tasks

__all__ = ["ssd_numba", "supports_ssd"]

# Positions of a chunk at most. The products with states cost the same for each size, and those within chunks grow with
# it; shorter chunks load and keep more states. With 64 a forward and backward is fastest for 16 to 256 states, and at
# least twice as fast as the torch path, so that this kernel runs wherever it can: `python benchmarks/speed.py ssd`.
_CHUNK = 64
# Heads of a task at most, for the cache, and the number of tasks to aim for. Tasks do not depend on the number of
# threads, and so neither do sums.
_MAX_WIDTH, _TASKS = 8, 8


def _padded_state(state: Tensor, wide: int, deep: int) -> Tensor:
    """`(B, H, channels, states)` -> a new `(B, H, N, P)`."""
    channels, states = state.shape[2:]
    return F.pad(state.transpose(2, 3), (0, wide - channels, 0, deep - states)).contiguous()


def _chunk_size(length: int, wanted: int | None) -> int:
    return round_up(min(length, _CHUNK if wanted is None else min(wanted, _CHUNK)), LANES)


def _kept_shape(x: Tensor, B: Tensor, chunk: int) -> tuple[int, ...]:
    """`(B, H, K, N, P)`."""
    batch, length, heads, channels = x.shape
    return batch, heads, -(-length // chunk), round_up(B.shape[3], LANES), round_up(channels, LANES)


class _Job:
    """The arguments of the kernels, and the division into tasks."""

    def __init__(self, args: ScanInputs, state: Tensor, kept: Tensor, chunk: int):
        x, d, A, B, C, D, _, starts = args
        (self.batch, length, heads, channels), (self.groups, states) = x.shape, B.shape[2:]
        deep, wide = state.shape[2:]
        of_group = heads // self.groups
        width = max(1, min(_MAX_WIDTH, of_group, self.batch * heads // _TASKS))
        self.parts = -(-of_group // width)
        x, B, C, d = dense_rows(x), dense_rows(B), dense_rows(C), d.contiguous()
        stays = None if starts is None else (~starts).to(x.dtype)
        A2 = A / math.log(2)
        if D is not None:
            D = F.pad((D.unsqueeze(-1) if D.dim() == 1 else D).expand(heads, channels), (0, wide - channels))
        # Keeps the tensors, and so their addresses, alive.
        self.kept = (x, B, C, d, stays, A2, D, state, kept)
        numbers = [
            *(self.batch, length, heads, channels, self.groups, states, chunk, -(-length // chunk), wide, deep, width),
            *(number for t in (x, B, C) for number in place(t, 3)),
            *(address(t) for t in (d, stays, A2, D, state, kept)),
        ]
        self.arguments = SSDArguments(*numbers)
        self.like = x.new_zeros(()).numpy()[()]

    def run(self, kernel: Any, scratch: Any, more: Any) -> None:
        """Call `kernel` for every task, with scratch memory of the size that `scratch` returns."""
        args = self.arguments
        size = scratch(args.chunk, args.wide, args.deep)

        def task(number: int) -> None:
            rest, part = divmod(number, self.parts)
            b, group = divmod(rest, self.groups)
            work = torch.empty(size, dtype=self.kept[0].dtype)
            kernel(args, more, self.like, b, group, part, work.data_ptr())

        run_tasks(task, self.batch * self.groups * self.parts)


def _run_forward(args: ScanInputs, chunk: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state and, with `keep`, the states before each chunk for the backward."""
    x, B = args.x, args.B
    shape = _kept_shape(x, B, chunk)
    kept = x.new_empty(shape if keep else (0,))
    batch, heads, _, deep, wide = shape
    state = x.new_zeros(batch, heads, deep, wide) if args.state is None else _padded_state(args.state, wide, deep)
    y = x.new_empty(x.shape)
    _Job(args, state, kept, chunk).run(forward, forward_scratch, address(y))
    return y, state[:, :, : B.shape[3], : x.shape[3]].transpose(2, 3).contiguous(), kept


def _empty_results(args: ScanInputs, chunk: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    x, B = args.x, args.B
    last = x.new_empty(x.shape[0], *x.shape[2:], B.shape[3])
    return x.new_empty(x.shape), last, x.new_empty(_kept_shape(x, B, chunk) if keep else (0,))


def _run_backward(
    grad_y: Tensor, grad_last: Tensor | None, args: ScanInputs, chunk: int, kept: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of x, d, A, B, C, D, the initial state and `None`."""
    x, d, A, B, _, D, *_ = args
    (batch, _, heads, channels), (deep, wide) = x.shape, kept.shape[3:]
    grad_y = dense_rows(grad_y)
    state = x.new_zeros(batch, heads, deep, wide) if grad_last is None else _padded_state(grad_last, wide, deep)
    job = _Job(args, state, kept, chunk)
    grad_x, grad_d, logs = x.new_empty(x.shape), x.new_empty(d.shape), x.new_empty(d.shape)
    grad_B, grad_C = (x.new_empty(job.parts, *B.shape) for _ in range(2))
    grad_D = x.new_zeros(batch, heads, wide)
    numbers = [*place(grad_y, 3), *(address(t) for t in (grad_x, grad_d, logs, grad_B, grad_C, grad_D))]
    job.run(backward, backward_scratch, GradientArguments(*numbers))
    grad_B, grad_C = (grad[0] if job.parts == 1 else grad.sum(0) for grad in (grad_B, grad_C))
    grad_D = grad_D.sum(0)[:, :channels]
    grad_D = grad_D.sum(1) if D is not None and D.dim() == 1 else grad_D.clone()
    grad_A = (logs * d).sum((0, 1))
    first = state[:, :, : B.shape[3], :channels].transpose(2, 3).contiguous()
    return grad_x, grad_d.addcmul_(logs, A), grad_A, grad_B, grad_C, grad_D, first, None


_OPERATOR = {"forward": _run_forward, "fake": _empty_results, "backward": _run_backward}
_forward, _backward = ssd_operator("hf_ssm::ssd", **_OPERATOR, device="cpu")


def supports_ssd(*args: Any) -> bool:
    return not in_function_transform()


@in_dtype_of_steps
def ssd_numba(
    x: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state; for the arguments see `loop_ssd`."""
    tensors = x, d, A, B, C, D, state
    y, last, _ = _forward(*tensors, starts, _chunk_size(x.shape[1], chunk_size), needs_gradient(*tensors))
    return y, last
