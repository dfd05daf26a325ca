"""Checks of what `forward` is given.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.ops.context import is_exporting
from hf_ssm.utils.hints import closest_name

# Arguments that transformers and its Trainer pass to `forward`, and that these models need not read.
_IGNORED = frozenset(
    {
        *("cache_position", "logits_to_keep", "num_items_in_batch", "output_attentions", "position_ids", "return_dict"),
        *("shift_labels", "token_type_ids", "use_cache", "past_key_values", "labels"),
    }
)


def check_extra_arguments(model: Any, given: dict[str, Any]) -> None:
    """Refuse a cache or attentions that the model does not have, and misspelled arguments.

    Other unknown arguments are ignored, as in transformers.

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
            f"{type(model).__name__} has no attentions: leave out `output_attentions`. (`hf_ssm.attention_matrix` "
            "computes the attention matrix of a selective layer.)"
        )
    unknown = given.keys() - _IGNORED
    if not unknown:
        return
    known = {*inspect.signature(model.forward).parameters, *_IGNORED} - {"kwargs"}
    for name in unknown:
        near = closest_name(name, known, cutoff=0.75)
        if near is not None:
            raise TypeError(f"{type(model).__name__} has no argument `{name}`: did you mean `{near}`?")


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
    reads_values = mask.device.type == "cpu" and not torch.compiler.is_compiling() and not is_exporting()
    if reads_values and mask.numel() == 1 and mask.item():
        # Decoding of one sequence, where each operation counts.
        return None
    mask = mask.to(device=hidden_states.device, dtype=torch.bool)
    # On a GPU the checks would wait for the device.
    if not reads_values:
        return mask
    if mask.all():
        return None
    # A piece of a sequence may be nothing but padding.
    if not in_pieces and not mask.any(dim=1).all():
        row = (~mask.any(dim=1)).nonzero()[0].item()
        raise ValueError(f"`attention_mask` keeps no token in row {row}: drop empty sequences from the batch.")
    # Along a row without holes the mask rises and falls at most once.
    edges = nn.functional.pad(mask.int(), (1, 1)).diff(dim=1).abs().sum(dim=1)
    if (edges > 2).any():
        row = (edges > 2).nonzero()[0].item()
        raise ValueError(
            f"`attention_mask` has padding between tokens in row {row}: pad on one side. (To ignore a token inside a "
            "sequence, replace it by a mask or unknown token: positions between tokens count as time steps.)"
        )
    return mask


__all__ = ["check_extra_arguments", "check_mask"]
