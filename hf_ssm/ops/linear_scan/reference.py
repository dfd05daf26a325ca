"""The linear scan as a loop over positions.

Dimensions: `B` batch, `L` length, `M` lines of a sequence, `S` states.
"""

import torch
from torch import Tensor

__all__ = ["loop_scan"]


def loop_scan(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """All states `(B, L, M, S)`.

    Args:
        a: `(1 or B, 1 or L, 1 or M, S)`.
        b: `(B, L, M, S)`.
        state: `(B, M, S)`, or `None` for zero.
        reverse: Whether to begin at the last position.
    """
    x, states = torch.zeros_like(b[:, 0]) if state is None else state, []
    decays = a.unbind(1) if a.shape[1] > 1 else a.unbind(1) * b.shape[1]
    pairs = list(zip(decays, b.unbind(1), strict=True))
    for decay, inputs in reversed(pairs) if reverse else pairs:
        x = decay * x + inputs
        states.append(x)
    return torch.stack(states[::-1] if reverse else states, dim=1)
