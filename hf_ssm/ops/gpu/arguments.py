"""Tensors as arguments of Triton kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.cpu.arguments import dense_rows

__all__ = ["as_bytes", "dense_rows", "with_strides"]


def as_bytes(flags: Tensor | None) -> Tensor | None:
    """Contiguous bytes of a bool tensor; `None` for `None`."""
    return None if flags is None else flags.contiguous().view(torch.int8)


def with_strides(axes: Sequence[str], **tensors: Tensor | None) -> dict[str, Any]:
    """Tensors and the strides of their first axes, as arguments of a launch.

    Args:
        axes: Names of the axes: the stride of `x` along `"batch"` is the argument `x_batch`.
        **tensors: By name; `None` has strides of 0.
    """
    arguments: dict[str, Any] = dict(tensors)
    for name, t in tensors.items():
        for place, axis in enumerate(axes):
            arguments[f"{name}_{axis}"] = 0 if t is None else t.stride(place)
    return arguments
