"""Short depth-wise convolution, with the activation that follows it, and its step.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

import torch
import torch.nn.functional as F

from hf_ssm.ops.cpu.calling import in_function_transform, is_plain_call
from hf_ssm.ops.cpu_kernels import short_conv_after, short_conv_compiled
from hf_ssm.ops.kernels import compiled, reference


def _check(
    u: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    mask: torch.Tensor | None,
    shortest: int = 0,
) -> None:
    if u.dim() != 3 or u.shape[1] < shortest:
        length = f"length >= {shortest}" if shortest else "length"
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


def _left(taps: int, bidirectional: bool) -> int:
    """Taps before the one that meets the current input."""
    return (taps - 1) // 2 if bidirectional else taps - 1


def _runs_compiled(u: torch.Tensor, *others: torch.Tensor | None) -> bool:
    everything = u, *(t for t in others if t is not None)
    together = all(t.device == u.device for t in everything)
    return compiled(u.device) and u.is_floating_point() and together and not in_function_transform()


def short_conv(
    u: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    bidirectional: bool = False,
    activation: str | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Depth-wise convolution with zero padding, weights in the order of `torch.nn.Conv1d`.

    `y[t] = act(Σ_i weight[:, i] u[t - left + i] + bias)`, where `left = K - 1` for the causal form (the last weight
    meets the current input) and `left = (K - 1) // 2` for the bidirectional one (centred; an even `K` sees one position
    more to the right than to the left, as `padding="same"` of torch does).

    On a CPU the arithmetic is float32, or float64 where something is given in it; compiled, it is differentiable once.

    Args:
        u: Input `(B, L, D)`.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.
        bidirectional: Centred instead of causal.
        activation: `None` or `"silu"`.
        mask: `(B, L)`, bool: where it is false, `u` is read as zero whatever it is, the output is zero, and no gradient
            passes. Default: true everywhere.

    Returns:
        `(B, L, D)` in the dtype of `u`.

    Raises:
        ValueError: Shapes do not fit; another activation; a mask that is not bool.
    """
    _check(u, weight, bias, activation, mask)
    if reference():
        return short_conv_reference(u, weight, bias, bidirectional, activation, mask)
    taps = weight.shape[1]
    left = _left(taps, bidirectional)
    if _runs_compiled(u, weight, bias, mask):
        return short_conv_compiled(u, weight, bias, mask, left, activation is not None)
    return _masked(_short_conv_torch(_masked(u, mask), weight, bias, left, taps - 1 - left, activation), mask)


def _masked(t: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Zero where the mask is false, also in the place of NaN."""
    return t if mask is None else t.masked_fill(~mask.unsqueeze(-1), 0)


def _precise(u: torch.Tensor, *others: torch.Tensor | None) -> list:
    """All in the type of the arithmetic."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    for t in others:
        dtype = dtype if t is None else torch.promote_types(dtype, t.dtype)
    return [t if t is None else t.to(dtype) for t in (u, *others)]


def _short_conv_torch(
    u: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, left: int, right: int, activation: str | None
) -> torch.Tensor:
    """With `left` zeros before and `right` behind, of which none are needed where `u` holds the positions before."""
    dtype, channels, taps = u.dtype, u.shape[2], weight.shape[1]
    length = u.shape[1] + left + right + 1 - taps
    if u.device.type == "cpu" or length == 1:
        # With channels innermost, a sum of shifted products takes half the time of torch's convolution on a CPU.
        u, weight, bias = _precise(u, weight, bias)
        u = F.pad(u, (0, 0, left, right))
        y = u[:, :length] * weight[:, 0] if bias is None else torch.addcmul(bias, u[:, :length], weight[:, 0])
        for i in range(1, taps):
            y = torch.addcmul(y, u[:, i : i + length], weight[:, i])
    else:
        padded = F.pad(u.transpose(1, 2), (left, right))
        y = F.conv1d(padded, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)
    return (y if activation is None else F.silu(y)).to(dtype)


def short_conv_reference(
    u: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    bidirectional: bool = False,
    activation: str | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """`short_conv` as the plain sum over positions and taps; same arguments."""
    _check(u, weight, bias, activation, mask)
    dtype, length, taps = u.dtype, u.shape[1], weight.shape[1]
    u, weight, bias = _precise(u, weight, bias)
    u = _masked(u, mask)
    left = _left(taps, bidirectional)
    rows = []
    for t in range(length):
        row = torch.zeros_like(u[:, 0]) if bias is None else bias.expand_as(u[:, 0])
        for i in range(taps):
            if 0 <= t - left + i < length:
                row = row + weight[:, i] * u[:, t - left + i]
        rows.append(row if activation is None else row * torch.sigmoid(row))
    return _masked(torch.stack(rows, dim=1), mask).to(dtype)


def short_conv_extend(
    u: torch.Tensor,
    state: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The causal `short_conv` of the next piece of a sequence.

    Args:
        u: The piece, `(B, L, D)`.
        state: The `K - 1` inputs before it, oldest first, `(B, D, K - 1)`; `None` at the start of a sequence.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.
        activation: `None` or `"silu"`.
        mask: `(B, L)`, bool, as in `short_conv`; the state remembers zeros where it is false.

    Returns:
        The output `(B, L, D)` and the state for the next piece, `(B, D, K - 1)`.

    Raises:
        ValueError: As in `short_conv`; the piece is empty.
    """
    _check(u, weight, bias, activation, mask, shortest=1)
    batch, length, channels = u.shape
    left = weight.shape[1] - 1
    expected = (batch, channels, left)
    if state is not None and state.shape != expected:
        raise ValueError(f"state must have shape (batch, channels, taps - 1) = {expected}, got {tuple(state.shape)}")
    # What the next piece may need. Channels are innermost, as everywhere; a state is a view of such a tensor.
    recent = slice(max(0, length - left), None)
    new = _masked(u[:, recent], None if mask is None else mask[:, recent])
    if state is None:
        y = short_conv(u, weight, bias, activation=activation, mask=mask)
        return y, _last(F.pad(new, (0, 0, left, 0)), left)
    past = state.transpose(1, 2).to(u.dtype)
    tensors = u, weight, bias, mask, past
    if not reference() and _runs_compiled(*tensors) and is_plain_call(*tensors):
        y = short_conv_after(*tensors, activation is not None)
        return y, _last(torch.cat([past, new], dim=1), left)
    window = torch.cat([past, _masked(u, mask)], dim=1)
    if length == 1:
        y = _short_conv_torch(window, weight, bias, 0, 0, activation)
    else:
        y = short_conv(window, weight, bias, activation=activation)[:, left:]
    return _masked(y, mask), _last(window, left)


def _last(window: torch.Tensor, count: int) -> torch.Tensor:
    """The last positions as a state; a copy, or it would keep the whole window in memory."""
    return window[:, window.shape[1] - count :].clone().transpose(1, 2)
