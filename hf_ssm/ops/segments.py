"""Affine maps of states: what segments of a sequence do to the state before them, composed.

A recurrence maps the state before a segment to the state after it by `after = product ⊙ before + rest`, where `rest` is
the state that the segment leaves from the zero state. Segments are the positions that a process holds, or those that
are computed again together.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["states_before"]


def states_before(
    products: Sequence[Tensor],
    rests: Sequence[Tensor],
    apply: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    keeps: Sequence[Tensor] | None = None,
) -> Tensor:
    """The state before each segment, where the state before the first one is zero.

    Args:
        products: What each segment multiplies a state by.
        rests: The state that each segment leaves from the zero state, `(B, ...)`.
        apply: `apply(product, state)`.
        keeps: Whether the state before a segment reaches its end, `(B,)` each: false where a document ends or begins
            in the segment. Default: it does.

    Returns:
        `(segments, B, ...)`.
    """
    state = torch.zeros_like(rests[0])
    before = []
    for index, (product, rest) in enumerate(zip(products, rests, strict=True)):
        before.append(state)
        state = apply(product, state)
        if keeps is not None:
            state = torch.where(keeps[index].view(-1, *[1] * (state.dim() - 1)), state, 0)
        state = state + rest
    return torch.stack(before)
