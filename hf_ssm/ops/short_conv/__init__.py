"""Short depth-wise convolution with the activation that follows it, and its incremental form.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.

- `reference.py`: the sum over positions and taps;
- `pytorch.py`: PyTorch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.short_conv.pytorch import convolve_padded, short_conv_torch
from hf_ssm.ops.short_conv.reference import check_short_conv, short_conv_reference, zero_masked_positions

__all__ = ["short_conv", "short_conv_extend", "short_conv_reference"]


def short_conv(
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    bidirectional: bool = False,
    activation: str | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Depth-wise convolution with zero padding, weights in the order of `torch.nn.Conv1d`.

    `y[t] = act(Σ_i weight[:, i] u[t - left + i] + bias)`, where `left = K - 1` in the causal form (the last weight
    multiplies the current input) and `left = (K - 1) // 2` in the bidirectional form (centred; an even `K` reaches one
    position further to the right than to the left, as `padding="same"` of torch does).

    On a CPU the arithmetic is float32, or float64 if one of the tensors is. Gradients of any order are supported.

    Args:
        u: Input `(B, L, D)`.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.
        bidirectional: Centred instead of causal.
        activation: `None` or `"silu"`.
        mask: `(B, L)`, bool. At masked positions (false) `u` is read as zero whatever its value, the output is zero,
            and no gradient passes. Default: no position is masked.

    Returns:
        `(B, L, D)` in the dtype of `u`.

    Raises:
        ValueError: Shapes do not fit, unknown activation, or a mask that is not bool.
    """
    check_short_conv(u, weight, bias, activation, mask)
    y: Tensor = _SHORT_CONV(u, weight, bias, bidirectional, activation, mask)
    return y


_SHORT_CONV = Operation(
    torch=short_conv_torch,
    reference=short_conv_reference,
)


def short_conv_extend(
    u: Tensor,
    state: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The causal `short_conv` of the next chunk of a sequence.

    Args:
        u: The chunk, `(B, L, D)`.
        state: The `K - 1` inputs before the chunk, oldest first, `(B, D, K - 1)`; `None` at the start of a sequence.
        weight: Taps `(D, K)`.
        bias: `(D,)`, default none.
        activation: `None` or `"silu"`.
        mask: `(B, L)`, bool, as in `short_conv`; the state holds zeros for masked positions.

    Returns:
        The output `(B, L, D)` and the state for the next chunk, `(B, D, K - 1)`.

    Raises:
        ValueError: As in `short_conv`; the chunk is empty.
    """
    check_short_conv(u, weight, bias, activation, mask, min_length=1)
    batch, _, channels = u.shape
    left = weight.shape[1] - 1
    expected = (batch, channels, left)
    if state is not None and state.shape != expected:
        raise ValueError(f"state must have shape (batch, channels, taps - 1) = {expected}, got {tuple(state.shape)}")
    # Channels are innermost, as everywhere; a state is a view of such a tensor.
    new = _recent_inputs(u, mask, left)
    if state is None:
        y = short_conv(u, weight, bias, activation=activation, mask=mask)
        return y, _last_positions(F.pad(new, (0, 0, left, 0)), left)
    past = state.transpose(1, 2).to(u.dtype)
    y = _SHORT_CONV_CHUNK(u, past, weight, bias, activation, mask)
    return y, _last_positions(torch.cat([past, new], dim=1), left)


def _recent_inputs(u: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """The last `count` inputs of a chunk, or all of a shorter one, zero at masked positions; exported all."""
    if is_exporting():
        return zero_masked_positions(u, mask)
    recent = slice(max(0, u.shape[1] - count), None)
    return zero_masked_positions(u[:, recent], None if mask is None else mask[:, recent])


def _extend_torch(
    u: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, mask: Tensor | None
) -> Tensor:
    """The output at the positions of `u` after the inputs `past` `(B, K - 1, D)`."""
    window = torch.cat([past, zero_masked_positions(u, mask)], dim=1)
    if u.shape[1] == 1:
        y = convolve_padded(window, weight, bias, 0, 0, activation)
    else:
        y = short_conv(window, weight, bias, activation=activation)[:, past.shape[1] :]
    return zero_masked_positions(y, mask)


_SHORT_CONV_CHUNK = Operation(
    torch=_extend_torch,
)


def _last_positions(window: Tensor, count: int) -> Tensor:
    """The last positions as a state; a copy, since a view would keep the whole window in memory."""
    return window[:, window.shape[1] - count :].clone().transpose(1, 2)
