"""Checks of what `forward` is given.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.ops.context import has_readable_values, is_exporting
from hf_ssm.ops.documents import Documents
from hf_ssm.utils.checks import check_type
from hf_ssm.utils.hints import closest_name

# Arguments that transformers passes to every model and that change nothing here, with the reason.
_WITHOUT_EFFECT = {
    "cache_position": "`generate` counts positions; the cache of hf_ssm counts its own",
    "max_length_k": "collators pass it with `cu_seq_lens_k`, which it follows from",
    "max_length_q": "as `max_length_k`",
    "mm_token_type_ids": "as `token_type_ids`",
    "output_attentions": "the configuration's default; a request is refused",
    "return_dict": "read by the decorator of `forward`",
    "token_type_ids": "tokenizers add it to pairs of texts; there are no segment embeddings",
    "use_cache": "heads that give labels never return a cache",
}
# Columns that the Trainer keeps, also where a collator makes other `labels` of its own.
_BESIDE_LABELS = ("label", "label_ids")
# Read elsewhere than in the signature of `forward`: by the loss function, by `find_documents`, and by heads that have
# them; others get `None`.
_READ_ELSEWHERE = ("num_items_in_batch", "position_ids", "shift_labels")
# The cache, with its names before transformers 5.24.
_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
_OF_OTHER_HEADS = ("labels", "logits_to_keep", *_CACHE_NAMES)


def check_extra_arguments(
    model: Any, given: dict[str, Any], *, has_labels: bool = False, accepted: Iterable[str] = ()
) -> None:
    """Refuse arguments that a model does not read, unless they are listed above.

    Args:
        model: The model.
        given: Arguments of `forward` that its signature does not name.
        has_labels: Whether `labels` are given.
        accepted: Further names that the model reads.

    Raises:
        ValueError: A cache is given, or attentions are requested.
        TypeError: Another argument; the message names the nearest that exists.
    """
    for name in _CACHE_NAMES:
        if given.get(name) is not None:
            raise ValueError(f"{type(model).__name__} takes no `{name}`: pass the whole sequence.")
    if given.get("output_attentions"):
        raise ValueError(
            f"{type(model).__name__} has no attentions: leave out `output_attentions`. (`hf_ssm.attention_matrix` "
            "computes the attention matrix of a selective layer.)"
        )
    accepted = {*_WITHOUT_EFFECT, *_READ_ELSEWHERE, *model.extra_inputs, *accepted}
    if model.has_rows:
        accepted |= {"seq_idx", "cu_seq_lens_q", "cu_seq_lens_k"}
    accepted.update(_BESIDE_LABELS if has_labels else ())
    accepted.update(name for name in _OF_OTHER_HEADS if given.get(name) is None)
    unknown = given.keys() - accepted
    if not unknown:
        return
    known = {*inspect.signature(model.forward).parameters, *accepted} - {"kwargs"}
    for name in sorted(unknown):
        near = closest_name(name, known, cutoff=0.85)
        # Clients pass `None` for what a model may not have.
        if near is not None or given[name] is not None:
            hint = "leave it out" if near is None else f"did you mean `{near}`?"
            raise TypeError(f"{type(model).__name__} has no argument `{name}`: {hint}")


def check_is_tensor(name: str, value: Any) -> None:
    """Raise `TypeError` unless an argument is a tensor."""
    hint = "(from the model's tokenizer with `return_tensors='pt'`, or `torch.tensor`)"
    check_type(name, value, Tensor, f"a tensor {hint}")


def check_whole_numbers(name: str, value: Any) -> None:
    """Raise `TypeError` unless an argument is a tensor of signed integers, whose differences do not wrap around."""
    check_is_tensor(name, value)
    if value.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8):
        raise TypeError(
            f"`{name}` must be whole numbers of torch.int64 or torch.int32, got {value.dtype}: convert them by "
            "`.long()`."
        )


def the_input(model: Any, named: Mapping[str, Tensor | None], both_strands: bool = False) -> tuple[str, Tensor]:
    """Name and value of the one input of a backbone that is given.

    Args:
        model: The backbone.
        named: `input_ids` `(B, L)`, `inputs_embeds` `(B, L, D)` and `input_values` `(B, L, channels)`, or `None`.
        both_strands: Whether embeddings are those of both strands, `(B, L, 2 D)`.

    Raises:
        TypeError: The input is not a tensor; ids that are not integers; complex signals.
        ValueError: Not exactly one input; another shape; on a CPU also ids outside the vocabulary, and values that are
            not finite.
    """
    config = model.config
    present = {name: value for name, value in named.items() if value is not None}
    takes = "input_ids" if config.num_input_channels is None else "input_values"
    if len(present) != 1 or next(iter(present)) not in (takes, "inputs_embeds"):
        raise ValueError(
            f"Give exactly one of `{takes}` and `inputs_embeds`, got {' and '.join(present) or 'none'} "
            f"(`num_input_channels`={config.num_input_channels})."
        )
    ((name, inputs),) = present.items()
    check_is_tensor(name, inputs)
    dimensions = 2 if name == "input_ids" else 3
    if inputs.dim() != dimensions or inputs.shape[0] == 0 or inputs.shape[1] == 0:
        shape = "(batch, length)" if dimensions == 2 else "(batch, length, channels)"
        raise ValueError(f"`{name}` must have the shape {shape} with sizes of at least 1, got {tuple(inputs.shape)}.")
    if name == "inputs_embeds":
        size = config.hidden_size * (1 + both_strands)
        if inputs.shape[-1] != size or not inputs.is_floating_point():
            which = "`hidden_size` of both strands" if both_strands else "`hidden_size`"
            raise ValueError(
                f"`inputs_embeds` must hold {size} floating point numbers ({which}) at each position, got "
                f"{inputs.shape[-1]} of {inputs.dtype}."
            )
    elif name == "input_ids":
        check_ids(inputs, model.embed_tokens.weight.shape[0])
    else:
        _check_values(inputs, config.num_input_channels)
    return name, inputs


def _check_values(input_values: Tensor, channels: int) -> None:
    if input_values.is_complex():
        raise TypeError("`input_values` must be real: pass real and imaginary parts as two channels.")
    if input_values.shape[-1] != channels:
        raise ValueError(f"`input_values` has {input_values.shape[-1]} channels, but `num_input_channels`={channels}.")
    if has_readable_values(input_values) and not torch.isfinite(input_values).all():
        raise ValueError(
            "`input_values` holds NaN or infinite values: fill or drop them (and set "
            "`attention_mask` to 0 at missing positions)."
        )


def check_length(config: Any, length: int, documents: Documents | None, cache: Any) -> None:
    """Raise `ValueError` for an input, or a document, longer than an implicit filter.

    Args:
        config: The configuration of the model.
        length: Positions of the input.
        documents: The documents of packed rows.
        cache: The cache to continue from, or `None`.
    """
    longest = config.longest_input
    if longest is None:
        return
    # Other classes of caches are refused later.
    past = 0 if is_exporting() else getattr(cache, "history", 0)
    count = past + length if documents is None else documents.longest_after(past)
    if count > longest:
        before = " with those in the cache" if past else ""
        subject = "The input" if documents is None else "A document"
        raise ValueError(
            f"{subject} has {count} positions{before}, but filter_type='implicit' is defined on "
            f"`max_position_embeddings`={longest}: shorten the input, or train a model with a larger value."
        )


def check_ids(input_ids: Tensor, vocab_size: int) -> None:
    """Raise `TypeError` for ids that are not integers, and `ValueError` for ids outside the vocabulary."""
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"`input_ids` must be integers of torch.int64 or torch.int32, got {input_ids.dtype}: convert ids by "
            "`.long()`, and pass embeddings as `inputs_embeds`."
        )
    # On a GPU the check would wait for the device, which reports such ids itself.
    if not has_readable_values(input_ids):
        return
    if input_ids.numel() == 1:
        least = greatest = input_ids.item()
    else:
        least, greatest = (bound.item() for bound in input_ids.aminmax())
    if least < 0 or greatest >= vocab_size:
        raise ValueError(
            f"`input_ids` holds ids from {least} to {greatest}, but the vocabulary has {vocab_size} tokens: use "
            "the model's own tokenizer, or call `model.resize_token_embeddings`."
        )


def check_labels(labels: Tensor, classes: int, argument: str) -> None:
    """Raise `ValueError` where a label is neither -100 nor in [0, classes)."""
    if not has_readable_values(labels):
        return
    bad = (labels != -100) & ((labels < 0) | (labels >= classes))
    if bad.any():
        raise ValueError(
            f"`labels` has the value {labels[bad][0].item()}, but `{argument}`={classes} allows 0 to {classes - 1} "
            f"(and -100 for positions without a label): correct the labels, or set `{argument}`."
        )


def mask_of_new_positions(attention_mask: Tensor, shape: tuple[int, int], past: int) -> Tensor:
    """The last L columns of a mask `(B, L)` or `(B, past + L)`, where the input has the shape `(B, L)`.

    Raises:
        TypeError: The mask is not a tensor.
        ValueError: Another shape; on a CPU also another value than 0 and 1, such as NaN.
    """
    check_is_tensor("attention_mask", attention_mask)
    batch, length = shape
    if attention_mask.shape not in (shape, (batch, past + length)):
        raise ValueError(
            f"`attention_mask` has the shape {tuple(attention_mask.shape)}, but the input is {shape} "
            f"(batch, length){f', after {past} positions in the cache' if past else ''}."
        )
    mask = attention_mask[:, -length:]
    if mask.dtype != torch.bool and has_readable_values(mask):
        if mask.numel() == 1 and mask.item() in (0, 1):
            # Decoding of one sequence, where each operation counts.
            return mask
        tokens = mask.bool()
        # Types such as torch.uint16 have no comparison with a number.
        wrong = tokens.to(mask.dtype) != mask
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"`attention_mask` must be 1 at tokens and 0 at padding, got {mask[row, position].item()} in row {row} "
                f"at position {position}: convert the mask, and pass numbers of documents as `seq_idx`."
            )
    return mask


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
        TypeError: The mask is not a tensor.
        ValueError: Another shape; on a CPU also another value than 0 and 1, or an empty row.
    """
    if attention_mask is None:
        return None
    batch, length = hidden_states.shape[:2]
    mask = mask_of_new_positions(attention_mask, (batch, length), past)
    if mask.numel() == 1 and has_readable_values(mask) and mask.item():
        # Decoding of one sequence, where each operation counts.
        return None
    mask = mask.to(device=hidden_states.device, dtype=torch.bool)
    if not has_readable_values(mask):
        return mask
    if mask.all():
        return None
    # A piece of a sequence may be nothing but padding.
    if not in_pieces and not mask.any(dim=1).all():
        row = (~mask.any(dim=1)).nonzero()[0].item()
        raise ValueError(f"`attention_mask` keeps no token in row {row}: drop empty sequences from the batch.")
    return mask


