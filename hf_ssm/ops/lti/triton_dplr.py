"""The kernel of a DPLR system by Triton kernels: operators for torch. Dimensions: `D` channels, `H` pairs, `L` length.

A forward takes three launches for a block of channels (`triton_krylov.py`), where PyTorch takes 39 operations at
`L = 4096` and 93 at `L = 65536`; a backward seven (`triton_krylov_backward.py`) and two sums, where PyTorch takes 111
and 251. The start of one column saves more: the discretisation by the bilinear rule stays in PyTorch, and takes 45
operations forward and 104 backward, with sixteen columns 150 and 556.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE, differentiable_gradients
from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.lti.diagonal import working_dtype
from hf_ssm.ops.lti.dplr import dplr_start
from hf_ssm.ops.lti.krylov import Start, plain_krylov_products
from hf_ssm.ops.lti.triton_krylov import (
    MAX_STATES,
    channel_blocks,
    compute_powers,
    compute_tables,
    multiply_tables,
    plan_steps,
)
from hf_ssm.ops.lti.triton_krylov_backward import start_gradients

__all__ = ["dplr_kernel_triton", "supports_dplr_kernel"]


@torch.library.custom_op(f"{NAMESPACE}::krylov_products_triton", mutates_args=())
def _operator(delta: Tensor, outer: Tensor, inner: Tensor, columns: Tensor, c: Tensor, length: int) -> Tensor:
    start = Start(delta, outer, inner, columns)
    taps = _empty_taps(*start, c, length)
    plan = plan_steps(c.shape[1], columns.shape[1], length)
    for block in channel_blocks(len(c), plan, c.device, with_gradients=False):
        part = Start(*(t[block] for t in start))
        tables = compute_tables(compute_powers(part, plan), part.columns, c[block], plan)
        multiply_tables(tables, taps[block], plan)
    return taps


@_operator.register_fake
def _empty_taps(delta: Tensor, outer: Tensor, inner: Tensor, columns: Tensor, c: Tensor, length: int) -> Tensor:
    return c.new_empty(c.shape[0], length, dtype=torch.float32)


@torch.library.custom_op(f"{NAMESPACE}::krylov_products_triton_backward", mutates_args=())
def _operator_backward(
    grad: Tensor, delta: Tensor, outer: Tensor, inner: Tensor, columns: Tensor, c: Tensor, wanted: list[bool]
) -> list[Tensor]:
    """Gradients of the tensors of a start and of `c`; empty where not wanted."""
    start, gradients = (
        Start(delta, outer, inner, columns),
        _empty_gradients(grad, delta, outer, inner, columns, c, wanted),
    )
    grad = dense_rows(grad)
    plan = plan_steps(c.shape[1], columns.shape[1], grad.shape[1])
    for block in channel_blocks(len(c), plan, c.device, with_gradients=True):
        part = Start(*(t[block] for t in start))
        values = start_gradients(grad[block], part, c[block], plan, any(wanted[:3]))
        for gradient, value, want in zip(gradients, values, wanted, strict=True):
            if want and value is not None:
                gradient[block] = value
    return gradients


@_operator_backward.register_fake
def _empty_gradients(
    grad: Tensor, delta: Tensor, outer: Tensor, inner: Tensor, columns: Tensor, c: Tensor, wanted: list[bool]
) -> list[Tensor]:
    tensors = (delta, outer, inner, columns, c)
    return [t.new_empty(t.shape if want else (0,)) for t, want in zip(tensors, wanted, strict=True)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        plain = partial(plain_krylov_products, length=grad.shape[1], dtype=grad.dtype)
        return *differentiable_gradients(plain, ctx.saved_tensors, [grad]), None
    wanted = list(ctx.needs_input_grad[:5])
    gradients = _operator_backward(grad, *ctx.saved_tensors, wanted)
    return *(gradient if want else None for gradient, want in zip(gradients, wanted, strict=True)), None


_operator.register_autograd(_gradients, setup_context=_save)


def supports_dplr_kernel(
    lam: Tensor, p: Tensor, b: Tensor, c: Tensor, dt: Tensor, length: int, discretization: str
) -> bool:
    """At most 64 states, whose matrix fits the registers of a program; results in float64 need float64 tables."""
    if working_dtype(lam, p, b, c) == torch.float64 or not 0 < 2 * lam.shape[1] <= MAX_STATES:
        return False
    return runs_kernels(lam, p, b, c)


def dplr_kernel_triton(
    lam: Tensor, p: Tensor, b: Tensor, c: Tensor, dt: Tensor, length: int, discretization: str
) -> Tensor:
    """`dplr_kernel` in float32."""
    start, c_real = dplr_start(lam, p, b, c, dt, length, discretization, 1)
    taps: Tensor = _operator(*start, c_real, length)
    return taps
