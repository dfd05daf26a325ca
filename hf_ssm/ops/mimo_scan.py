"""State space model with several inputs and outputs and one diagonal state matrix, by a linear scan.

Dimensions: `B` batch, `L` length, `D` input channels, `E` output channels, `S` stored states (one of each conjugate
pair).

Exported programs have no complex numbers. Complex arguments are therefore real pairs in a last dimension of size 2, and
while a program is exported, the last state is real, with the real parts before the imaginary parts along the last
dimension. An initial state may have either form.

Source: Smith, Warrington & Linderman 2023 (S5), eqs. (5) and (6).
"""

import torch
from torch import Tensor

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.linear_scan import as_complex, linear_scan, scan_parts_by_levels

__all__ = ["mimo_scan"]


def mimo_scan(
    u: Tensor,
    a_bar: Tensor,
    factor: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None = None,
    *,
    reverse: bool = False,
    last_only: bool = False,
) -> tuple[Tensor, Tensor]:
    """`x_t = a_bar x_{t-1} + factor b u_t` and `y_t = 2 Re c x_t`; all tensors in one precision.

    Args:
        u: Input `(B, L, D)`.
        a_bar: Discrete eigenvalues, `(S, 2)`, or `(B, L, S, 2)` for steps that differ.
        factor: What the discretisation multiplies each row of b with, of the same shape.
        b: Input matrix, `(S, D, 2)`.
        c: Output matrix, `(E, S, 2)`.
        initial_state: State before the first position, `(B, S)`, or real, `(B, 2 S)`, in any precision; default zero.
        reverse: Whether the scan begins at the last position.
        last_only: Whether to return the output of the last position only.

    Returns:
        Outputs `(B, L, E)`, or `(B, 1, E)`, and the state at the last position, `(B, S)` (exported: real).
    """
    outputs, last = _MIMO_SCAN(u, a_bar, factor, b, c, initial_state, reverse, last_only)
    return outputs, last


def _mimo_scan(
    u: Tensor,
    a_bar: Tensor,
    factor: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    reverse: bool,
    last_only: bool,
) -> tuple[Tensor, Tensor]:
    # Copies: weights of a float64 file may lie at addresses at which complex arithmetic of torch crashes.
    decay, gain, inward = (torch.complex(*pairs.unbind(-1)) for pairs in (a_bar, factor, b))
    if gain.dim() == 1:
        inward = inward * gain.unsqueeze(-1)
    driven = u @ torch.view_as_real(inward).transpose(1, 2).flatten(0, 1).T
    driven = torch.view_as_complex(driven.unflatten(-1, (-1, 2)))
    driven = driven if gain.dim() == 1 else driven * gain
    before = None if initial_state is None else as_complex(initial_state).to(driven.dtype)
    states = linear_scan(decay, driven, before, reverse=reverse)
    read = torch.view_as_real(states[:, -1:] if last_only else states).flatten(-2)
    c_real, c_imag = (2 * c).unbind(-1)
    return read @ torch.stack([c_real, -c_imag], dim=-1).flatten(-2).T, states[:, 0 if reverse else -1].contiguous()


def _exported_mimo_scan(
    u: Tensor,
    a_bar: Tensor,
    factor: Tensor,
    b: Tensor,
    c: Tensor,
    initial_state: Tensor | None,
    reverse: bool,
    last_only: bool,
) -> tuple[Tensor, Tensor]:
    gain = factor.unbind(-1)
    real, imag = (u @ part.T for part in b.unbind(-1))
    driven = real * gain[0] - imag * gain[1], real * gain[1] + imag * gain[0]
    lines = tuple(part.unsqueeze(2) for part in driven)
    decay = tuple(part.unsqueeze(2) if part.dim() == 3 else part.view(1, 1, 1, -1) for part in a_bar.unbind(-1))
    before = None
    if initial_state is not None:
        before = tuple(part.unsqueeze(1) for part in initial_state.to(u.dtype).chunk(2, dim=-1))
    parts = scan_parts_by_levels(decay, lines, before, reverse)
    states = torch.cat([part.squeeze(2) for part in parts], dim=-1)
    c_real, c_imag = (2 * c).unbind(-1)
    outputs = (states[:, -1:] if last_only else states) @ torch.cat([c_real, -c_imag], dim=-1).T
    return outputs, states[:, -1]


_MIMO_SCAN = Operation(export=_exported_mimo_scan, torch=_mimo_scan)
