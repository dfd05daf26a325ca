"""What the implementations of one position of all blocks share.

Dimensions: `B` batch, `H` hidden size, `K` taps of the short convolution.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["check_inputs", "check_weight_shapes", "normed", "step_through_blocks"]


def normed(h: Tensor, options: Any, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The norm that `options` names, with its `epsilon`."""
    if options.norm == "layer":
        return F.layer_norm(h, h.shape[-1:], weight, bias, options.epsilon)
    return h if options.norm == "none" else F.rms_norm(h, h.shape[-1:], weight, options.epsilon)


def step_through_blocks(
    step: Callable[..., tuple[Tensor, Tensor, Tensor]],
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    weights: Sequence[Any],
    options: Any,
    final_norm: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """One position of all blocks, one after the other.

    Args:
        step: One block: from the hidden state `(B, H)`, the past of the convolution `(B, channels, K - 1)`, the state
            of the scan, weights and options to the output and the next past and state.
        hidden: `(B, H)`.
        pasts: `(number of blocks, B, K - 1, channels)`.
        states: `(number of blocks, B, ...)`.
        weights: Of each block.
        options: Of all blocks.
        final_norm: Weight and bias of the norm after the last block, if norms come first.

    Returns:
        The outputs of all blocks, the last after the final norm, and the next `pasts` and `states`.
    """
    outputs, new_pasts, new_states = [], [], []
    for past, state, w in zip(pasts, states, weights, strict=True):
        hidden, past, state = step(hidden, past.transpose(1, 2), state, w, options)
        outputs.append(hidden)
        new_pasts.append(past.transpose(1, 2))
        new_states.append(state)
    if options.norm_first:
        outputs[-1] = normed(hidden, options, *final_norm)
    return torch.stack(outputs), torch.stack(new_pasts), torch.stack(new_states)


def check_weight_shapes(weights: Any, expected: Sequence[tuple[int, ...]]) -> None:
    """Raise `ValueError` for the first tensor of a named tuple that has another shape."""
    for name, tensor, shape in zip(weights._fields, weights, expected, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")


def check_inputs(
    hidden: Tensor,
    pasts: Tensor,
    states: Tensor,
    count: int,
    shapes: tuple[int, tuple[int, ...], tuple[int, ...]],
) -> None:
    """Raise `ValueError` for the first input of one position of `count` blocks that has another shape.

    Args:
        hidden: `(B, H)`, or with further axes of size 1 between.
        pasts, states: `(count, B, ...)`.
        count: Number of blocks.
        shapes: Hidden size; shape of the state of a convolution and of a scan, of one row.
    """
    size, *of_rows = shapes
    batch = len(hidden)
    if hidden.shape[-1] != size or hidden.numel() != batch * size:
        raise ValueError(f"hidden must have {size} numbers for each row, got {tuple(hidden.shape)}")
    for name, memory, of_row in zip(("pasts", "states"), (pasts, states), of_rows, strict=True):
        expected = (count, batch, *of_row)
        if memory.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {tuple(memory.shape)}")
