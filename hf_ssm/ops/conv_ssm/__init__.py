"""Convolutional state space model: a state space model at each pixel whose input and output maps are convolutions.

Dimensions: `B` batch, `T` frames, `h` height, `w` width, `D` input channels, `E` output channels, `S` stored states at
each pixel (one of each conjugate pair), `k` odd size of a spatial kernel.

- `reference.py`: the recurrence frame by frame.

Source: Smith, De Mello, Kautz, Linderman & Byeon 2023 (ConvS5), eqs. (5) and (6), and Section 3.2.
"""

import torch
from torch import Tensor

from hf_ssm.ops.conv_ssm.reference import conv_ssm_reference, convolve_frames
from hf_ssm.ops.linear_scan import linear_scan

__all__ = ["conv_ssm", "conv_ssm_reference", "convolve_frames"]


def conv_ssm(
    inputs: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor | None = None, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x_t = a ⊙ x_{t-1} + b ∗ u_t and y_t = 2 Re(c ∗ x_t) + d ∗ u_t, by one linear scan over all frames.

    ∗ is the convolution of a frame (as in deep learning: a correlation), with zeros around it.

    Args:
        inputs: u, `(B, T, h, w, D)`, real.
        a: Discrete eigenvalues `(S,)`, complex, the same at all pixels.
        b: Discrete input kernels `(S, D, k, k)`, complex.
        c: Output kernels `(E, S, k, k)`, complex.
        d: Feed-through kernels `(E, D, k, k)`, real.
        initial_state: State before the first frame, `(B, h, w, S)`, complex; default zero.

    Returns:
        Outputs `(B, T, h, w, E)`, and the state after the last frame, `(B, h, w, S)`.
    """
    real, imag = convolve_frames(inputs, torch.cat([b.real, b.imag])).chunk(2, dim=-1)
    states = linear_scan(a, torch.complex(real.contiguous(), imag.contiguous()), initial_state)
    parts = torch.cat([states.real, states.imag], dim=-1)
    outputs = 2 * convolve_frames(parts, torch.cat([c.real, -c.imag], dim=1))
    if d is not None:
        outputs = outputs + convolve_frames(inputs, d)
    return outputs, states[:, -1]
