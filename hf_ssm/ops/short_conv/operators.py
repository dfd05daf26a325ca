"""Custom operators of the short convolution by compiled kernels.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.ops.operators import differentiable_operator
from hf_ssm.ops.short_conv.pytorch import short_conv_torch

__all__ = ["ConvInputs", "short_conv_operator"]


class ConvInputs(NamedTuple):
    """u `(B, L, D)`, weight `(D, K)`, bias `(D,)` or `None`, and mask `(B, L)` or `None`."""

    u: Tensor
    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None


def _empty_output(args: ConvInputs, left: int, silu: bool) -> Tensor:
    return torch.empty(args.u.shape, dtype=args.u.dtype, device=args.u.device)


def _plain_output(args: ConvInputs, left: int, silu: bool) -> Tensor:
    u, weight, bias, mask = args
    return short_conv_torch(u, weight, bias, left < weight.shape[1] - 1, "silu" if silu else None, mask)


short_conv_operator: Callable[..., tuple[Any, Any]] = partial(
    differentiable_operator,
    tensors=ConvInputs,
    options="SymInt left, bool silu",
    fake=_empty_output,
    plain=_plain_output,
)
"""Declares the operator of an implementation, from its `name`, `forward` and `backward`.

Its options are the number of taps before a position, and whether SiLU follows.
"""
