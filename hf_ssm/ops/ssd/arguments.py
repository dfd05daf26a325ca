"""Arguments of the state space duality: their dtypes and checks, and the steps that all implementations share.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "SSDTensors",
    "check_dt_limit",
    "check_ssd_tensors",
    "in_dtype_of_steps",
    "limited_steps",
    "to_arithmetic",
]

Implementation = Callable[..., tuple[Tensor, Tensor]]


class SSDTensors(NamedTuple):
    """The tensors of `ssd_scan`, or without the length those of `ssd_step`; `state` is the initial state."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    dt_bias: Tensor | None = None
    state: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the arithmetic."""
        return torch.float64 if any(t is not None and t.dtype == torch.float64 for t in self) else torch.float32

    def cast(self, dtype: torch.dtype) -> Iterator[Any]:
        """Each tensor in `dtype`; `None` stays `None`."""
        return to_arithmetic(dtype, *self)


def to_arithmetic(dtype: torch.dtype, *tensors: Tensor | None) -> Iterator[Any]:
    """Each tensor in `dtype`; `None` stays `None`."""
    return (t if t is None or t.dtype == dtype else t.to(dtype) for t in tensors)


def check_ssd_tensors(args: SSDTensors, axes: str = "batch, length", state: str = "initial_state") -> None:
    """Raise an error where shapes or types do not fit.

    Args:
        args: The tensors.
        axes: Names of the axes before the heads.
        state: Name of the argument that `args.state` is.

    Raises:
        ValueError: A shape does not fit, or there are no positions, heads, channels or states.
        TypeError: A tensor is not of a real floating point type.
    """
    lead_axes = axes.count(",") + 1
    if args.x.dim() != lead_axes + 2 or 0 in args.x.shape[1:]:
        meaning = f"({axes}, heads, head_dim) with sizes of at least 1 after the batch"
        raise ValueError(f"x must have shape {meaning}, got {tuple(args.x.shape)}")
    *lead, heads, size = args.x.shape
    if args.B.dim() != lead_axes + 2 or 0 in args.B.shape[-2:] or heads % args.B.shape[-2]:
        meaning = f"({axes}, groups, states) with a number of groups that divides the {heads} heads of x"
        raise ValueError(f"B must have shape {meaning}, got {tuple(args.B.shape)}")
    weights, states = (*lead, *args.B.shape[-2:]), args.B.shape[-1]
    expected: dict[str, tuple[Tensor | None, str, Sequence[tuple[int, ...]]]] = {
        "x": (args.x, f"({axes}, heads, head_dim)", [tuple(args.x.shape)]),
        "dt": (args.dt, f"({axes}, heads)", [(*lead, heads)]),
        "A": (args.A, "(heads,)", [(heads,)]),
        "B": (args.B, f"({axes}, groups, states)", [weights]),
        "C": (args.C, f"({axes}, groups, states)", [weights]),
        "D": (args.D, "(heads,) or (heads, head_dim)", [(heads,), (heads, size)]),
        "dt_bias": (args.dt_bias, "(heads,)", [(heads,)]),
        state: (args.state, "(batch, heads, head_dim, states)", [(lead[0], heads, size, states)]),
    }
    for name, (value, meaning, shapes) in expected.items():
        if value is None:
            continue
        if tuple(value.shape) not in shapes:
            choices = " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have shape {meaning} = {choices}, got {tuple(value.shape)}")
        if not value.is_floating_point():
            raise TypeError(f"{name} must be of a real floating point type, got {value.dtype}")


def check_dt_limit(dt_limit: Sequence[float]) -> None:
    """Raise a ValueError unless `dt_limit` is a pair of numbers in ascending order."""
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise ValueError(f"dt_limit must be a pair (low, high) with low <= high, got {dt_limit!r}")


def limited_steps(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: Sequence[float]) -> Tensor:
    """`d = softplus(dt + dt_bias)`, or without the softplus, clamped to `dt_limit`."""
    low, high = dt_limit
    dt = dt if dt_bias is None else dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    if low > 0 or not dt_softplus:
        dt = dt.clamp(min=low)
    return dt if high == math.inf else dt.clamp(max=high)


def in_dtype_of_steps(scan: Implementation) -> Implementation:
    """Decorator of an implementation of the scan: x, B and C reach it in the dtype of d, that of the arithmetic."""

    @wraps(scan)
    def scan_in_dtype(x: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        x, B, C = to_arithmetic(d.dtype, x, B, C)
        return scan(x, d, A, B, C, *others)

    return scan_in_dtype
