"""Checks of what `forward` is given.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import difflib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

# Arguments of `forward` that transformers and its Trainer pass, and that need nothing done here.
_PASSED_BY = frozenset(
    {
        *("cache_position", "logits_to_keep", "num_items_in_batch", "output_attentions", "position_ids", "return_dict"),
        *("shift_labels", "token_type_ids", "use_cache", "past_key_values", "labels"),
    }
)


def check_extra_arguments(model: Any, given: dict[str, Any]) -> None:
    """Refuse a cache or attentions where there are none, and what looks like an argument with a slip of the pen.

    Other unknown arguments are let through, as transformers does.

    Raises:
        ValueError: A cache is given, or attentions are asked for.
        TypeError: A name is close to, but not, an argument; the message names it.
    """
    if given.get("past_key_values") is not None:
        raise ValueError(f"{type(model).__name__} takes no `past_key_values`: pass the whole sequence.")
    if given.get("cache_params") is not None:
        raise ValueError(f"{type(model).__name__} has no argument `cache_params`: pass the cache as `past_key_values`.")
    if given.get("output_attentions"):
        raise ValueError(
            f"{type(model).__name__} has no attentions: leave out `output_attentions`. (What a selective layer attends "
            "to is in `hf_ssm.attention_matrix`.)"
        )
    unknown = given.keys() - _PASSED_BY
    if not unknown:
        return
    known = sorted({*inspect.signature(model.forward).parameters, *_PASSED_BY} - {"kwargs"})
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if near:
            raise TypeError(f"{type(model).__name__} has no argument `{name}`: did you mean `{near[0]}`?")


def check_mask(
    attention_mask: Tensor | None, hidden_states: Tensor, past: int = 0, *, in_pieces: bool = False
) -> Tensor | None:
    """The mask of the new positions, `(B, L)`, or `None` where all are tokens.

    Args:
        attention_mask: `(B, L)` or `(B, past + L)`.
        hidden_states: `(B, L, D)`.
        past: Positions read before.
        in_pieces: Whether a row may be nothing but padding.

    Raises:
        ValueError: Another shape, an empty row, padding between tokens.
    """
    if attention_mask is None:
        return None
    batch, length = hidden_states.shape[:2]
    if attention_mask.shape not in ((batch, length), (batch, past + length)):
        raise ValueError(
            f"`attention_mask` has the shape {tuple(attention_mask.shape)}, but the input is {(batch, length)} "
            f"(batch, length){f', after {past} positions in the cache' if past else ''}."
        )
    mask = attention_mask[:, -length:]
    if not torch.compiler.is_compiling() and mask.numel() == 1 and mask.item():
        # As in decoding, where each operation counts.
        return None
    mask = mask.to(device=hidden_states.device, dtype=torch.bool)
    if torch.compiler.is_compiling():
        return mask
    if mask.all():
        return None
    # A piece of a sequence may be nothing but padding.
    if not in_pieces and not mask.any(dim=1).all():
        row = (~mask.any(dim=1)).nonzero()[0].item()
        raise ValueError(f"`attention_mask` keeps no token in row {row}: drop empty sequences from the batch.")
    # Along a row without holes the mask rises and falls once at most.
    edges = nn.functional.pad(mask.int(), (1, 1)).diff(dim=1).abs().sum(dim=1)
    if (edges > 2).any():
        row = (edges > 2).nonzero()[0].item()
        raise ValueError(
            f"`attention_mask` has padding between tokens in row {row}: pad on one side. (A token that shall not "
            "count needs a mask or unknown token in its place: time goes on at it.)"
        )
    return mask


__all__ = ["check_extra_arguments", "check_mask"]
