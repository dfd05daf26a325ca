"""Tensors as arguments of Triton kernels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_bytes", "dense_rows", "with_strides"]


def dense_rows(t: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense in memory, else a copy."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


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
