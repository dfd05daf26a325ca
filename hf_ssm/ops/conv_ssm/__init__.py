"""Convolutional state space model: a state space model at each pixel whose input and output maps are convolutions.

Dimensions: `B` batch, `T` frames, `h` height, `w` width, `D` input channels, `E` output channels, `S` stored states at
each pixel (one of each conjugate pair), `k` odd size of a spatial kernel.

- `reference.py`: the recurrence frame by frame.

Complex parameters are real pairs in a last dimension of size 2. An initial state may also be real, with the real parts
before the imaginary parts along the last dimension.

Source: Smith, De Mello, Kautz, Linderman & Byeon 2023 (ConvS5), eqs. (5) and (6), and Section 3.2.
"""

import torch
from torch import Tensor

from hf_ssm.ops.conv_ssm.reference import conv_ssm_reference, convolve_frames
from hf_ssm.ops.linear_scan import as_complex, linear_scan

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
        initial_state: State before the first frame, `(B, h, w, S)`, or real, `(B, h, w, 2 S)`; default zero.

    Returns:
        Outputs `(B, T, h, w, E)`, and the state after the last frame, `(B, h, w, S)`.
    """
    driven = convolve_frames(inputs, torch.cat(b.unbind(-1)))
    states, last = _frame_states(a, driven, initial_state)
    outputs = 2 * convolve_frames(states, torch.cat([c[..., 0], -c[..., 1]], dim=1))
    if d is not None:
        outputs = outputs + convolve_frames(inputs, d)
    return outputs, last


def _frame_states(a: Tensor, driven: Tensor, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """All states `(B, T, h, w, 2 S)`, the real parts first, from b ∗ u in this form, and the last `(B, h, w, S)`."""
    real, imag = driven.chunk(2, dim=-1)
    inputs = torch.complex(real.contiguous(), imag.contiguous())
    before = None if initial_state is None else as_complex(initial_state)
    states = linear_scan(torch.view_as_complex(a.contiguous()), inputs, before)
    return torch.cat([states.real, states.imag], dim=-1), states[:, -1]
