"""The selective scan on a GPU by mamba_ssm's kernel: of the Hub, with `use_kernels=True`, or of an installed package.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel.
"""

import importlib.util
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import use_kernel_func_from_hub_with_fallback

from hf_ssm.ops.context import in_function_transform
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.chunked import chunked_scan

__all__ = ["has_hub_kernel", "hub_scan", "hub_selective_scan", "supports_hub_scan"]

# The largest number of states that the kernel supports.
_MAX_HUB_STATES = 256


@use_kernel_func_from_hub_with_fallback("selective_scan_fn", "mamba_ssm")
def hub_selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    use_mambapy: bool = False,
    use_associative_scan: bool = False,
    **kwargs: Any,
) -> Any:
    """mamba_ssm's own signature, channels first: `u`, `delta`, `z` `(B, D, L)`; `B`, `C` `(B, N, L)`.

    The last arguments have no effect. The kernel of the Hub has them, since it replaces the function of transformers,
    and only a function with as many arguments can be replaced.
    """
    u, delta, B, C = (t.transpose(1, 2) for t in (u, delta, B, C))
    z = None if z is None else z.transpose(1, 2)
    y, last = chunked_scan(ScanTensors(u, delta, A, B, C, D, z, delta_bias), delta_softplus, return_last_state)
    return (y.transpose(1, 2), last) if return_last_state else y.transpose(1, 2)


# torch.compile runs the function while it traces.
@torch.compiler.assume_constant_result
def has_hub_kernel() -> bool:
    """Whether a kernel of the Hub has replaced `hub_selective_scan`, or mamba_ssm is installed."""
    # With the package kernels the function is a module, whose `forward` kernelize sets to that of the kernel, or, where
    # it finds none, to its own again.
    forward = vars(hub_selective_scan).get("forward")
    if forward is not None and forward.__func__ is not type(hub_selective_scan).forward:
        return True
    return importlib.util.find_spec("mamba_ssm") is not None


def supports_hub_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> bool:
    """Real states that start from zero, in single precision; the kernel has no gradient through the last state."""
    if not has_hub_kernel():
        return False
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in args)
    simple = args.state is None and not args.A.is_complex() and args.A.shape[1] <= _MAX_HUB_STATES
    return simple and args.dtype == torch.float32 and not (learns and needs_last) and not in_function_transform()


def hub_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """`hub_selective_scan` with the dtypes of its kernel: one along the sequence, float32 for the rest."""
    u, delta, A, B, C, D, z, bias, _ = args
    dtype = reduce(torch.promote_types, (t.dtype for t in (u, delta, B, C, z) if t is not None))
    u, delta, B, C = (t.to(dtype).transpose(1, 2) for t in (u, delta.expand_as(u), B, C))
    z = None if z is None else z.to(dtype).transpose(1, 2)
    D = None if D is None else D.float()
    bias = None if bias is None else bias.float().expand(len(A)).contiguous()
    y, last = hub_selective_scan(u, delta, A.float(), B, C, D, z, bias, delta_softplus, return_last_state=True)
    y = _DifferentiableOnce.apply(y) if y.requires_grad else y
    return y.transpose(1, 2).to(args.u.dtype), last


class _DifferentiableOnce(torch.autograd.Function):
    """Identity that refuses `create_graph=True`, under which the kernel before it would return detached gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The GPU kernel of the selective scan can be differentiated once only: for `create_graph=True`, set "
                "the environment variable HF_SSM_KERNELS=torch, or use `hf_ssm.ops.backends.use_backend('torch')`."
            )
        return grad
