"""Short depth-wise convolution in PyTorch.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.short_conv.reference import taps_before, to_arithmetic_dtype, zero_masked_positions

__all__ = ["convolve_padded", "short_conv_torch"]


def short_conv_torch(
    u: Tensor, weight: Tensor, bias: Tensor | None, bidirectional: bool, activation: str | None, mask: Tensor | None
) -> Tensor:
    """`short_conv` by torch's operations; same arguments."""
    taps = weight.shape[1]
    left = taps_before(taps, bidirectional)
    y = convolve_padded(zero_masked_positions(u, mask), weight, bias, left, taps - 1 - left, activation)
    return zero_masked_positions(y, mask)


def convolve_padded(
    u: Tensor, weight: Tensor, bias: Tensor | None, left: int, right: int, activation: str | None
) -> Tensor:
    """The convolution of `u` with `left` zeros before and `right` zeros after it, without further padding."""
    dtype, channels, taps = u.dtype, u.shape[2], weight.shape[1]
    length = u.shape[1] + left + right + 1 - taps
    if u.device.type == "cpu" or length == 1:
        # With channels innermost, a sum of shifted products takes half the time of torch's convolution on a CPU.
        u, weight, bias = to_arithmetic_dtype(u, weight, bias)
        u = F.pad(u, (0, 0, left, right))
        y = u[:, :length] * weight[:, 0] if bias is None else torch.addcmul(bias, u[:, :length], weight[:, 0])
        for i in range(1, taps):
            y = torch.addcmul(y, u[:, i : i + length], weight[:, i])
    else:
        padded = F.pad(u.transpose(1, 2), (left, right))
        y = F.conv1d(padded, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)
    return (y if activation is None else F.silu(y)).to(dtype)
