"""State space model with several inputs and outputs and one diagonal state matrix, by a linear scan.

Dimensions: `B` batch, `L` length, `D` input channels, `E` output channels, `S` stored states (one of each conjugate
pair).

Complex arguments are real pairs in a last dimension of size 2. An initial state may also be real, with the real parts
before the imaginary parts along the last dimension.

Source: Smith, Warrington & Linderman 2023 (S5), eqs. (5) and (6).
"""

import torch
from torch import Tensor

from hf_ssm.ops.linear_scan import as_complex, linear_scan

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
        Outputs `(B, L, E)`, or `(B, 1, E)`, and the state at the last position, `(B, S)`.
    """
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
