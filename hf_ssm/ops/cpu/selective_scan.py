"""The selective scan on a CPU: its kernels as operators that autograd and the compiler know.

Dimensions as in `scan_tiles.py`; `P` planes of real numbers, 1 or of complex states 2.

The kernels are imported when they are first run, for numba takes its time.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.cpu.pool import run_tasks

__all__ = ["fused_selective_scan"]

# Of `scan_tiles.py` and `vector.py`, which import numba.
_TILE, _LANES, _GROUP = 16, 16, 4
# Blocks of channels of one task at most, for the cache's sake, and at least, for the sums over channels are made by
# each task for itself; and how many tasks to make if that is possible. A task is never cut by the number of threads:
# sums are the same whatever that is.
_MOST_BLOCKS, _LEAST_BLOCKS, _TASKS = 16, 2, 8
# A task of the forward takes several sequences where there are so many: to begin one costs as much as some positions.
_MOST_TASKS = 16

# u, delta, A, B, C, D, z and the bias.
_Tensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def _up(number: int, multiple: int) -> int:
    return (number + multiple - 1) // multiple * multiple


def _planes(t: Tensor) -> Tensor:
    """`(...)` -> `(..., P)`, real."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.unsqueeze(-1)


def _packed(planes: Tensor) -> Tensor:
    """`(..., D, N, P)` -> `(..., K, P S, 16)`, filled up with zeros."""
    *lead, channels, states, parts = planes.shape
    wide, high = _up(channels, _LANES), _up(states, _GROUP)
    filled = F.pad(planes, (0, 0, 0, high - states, 0, wide - channels))
    blocks = filled.view(*lead, wide // _LANES, _LANES, high, parts)
    return blocks.movedim((-1, -2, -3), (-3, -2, -1)).contiguous().flatten(-3, -2)


def _unpacked(packed: Tensor, A: Tensor) -> Tensor:
    """The other way: `(..., D, N)`, complex if A `(D, N)` is."""
    (channels, states), paired = A.shape, A.is_complex()
    parts = 2 if paired else 1
    blocks = packed.unflatten(-2, (parts, -1)).movedim((-3, -2, -1), (-1, -2, -3))
    tensor = blocks.flatten(-4, -3)[..., :channels, :states, :].contiguous()
    return torch.view_as_complex(tensor) if paired else tensor.squeeze(-1)


def _address(t: Tensor | None) -> int:
    return 0 if t is None or t.numel() == 0 else t.data_ptr()


def _rowed(t: Tensor) -> Tensor:
    """The tensor itself where its last dimension is dense."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _place(t: Tensor | None) -> tuple[int, int, int]:
    """Address, batch stride and row stride of `(B, L, ...)`, in real numbers."""
    if t is None:
        return 0, 0, 0
    parts = 2 if t.is_complex() else 1
    return _address(t), t.stride(0) * parts, t.stride(1) * parts


def _exponents(A: Tensor) -> Tensor:
    """A packed for `exp2`, its real part in units of log 2; of complex states then its imaginary part in turns, and
    that once more in units of log 2, for the gradient of the step."""
    if not A.is_complex():
        return _packed(_planes(A / math.log(2)))
    A = A.resolve_conj()
    return _packed(torch.stack([A.real / math.log(2), A.imag / math.tau, A.imag / math.log(2)], dim=-1))


class _Job:
    """The tensors of a scan as the kernels take them, and how it is cut into tasks."""

    def __init__(self, tensors: _Tensors, mask: Tensor | None, softplus: bool, state: Tensor, **outputs: Tensor | None):
        from hf_ssm.ops.cpu.scan_tiles import ScanArguments

        u, delta, A, B, C, D, z, bias = tensors
        self.batch, length, channels = u.shape
        blocks, rows = state.shape[1:3]
        # Few tasks would leave threads idle; what follows may not depend on their number.
        width = min(_MOST_BLOCKS, max(_LEAST_BLOCKS, blocks * self.batch // _TASKS))
        self.groups = -(-blocks // width)
        self.paired = True if A.is_complex() else None
        u, delta, B, C = (_rowed(t.resolve_conj()) for t in (u, delta, B, C))
        z = None if z is None else _rowed(z)
        beyond = (0, blocks * _LANES - channels)
        D = None if D is None else F.pad(D, beyond)
        bias = None if bias is None else F.pad(bias.expand(channels), beyond)
        exponents, starts, y = _exponents(A), outputs.get("starts"), outputs.get("y")
        # Tensors live as long as this object, and so do the addresses.
        self.kept = (u, delta, B, C, z, D, bias, exponents, state, starts, y)
        numbers: list[Any] = [
            *(self.batch, length, channels, A.shape[1], rows, blocks, -(-length // _TILE), width),
            *(softplus, delta.shape[-1] < channels),
            *(*_place(u), *_place(delta), *_place(z), *_place(B), *_place(C)),
            *(_address(t) for t in (exponents, D, bias, state, starts)),
            *_place(y),
        ]
        self.arguments = ScanArguments(*numbers)
        self.like = u.new_zeros(()).numpy()[()]
        self.places = [np.arange(length)] * self.batch
        if mask is not None:
            self.places = [row.nonzero()[0] for row in mask.numpy()]

    def run(self, kernel: Any, scratch: int, *more: Any) -> None:
        """`kernel` on every task, with `more` after the first of its arguments."""

        def task(number: int) -> None:
            b, group = divmod(number, self.groups)
            work = torch.zeros(scratch, dtype=self.kept[0].dtype)
            places = self.places[b]
            at = places.ctypes.data, len(places), b, group, work.data_ptr()
            kernel(self.arguments, *more, self.like, self.paired, *at)

        run_tasks(task, self.batch * self.groups)

    def run_rows(self, kernel: Any, scratch: int) -> None:
        """`kernel` on every task, each of several sequences where they are many and none is masked."""
        if self.batch == 0:
            return
        masked = self.places[0] is not self.places[-1]
        count = 1 if masked else max(1, self.batch * self.groups // _MOST_TASKS)

        def task(number: int) -> None:
            part, group = divmod(number, self.groups)
            first = part * count
            work = torch.zeros(scratch, dtype=self.kept[0].dtype)
            places = self.places[first]
            rows = first, min(first + count, self.batch)
            at = places.ctypes.data, len(places), *rows, group, work.data_ptr()
            kernel(self.arguments, self.like, self.paired, *at)

        run_tasks(task, -(-self.batch // count) * self.groups)


def _sizes(u: Tensor, A: Tensor) -> tuple[int, int, int, int]:
    """`tiles, K, R, 16`."""
    blocks, rows = _up(A.shape[0], _LANES) // _LANES, _up(A.shape[1], _GROUP) * (2 if A.is_complex() else 1)
    return (u.shape[1] + _TILE - 1) // _TILE, blocks, rows, _LANES


def _new(like: Tensor, shape: Sequence[int], mask: Tensor | None) -> Tensor:
    """Room for what is written at positions that are not masked; zero at the others."""
    return like.new_empty(shape) if mask is None else like.new_zeros(shape)


@torch.library.custom_op("hf_ssm::selective_scan", mutates_args=(), device_types="cpu")
def _forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    mask: Tensor | None,
    delta_softplus: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state, and with `keep` the states before each tile, for the backward."""
    from hf_ssm.ops.cpu.scan_forward import forward_rows, forward_scratch

    tiles, *block = _sizes(u, A)
    y = _new(u, u.shape, mask)
    starts = _new(u, (len(u), tiles, *block) if keep else (0,), mask)
    state = u.new_zeros(len(u), *block) if initial_state is None else _packed(_planes(initial_state))
    job = _Job((u, delta, A, B, C, D, z, delta_bias), mask, delta_softplus, state, starts=starts, y=y)
    job.run_rows(forward_rows, forward_scratch(job.arguments.rows))
    return y, _unpacked(state, A), starts


@_forward.register_fake
def _(u, delta, A, B, C, D, z, delta_bias, initial_state, mask, delta_softplus, keep):
    starts = u.new_empty((len(u), *_sizes(u, A)) if keep else (0,))
    return u.new_empty(u.shape), A.new_empty(len(u), *A.shape), starts


@torch.library.custom_op("hf_ssm::selective_scan_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad_y: Tensor,
    grad_last: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    mask: Tensor | None,
    starts: Tensor,
    delta_softplus: bool,
    wanted: Sequence[bool],
) -> list[Tensor]:
    """Gradients of u, delta, A, B, C, D, z, the bias and the initial state; of those not `wanted`, without elements."""
    from hf_ssm.ops.cpu.scan_backward import GradientArguments, backward, backward_scratch

    (batch, length, channels), states, block = u.shape, A.shape[1], starts.shape[2:]
    grad_y = _rowed(grad_y)
    state = u.new_zeros(batch, *block) if grad_last is None else _packed(_planes(grad_last))
    job = _Job((u, delta, A, B, C, D, z, delta_bias), mask, delta_softplus, state, starts=starts)
    grad_u, grad_z = (_new(u, u.shape if w else (0,), mask) for w in (wanted[0], wanted[6]))
    shared = bool(job.arguments.shared_step)
    grad_delta = _new(u, ((job.groups, batch, length, 1) if shared else u.shape) if wanted[1] else (0,), mask)
    parts = (2,) if A.is_complex() else ()
    grad_B, grad_C = (_new(u, (job.groups, batch, length, states, *parts), mask) for _ in range(2))
    grad_A, grad_D, grad_bias = u.new_zeros(batch, *block), *u.new_zeros(2, batch, block[0] * _LANES)
    outputs = (state, grad_u, grad_delta, grad_z, grad_A, grad_B, grad_C, grad_D, grad_bias)
    numbers: list[int] = [*_place(grad_y), *(_address(t) for t in outputs)]
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
    grads = (grad_u, grad_delta, grad_A, grad_B, grad_C, grad_D.sum(0)[:channels].clone(), grad_z, bias, initial)
    return [grad if want else grad.new_empty(0) for grad, want in zip(grads, wanted, strict=True)]


@_backward.register_fake
def _(grad_y, grad_last, u, delta, A, B, C, D, z, delta_bias, mask, starts, delta_softplus, wanted):
    bias = u.new_empty(u.shape[2]) if delta_bias is None else delta_bias
    like = (u, delta, A, B, C, u.new_empty(u.shape[2]), u, bias, A.new_empty(len(u), *A.shape))
    return [t.new_empty(t.shape if want else (0,)) for t, want in zip(like, wanted, strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, _, mask, delta_softplus, keep = inputs
    ctx.set_materialize_grads(False)
    if keep:
        ctx.save_for_backward(*tensors, mask, output[2])
        ctx.delta_softplus = delta_softplus


def _gradients(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    *tensors, mask, starts = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:9]
    grad_y = torch.zeros_like(tensors[0]) if grad_y is None else grad_y
    grads = _backward(grad_y, grad_last, *tensors, mask, starts, ctx.delta_softplus, wanted)
    return *(grad if want else None for grad, want in zip(grads, wanted, strict=True)), None, None, None


def _refuse(ctx: Any, *grads: Any) -> None:
    raise RuntimeError("the selective scan is once_differentiable: its gradients have no gradients")


_forward.register_autograd(_gradients, setup_context=_save)
_backward.register_autograd(_refuse)


def fused_selective_scan(
    tensors: _Tensors, initial_state: Tensor | None, mask: Tensor | None, delta_softplus: bool
) -> tuple[Tensor, Tensor]:
    """The selective scan in one kernel, differentiable once.

    Args:
        tensors: `u`, `delta`, `A`, `B`, `C`, `D`, `z` and `delta_bias` of `selective_scan`, of one real type
            (float32 or float64) or its complex partner.
        initial_state: As there.
        mask: `(B, L)`, true at the positions that count, or None.
        delta_softplus: As there.

    Returns:
        `y` and the last state.
    """
    given = *tensors, initial_state
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given)
    y, last, _ = _forward(*given, mask, delta_softplus, keep)
    return y, last