def check_extra_inputs(
    values: Mapping[str, Tensor], attention_mask: Tensor | None, hidden_states: Tensor
) -> dict[str, Tensor]:
    """The `extra_inputs` of a model, float32 or better, 1 at padding.

    Args:
        values: Positive numbers `(B, L)` by name; those at padding are ignored.
        attention_mask: `(B, L)` or `(B, past + L)`, or `None`.
        hidden_states: `(B, L, D)`.

    Raises:
        TypeError: An input is not a tensor.
        ValueError: Another shape or type; on a CPU also a number at a token that is not positive and finite.
    """
    shape, device = hidden_states.shape[:2], hidden_states.device
    checked = {}
    for name, value in values.items():
        check_is_tensor(name, value)
        if value.shape != shape or value.dtype == torch.bool or value.is_complex():
            raise ValueError(
                f"`{name}` must be a number for each position, (batch, length) = {tuple(shape)}, got "
                f"{tuple(value.shape)} of {value.dtype}."
            )
        value = value.to(device, torch.promote_types(value.dtype, torch.float32))
        if attention_mask is not None:
            value = torch.where(attention_mask[:, -shape[1] :].to(device).bool(), value, 1.0)
        if has_readable_values(value) and not (valid := (value > 0) & torch.isfinite(value)).all():
            row, position = (~valid).nonzero()[0].tolist()
            raise ValueError(
                f"`{name}` must be positive and finite, got {value[row, position].item()} in row {row} at position "
                f"{position}: give 1 where the time to the position before is not known."
            )
        checked[name] = value
    return checked


def has_holes(mask: Tensor) -> bool:
    """Whether a row of a mask `(B, L)` has padding between tokens."""
    # Along a row without holes the mask rises and falls at most once.
    return bool((nn.functional.pad(mask.int(), (1, 1)).diff(dim=1).abs().sum(dim=1) > 2).any())


def check_without_holes(mask: Tensor | None) -> None:
    """Raise `ValueError` for padding between tokens, where they are read at their own positions; on a CPU."""
    if mask is not None and has_readable_values(mask) and has_holes(mask):
        raise ValueError("`attention_mask` has padding between tokens: pad on one side, or leave these positions out.")


__all__ = [
    "check_extra_arguments",
    "check_extra_inputs",
    "check_ids",
    "check_is_tensor",
    "check_labels",
    "check_length",
    "check_mask",
    "check_whole_numbers",
    "check_without_holes",
    "has_holes",
    "mask_of_new_positions",
    "the_input",
]
