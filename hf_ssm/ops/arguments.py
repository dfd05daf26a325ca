"""Checks and dtypes of the arguments of scans."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["arithmetic_dtype", "check_shapes", "in_arithmetic"]


def check_shapes(tensors: dict[str, Tensor | None], shapes: dict[str, Sequence[tuple[int, ...]]]) -> None:
    """Raise a ValueError for the first tensor, by name, whose shape is none of those given. A kernel trusts shapes."""
    for name, allowed in shapes.items():
        value = tensors[name]
        if value is not None and tuple(value.shape) not in allowed:
            choices = " or ".join(map(str, allowed))
            raise ValueError(f"{name} must have shape {choices}, got {tuple(value.shape)}")


def arithmetic_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The real dtype of the arithmetic: float64 if a tensor is in double precision, else float32."""
    double = (torch.float64, torch.complex128)
    return torch.float64 if any(t is not None and t.dtype in double for t in tensors) else torch.float32


def in_arithmetic(dtype: torch.dtype, *tensors: Tensor | None) -> Iterator[Any]:
    """Each tensor in a real dtype, or its complex counterpart; `None` stays `None`."""
    partner = torch.complex128 if dtype == torch.float64 else torch.complex64
    for t in tensors:
        yield t if t is None or t.dtype in (dtype, partner) else t.to(partner if t.is_complex() else dtype)
