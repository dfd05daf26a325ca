"""The selective scan for exported programs of any length, by the nested blocks of `linear_scan`.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel. All states are kept, a few times
`B L D N` numbers.
"""

import torch
from torch import Tensor

from hf_ssm.ops.linear_scan.levels import scan_parts_by_levels
from hf_ssm.ops.selective_scan.arguments import ScanTensors, skip_and_gate, step_sizes

__all__ = ["selective_scan_by_levels"]


def _real_and_imaginary(t: Tensor) -> tuple[Tensor, ...]:
    return (t.real, t.imag) if t.is_complex() else (t,)


def _of_channels(part: Tensor) -> Tensor:
    """Weights `(B, L, N)` of all channels, or `(B, L, D, N)` of each, as `(B, L, 1 or D, N)`."""
    return part if part.dim() == 4 else part.unsqueeze(2)


def selective_scan_by_levels(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """The output and the last state; B and C may have a dimension of channels, `(B, L, D, N)`."""
    u, delta, A, B, C, D, z, delta_bias, state = args.cast(args.dtype)
    d = step_sizes(delta, delta_bias, delta_softplus).unsqueeze(-1)
    size, *angles = (d * part for part in _real_and_imaginary(A))
    size = torch.exp(size)
    decays = (size * torch.cos(angles[0]), size * torch.sin(angles[0])) if angles else (size,)
    inputs = tuple((d * u.unsqueeze(-1)) * _of_channels(part) for part in _real_and_imaginary(B))
    before = None if state is None else _real_and_imaginary(state)
    states = scan_parts_by_levels(decays, inputs, before, reverse=False)
    weights = [_of_channels(part) for part in _real_and_imaginary(C)]
    y = (states[0] * weights[0]).sum(-1)
    if A.is_complex():
        y = 2 * (y - (states[1] * weights[1]).sum(-1))
    ends = [part[:, -1] for part in states]
    last = torch.complex(*ends) if A.is_complex() else ends[0]
    return skip_and_gate(y, u, D, z).to(args.u.dtype), last
