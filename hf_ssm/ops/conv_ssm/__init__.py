"""Convolutional state space model: a state space model at each pixel whose input and output maps are convolutions.

Dimensions: `B` batch, `T` frames, `h` height, `w` width, `D` input channels, `E` output channels, `S` stored states at
each pixel (one of each conjugate pair), `k` odd size of a spatial kernel.

- `reference.py`: the recurrence frame by frame.

Exported programs have no complex numbers. Complex parameters are therefore real pairs in a last dimension of size 2,
and while a program is exported, states are real, with the real parts before the imaginary parts along the last
dimension.

Source: Smith, De Mello, Kautz, Linderman & Byeon 2023 (ConvS5), eqs. (5) and (6), and Section 3.2.
"""

import torch
from torch import Tensor

from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.conv_ssm.reference import conv_ssm_reference, convolve_frames
from hf_ssm.ops.linear_scan import linear_scan, scan_parts_by_levels

__all__ = ["conv_ssm", "conv_ssm_reference", "convolve_frames"]


def conv_ssm(
    inputs: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x_t = a ⊙ x_{t-1} + b ∗ u_t and y_t = 2 Re(c ∗ x_t) + d ∗ u_t, by one linear scan over all frames.

    ∗ is the convolution of a frame (as in deep learning: a correlation), with zeros around it.

    Args:
        inputs: u, `(B, T, h, w, D)`.
        a: Discrete eigenvalues, the same at all pixels, real pairs `(S, 2)`.
        b: Discrete input kernels, real pairs `(S, D, k, k, 2)`.
        c: Output kernels, real pairs `(E, S, k, k, 2)`.
        d: Feed-through kernels `(E, D, k, k)`.
        initial_state: State before the first frame, `(B, h, w, S)`, complex (exported: real, `(B, h, w, 2 S)`); default
            zero.

    Returns:
        Outputs `(B, T, h, w, E)`, and the state after the last frame, of the form of the initial state.
    """
    driven = convolve_frames(inputs, torch.cat(b.unbind(-1)))
    states = (_exported_states if is_exporting() else _states)(a, driven, initial_state)
    parts = states if is_exporting() else torch.cat([states.real, states.imag], dim=-1)
    outputs = 2 * convolve_frames(parts, torch.cat([c[..., 0], -c[..., 1]], dim=1))
    if d is not None:
        outputs = outputs + convolve_frames(inputs, d)
    return outputs, states[:, -1]


def _states(a: Tensor, driven: Tensor, initial_state: Tensor | None) -> Tensor:
    """All states `(B, T, h, w, S)`, complex, given b ∗ u, `(B, T, h, w, 2 S)`, with the real parts first."""
    real, imag = driven.chunk(2, dim=-1)
    inputs = torch.complex(real.contiguous(), imag.contiguous())
    return linear_scan(torch.view_as_complex(a.contiguous()), inputs, initial_state)


def _exported_states(a: Tensor, driven: Tensor, initial_state: Tensor | None) -> Tensor:
    """As `_states`, with real numbers only: `(B, T, h, w, 2 S)`."""
    real, imag = a.view(1, 1, 1, -1, 2).unbind(-1)
    before = None if initial_state is None else initial_state.flatten(1, 2).chunk(2, dim=-1)
    found = scan_parts_by_levels((real, imag), driven.flatten(2, 3).chunk(2, dim=-1), before, False)
    return torch.cat(found, dim=-1).unflatten(2, driven.shape[2:4])
