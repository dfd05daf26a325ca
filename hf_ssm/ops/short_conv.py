"""Short depth-wise convolution and its step.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

import torch
import torch.nn.functional as F


def _check(weight: torch.Tensor, bias: torch.Tensor | None, channels: int) -> None:
    if weight.dim() != 2 or weight.shape[0] != channels or weight.shape[1] < 1:
        raise ValueError(
            f"weight must have shape (channels, taps >= 1) with channels = {channels} as in u, "
            f"got {tuple(weight.shape)}"
        )
    if bias is not None and bias.shape != (channels,):
        raise ValueError(f"bias must have shape ({channels},), got {tuple(bias.shape)}")


def _paddings(taps: int, bidirectional: bool) -> tuple[int, int]:
    left = (taps - 1) // 2 if bidirectional else taps - 1
    return left, taps - 1 - left


def short_conv(
    u: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, bidirectional: bool = False
) -> torch.Tensor:
    """Depth-wise convolution with zero padding, weights in the order of `torch.nn.Conv1d`.

    `y[t] = Σ_i weight[:, i] u[t - left + i] + bias`, where `left = K - 1` for the causal form (the last
    weight meets the current input) and `left = (K - 1) // 2` for the bidirectional one (centred; an even `K`
    sees one position more to the right than to the left, as `padding="same"` of torch does).

    Args:
        u: Input `(B, L, D)`.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.
        bidirectional: Centred instead of causal.

    Returns:
        `(B, L, D)`.

    Raises:
        ValueError: Shapes do not fit.
    """
    if u.dim() != 3:
        raise ValueError(f"u must have shape (batch, length, channels), got {tuple(u.shape)}")
    _check(weight, bias, u.shape[2])
    padded = F.pad(u.transpose(1, 2), _paddings(weight.shape[1], bidirectional))
    return F.conv1d(padded, weight.unsqueeze(1), bias, groups=u.shape[2]).transpose(1, 2)


def short_conv_reference(
    u: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, bidirectional: bool = False
) -> torch.Tensor:
    """`short_conv` as the plain sum over positions and taps; same arguments."""
    _check(weight, bias, u.shape[2])
    taps, length = weight.shape[1], u.shape[1]
    left, _ = _paddings(taps, bidirectional)
    rows = []
    for t in range(length):
        row = torch.zeros_like(u[:, 0]) if bias is None else bias.expand_as(u[:, 0])
        for i in range(taps):
            if 0 <= t - left + i < length:
                row = row + weight[:, i] * u[:, t - left + i]
        rows.append(row)
    return torch.stack(rows, dim=1)


def short_conv_extend(
    u: torch.Tensor, state: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The causal `short_conv` of the next piece of a sequence.

    Args:
        u: The piece, `(B, L, D)`.
        state: The `K - 1` inputs before it, oldest first, `(B, D, K - 1)`; `None` at the start of a sequence.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.

    Returns:
        The output `(B, L, D)` and the state for the next piece, `(B, D, K - 1)`.

    Raises:
        ValueError: Shapes do not fit.
    """
    if u.dim() != 3 or u.shape[1] < 1:
        raise ValueError(f"u must have shape (batch, length >= 1, channels), got {tuple(u.shape)}")
    _check(weight, bias, u.shape[-1])
    batch, length, channels = u.shape
    expected = (batch, channels, weight.shape[1] - 1)
    if state is None:
        state = u.new_zeros(expected)
    if state.shape != expected:
        raise ValueError(f"state must have shape (batch, channels, taps - 1) = {expected}, got {tuple(state.shape)}")
    window = torch.cat([state.to(u.dtype), u.transpose(1, 2)], dim=-1)
    if length == 1:
        # A convolution of one position costs several times the sum that it is, which half precision could not hold.
        precise = torch.promote_types(u.dtype, torch.float32)
        y = (window * weight.to(precise)).sum(-1, keepdim=True)
        y = (y if bias is None else y + bias.unsqueeze(-1)).to(u.dtype)
        return y.transpose(1, 2), window[..., 1:]
    y = F.conv1d(window, weight.unsqueeze(1), bias, groups=channels)
    # A copy, or the state would keep the whole piece in memory.
    return y.transpose(1, 2), window[..., length:].clone(memory_format=torch.contiguous_format)
