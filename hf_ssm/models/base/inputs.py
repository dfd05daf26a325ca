"""Checks of what `forward` is given: of what would be silently wrong, not of what torch rejects anyway.

Legend: `B` batch, `L` length.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.views.sequences import Documents, has_holes
from hf_ssm.ops.context import has_readable_values, is_exporting
from hf_ssm.utils.hints import closest_name

# Arguments that clients of transformers, collators and the Trainer pass to every model, and that change nothing here.
_WITHOUT_EFFECT = frozenset(
    {
        *("cache_position", "return_dict", "output_attentions", "use_cache", "num_items_in_batch", "shift_labels"),
        *("token_type_ids", "mm_token_type_ids", "max_length_q", "max_length_k", "position_ids"),
    }
)
# Arguments of heads, which clients give to other models as `None`.
_OF_OTHERS = ("labels", "logits_to_keep", "cache", "past_key_values", "cache_params")

# Arguments of packed rows, in the order of trust.
PACKING_ARGUMENTS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "position_ids")


def packing_argument(arguments: Mapping[str, Any]) -> str | None:
    """The name of the argument that tells where documents begin; `None` without one."""
    for name in PACKING_ARGUMENTS:
        if arguments.get(name) is not None:
            return name
    return None


def check_extra_arguments(model: Any, given: Mapping[str, Any], accepted: tuple[str, ...] = ()) -> None:
    """Raise an error for arguments that would have no effect.

    Args:
        model: The model.
        given: Arguments of `forward` that its signature does not name.
        accepted: Names that the model reads.

    Raises:
        ValueError: A cache is given, or attentions are requested.
        TypeError: Another argument; the message names the nearest that exists.
    """
    unknown = given.keys() - _WITHOUT_EFFECT.union(accepted, model.extra_inputs)
    if given.get("output_attentions"):
        raise ValueError(
            f"{type(model).__name__} has no attentions: leave out `output_attentions`. (`hf_ssm.attention_matrix` "
            "computes the attention matrix of a selective layer.)"
        )
    for name in sorted(unknown):
        if name in _OF_OTHERS and given[name] is None:
            continue
        if name in _OF_OTHERS[2:]:
            raise ValueError(f"{type(model).__name__} takes no `{name}`: pass the whole sequence.")
        known = {*inspect.signature(model.forward).parameters, *accepted, *model.extra_inputs} - {"kwargs"}
        near = closest_name(name, known, cutoff=0.85)
        # Clients pass `None` for what a model may not have.
        if near is not None or given[name] is not None:
            hint = "leave it out" if near is None else f"did you mean `{near}`?"
            raise TypeError(f"{type(model).__name__} has no argument `{name}`: {hint}")


def the_input(model: Any, **named: Tensor | None) -> tuple[str, Tensor]:
    """Return name and value of the one input of a backbone that is given.

    Raises:
        ValueError: Not exactly one input; not the shape `(B, L)` or `(B, L, channels)`; complex signals; on a CPU also
            signals that are not finite.
    """
    channels = model.config.num_input_channels
    takes = "input_ids" if channels is None else "input_values"
    name = takes if named[takes] is not None else "inputs_embeds"
    inputs = named.pop(name)
    if inputs is None or any(map(torch.is_tensor, named.values())):
        raise ValueError(
            f"Give exactly one of `{takes}` and `inputs_embeds`, got "
            f"{' and '.join(given for given, value in {name: inputs, **named}.items() if value is not None) or 'none'} "
            f"(`num_input_channels`={channels})."
        )
    if inputs.dim() != (2 if name == "input_ids" else 3) or 0 in inputs.shape:
        shape = "(batch, length)" if name == "input_ids" else "(batch, length, channels)"
        raise ValueError(f"`{name}` must have the shape {shape} with sizes of at least 1, got {tuple(inputs.shape)}.")
    if name == "input_values":
        if inputs.is_complex():
            raise ValueError("`input_values` must be real: pass real and imaginary parts as two channels.")
        if has_readable_values(inputs) and not torch.isfinite(inputs).all():
            raise ValueError(
                "`input_values` holds NaN or infinite values: fill or drop them (and set `attention_mask` to 0 at "
                "missing positions)."
            )
    return name, inputs


def check_length(longest: int, length: int, documents: Documents | None, cache: Any) -> None:
    """Raise `ValueError` for an input, or a document, longer than an implicit filter."""
    # Other classes of caches raise an error later.
    past = 0 if is_exporting() else getattr(cache, "history", 0)
    count = past + length if documents is None else documents.longest_after(past)
    if count > longest:
        before = " with those in the cache" if past else ""
        subject = "The input" if documents is None else "A document"
        raise ValueError(
            f"{subject} has {count} positions{before}, but filter_type='implicit' is defined on "
            f"`max_position_embeddings`={longest}: shorten the input, or train a model with a larger value."
        )


def check_mask(attention_mask: Tensor, inputs: Tensor, past: int = 0, *, in_pieces: bool = False) -> Tensor | None:
    """Return the mask of the new positions, `(B, L)`, bool, or `None` where all are tokens.

    Args:
        attention_mask: `(B, L)` or `(B, past + L)`.
        inputs: `(B, L, ...)`.
        past: Positions read before.
        in_pieces: Whether a row may be nothing but padding.

    Raises:
        ValueError: Another shape; on a CPU also another value than 0 and 1, or an empty row.
    """
    batch, length = inputs.shape[:2]
    if attention_mask.shape not in ((batch, length), (batch, past + length)):
        raise ValueError(
            f"`attention_mask` has the shape {tuple(attention_mask.shape)}, but the input is {(batch, length)} "
            f"(batch, length){f', after {past} positions in the cache' if past else ''}."
        )
    given = attention_mask[:, -length:]
    mask = given.to(inputs.device, torch.bool)
    if not has_readable_values(given):
        return mask
    wrong = mask.to(given.dtype) != given if given.dtype != torch.bool else None
    if wrong is not None and wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"`attention_mask` must be 1 at tokens and 0 at padding, got {given[row, position].item()} in row {row} "
            f"at position {position}: convert the mask, and pass numbers of documents as `seq_idx`."
        )
    if mask.all():
        return None
    if not in_pieces and not mask.any(dim=1).all():
        row = (~mask.any(dim=1)).nonzero()[0].item()
        raise ValueError(f"`attention_mask` keeps no token in row {row}: drop empty sequences from the batch.")
    return mask


def check_extra_inputs(values: Mapping[str, Tensor], mask: Tensor | None, inputs: Tensor) -> dict[str, Tensor]:
    """Return the `extra_inputs` of a model, `(B, L)` each, float32 or better, 1 at padding.

    Raises:
        ValueError: Another shape; on a CPU also a number at a token that is not positive and finite.
    """
    shape, checked = inputs.shape[:2], {}
    for name, value in values.items():
        if value.shape != shape or value.dtype == torch.bool:
            raise ValueError(
                f"`{name}` must be a number for each position, (batch, length) = {tuple(shape)}, got "
                f"{tuple(value.shape)} of {value.dtype}."
            )
        value = value.to(inputs.device, torch.promote_types(value.dtype, torch.float32))
        value = value if mask is None else torch.where(mask, value, 1.0)
        if has_readable_values(value) and not (valid := (value > 0) & torch.isfinite(value)).all():
            row, position = (~valid).nonzero()[0].tolist()
            raise ValueError(
                f"`{name}` must be positive and finite, got {value[row, position].item()} in row {row} at position "
                f"{position}: give 1 where the time to the position before is not known."
            )
        checked[name] = value
    return checked


def check_without_holes(mask: Tensor | None) -> None:
    """Raise `ValueError` for padding between tokens, where they are read at their own positions; on a CPU."""
    if mask is not None and has_readable_values(mask) and has_holes(mask):
        raise ValueError("`attention_mask` has padding between tokens: pad on one side, or leave these positions out.")


__all__ = [
    "PACKING_ARGUMENTS",
    "check_extra_arguments",
    "check_extra_inputs",
    "check_length",
    "check_mask",
    "check_without_holes",
    "packing_argument",
    "the_input",
]
