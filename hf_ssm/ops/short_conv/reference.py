"""Short depth-wise convolution as the sum over positions and taps, and what all implementations share.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

import torch
from torch import Tensor

__all__ = ["check_short_conv", "short_conv_reference", "taps_before", "to_arithmetic_dtype", "zero_masked_positions"]


def check_short_conv(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    mask: Tensor | None,
    min_length: int = 0,
) -> None:
    """Raise a ValueError where the arguments of `short_conv` do not fit."""
    if u.dim() != 3 or u.shape[1] < min_length:
        length = f"length >= {min_length}" if min_length else "length"
        raise ValueError(f"u must have shape (batch, {length}, channels), got {tuple(u.shape)}")
    channels = u.shape[2]
    if weight.dim() != 2 or weight.shape[0] != channels or weight.shape[1] < 1:
        raise ValueError(
            f"weight must have shape (channels, taps >= 1) with channels = {channels} as in u, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"bias must have shape ({channels},), got {tuple(bias.shape)}")
    if activation not in (None, "silu"):
        raise ValueError(f"activation must be None or 'silu', got {activation!r}: apply others to the result")
    if mask is not None and (mask.shape != u.shape[:2] or mask.dtype != torch.bool):
        raise ValueError(
            f"mask must be bool and have shape (batch, length) = {tuple(u.shape[:2])}, got {mask.dtype} "
            f"{tuple(mask.shape)}"
        )


def taps_before(taps: int, bidirectional: bool) -> int:
    """Number of taps before the one of the current input."""
    return (taps - 1) // 2 if bidirectional else taps - 1


def zero_masked_positions(t: Tensor, mask: Tensor | None) -> Tensor:
    """`(B, L, D)` with zeros, also in place of NaN, where the mask `(B, L)` is false."""
    return t if mask is None else t.masked_fill(~mask.unsqueeze(-1), 0)


def to_arithmetic_dtype(u: Tensor, *others: Tensor | None) -> list:
    """All tensors in the dtype of the arithmetic: float32, or float64 if one of them is."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    for t in others:
        dtype = dtype if t is None else torch.promote_types(dtype, t.dtype)
    return [t if t is None else t.to(dtype) for t in (u, *others)]


def short_conv_reference(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    bidirectional: bool = False,
    activation: str | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """`short_conv` as the sum over positions and taps; same arguments."""
    check_short_conv(u, weight, bias, activation, mask)
    dtype, length, taps = u.dtype, u.shape[1], weight.shape[1]
    u, weight, bias = to_arithmetic_dtype(u, weight, bias)
    u = zero_masked_positions(u, mask)
    left = taps_before(taps, bidirectional)
    rows = []
    for t in range(length):
        row = torch.zeros_like(u[:, 0]) if bias is None else bias.expand_as(u[:, 0])
        for i in range(taps):
            if 0 <= t - left + i < length:
                row = row + weight[:, i] * u[:, t - left + i]
        rows.append(row if activation is None else row * torch.sigmoid(row))
    return zero_masked_positions(torch.stack(rows, dim=1), mask).to(dtype)
