"""The kernel of a DPLR system by Triton kernels: operators for torch. Dimensions: `D` channels, `H` pairs, `L` length.

A forward takes three launches for a block of channels (`triton_krylov.py`), where PyTorch takes 39 operations at
`L = 4096` and 93 at `L = 65536`; a backward seven (`triton_krylov_backward.py`) and two sums, where PyTorch takes 111
and 251. The start of one column saves more: the discretisation by the bilinear rule stays in PyTorch, and takes 45
operations forward and 104 backward, with sixteen columns 150 and 556.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE
from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import runs_kernels
from hf_ssm.ops.lti.diagonal import working_dtype
from hf_ssm.ops.lti.dplr import dplr_start
from hf_ssm.ops.lti.krylov import KrylovInputs, Start, empty_taps, plain_taps
from hf_ssm.ops.lti.triton_krylov import (
    MAX_STATES,
    channel_blocks,
    compute_powers,
    compute_tables,
    multiply_tables,
    plan_steps,
)
from hf_ssm.ops.lti.triton_krylov_backward import start_gradients
from hf_ssm.ops.operators import differentiable_operator, empty_gradients

__all__ = ["dplr_kernel_triton", "supports_dplr_kernel"]


def _run_products(args: KrylovInputs, length: int) -> Tensor:
    start, c, taps = args.start, args.c, empty_taps(args, length)
    plan = plan_steps(c.shape[1], start.columns.shape[1], length)
    for block in channel_blocks(len(c), plan, c.device, with_gradients=False):
        block_start = Start(*(t[block] for t in start))
        tables = compute_tables(compute_powers(block_start, plan), block_start.columns, c[block], plan)
        multiply_tables(tables, taps[block], plan)
    return taps


def _run_products_backward(grad: Tensor, args: KrylovInputs, length: int, wanted: Sequence[bool]) -> list[Tensor]:
    start, c, gradients = args.start, args.c, empty_gradients(args, wanted)
    grad = dense_rows(grad)
    plan = plan_steps(c.shape[1], start.columns.shape[1], length)
    for block in channel_blocks(len(c), plan, c.device, with_gradients=True):
        block_start = Start(*(t[block] for t in start))
        values = start_gradients(grad[block], block_start, c[block], plan, any(wanted[:3]))
        for gradient, value, want in zip(gradients, values, wanted, strict=True):
            if want and value is not None:
                gradient[block] = value
    return gradients


_operator, _operator_backward = differentiable_operator(
    f"{NAMESPACE}::krylov_products_triton",
    tensors=KrylovInputs,
    options="SymInt length",
    forward=_run_products,
    fake=empty_taps,
    backward=_run_products_backward,
    plain=plain_taps,
)


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
