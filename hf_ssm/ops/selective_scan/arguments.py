"""Arguments of the selective scan: their dtypes and checks, and the steps that all implementations share.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "LOG2_E",
    "ScanTensors",
    "check_scan_tensors",
    "complex_or_real_exp",
    "skip_and_gate",
    "step_sizes",
    "sum_over_states",
]

# exp2 costs less than half of exp on a CPU and is one instruction on a GPU.
LOG2_E = 1 / math.log(2)


class ScanTensors(NamedTuple):
    """The tensors of `selective_scan`, or without the length of `selective_scan_step`; `state` is the initial state."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    z: Tensor | None = None
    delta_bias: Tensor | None = None
    state: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype of the arithmetic."""
        double = (torch.float64, torch.complex128)
        return torch.float64 if any(t is not None and t.dtype in double for t in self) else torch.float32

    def cast(self, dtype: torch.dtype) -> Iterator[Any]:
        """Each tensor in the real `dtype` or its complex counterpart; `None` stays `None`."""
        partner = torch.complex128 if dtype == torch.float64 else torch.complex64
        for t in self:
            yield t if t is None or t.dtype in (dtype, partner) else t.to(partner if t.is_complex() else dtype)


def check_scan_tensors(args: ScanTensors, axes: str = "batch, length", state: str = "initial_state") -> None:
    """Raise a ValueError where shapes or types do not fit.

    Args:
        args: The tensors.
        axes: Names of the axes before the channels.
        state: Name of the argument that `args.state` is.
    """
    if args.u.dim() != axes.count(",") + 2 or 0 in args.u.shape[1:]:
        meaning = f"({axes}, channels) with sizes of at least 1 after the batch"
        raise ValueError(f"u must have shape {meaning}, got {tuple(args.u.shape)}")
    *lead, channels = args.u.shape
    if args.A.dim() != 2 or args.A.shape[0] != channels:
        raise ValueError(f"A must have shape (channels, states) with channels = {channels}, got {tuple(args.A.shape)}")
    states, per_channel, shared = args.A.shape[1], (*lead, channels), (*lead, 1)
    # A bias of one number is valid for a step size of one number only; otherwise it is likely a mistake.
    biases = [(channels,), (1,)] if args.delta.shape == shared else [(channels,)]
    expected: dict[str, tuple[Tensor | None, str, Sequence[tuple[int, ...]]]] = {
        "u": (args.u, f"({axes}, channels)", [per_channel]),
        "delta": (args.delta, f"({axes}, channels or 1)", [per_channel, shared]),
        "z": (args.z, f"({axes}, channels)", [per_channel]),
        "D": (args.D, "(channels,)", [(channels,)]),
        "delta_bias": (args.delta_bias, "(channels,)", biases),
        "B": (args.B, f"({axes}, states)", [(*lead, states)]),
        "C": (args.C, f"({axes}, states)", [(*lead, states)]),
        state: (args.state, "(batch, channels, states)", [(lead[0], channels, states)]),
    }
    for name, (value, meaning, shapes) in expected.items():
        if value is None:
            continue
        if value.shape not in shapes:
            choices = " or ".join(map(str, shapes))
            raise ValueError(f"{name} must have shape {meaning} = {choices}, got {tuple(value.shape)}")
        if name in ("B", "C", state) and value.is_complex() != args.A.is_complex():
            kind = "complex" if args.A.is_complex() else "real"
            raise ValueError(f"{name} must be {kind} like A ({args.A.dtype}), got {value.dtype}")
        if name not in ("B", "C", state) and not value.is_floating_point():
            raise ValueError(f"{name} must be of a real floating point type, got {value.dtype}")


def step_sizes(delta: Tensor, delta_bias: Tensor | None, delta_softplus: bool) -> Tensor:
    """`d = softplus(delta + delta_bias)`, or without the softplus."""
    delta = delta if delta_bias is None else delta + delta_bias
    return F.softplus(delta) if delta_softplus else delta


def skip_and_gate(y: Tensor, u: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """`(y + D u) SiLU(z)`."""
    y = y if D is None else torch.addcmul(y, u, D)
    return y if z is None else y * F.silu(z)


def complex_or_real_exp(d: Tensor, A: Tensor) -> Tensor:
    """`exp(d A)` of broadcast real `d` and real or complex `A`; torch's own complex exponential is slow."""
    if A.is_complex():
        return torch.polar(torch.exp(d * A.real), d * A.imag)
    return torch.exp(d * A)


def sum_over_states(a: Tensor, b: Tensor) -> Tensor:
    """`Σ_n a b`; for complex factors `2 Re Σ_n a b`."""
    total = (a * b).sum(-1)
    return 2 * total.real if total.is_complex() else total
