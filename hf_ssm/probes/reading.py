"""What a probe is given: sequences as texts, ids or rows of a Dataset, a target for each, and a mask.

Legend: `L` tokens of a sequence.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.models.base.backbone import SSMPreTrainedModel

__all__ = ["Mask", "check_choice", "find_mask", "is_single", "longest_input", "read_sequences", "read_targets"]

MASKS = ("mask", "n", "pad", "zero")
_TEXT_COLUMNS = ("sequence", "text")
# Vocabularies in which a slip of the pen can be looked for.
_SMALL = 2000
_LABEL_COLUMNS = ("label", "labels")


@dataclass(frozen=True)
class Mask:
    """What is put in the place of a token.

    Attributes:
        name: As it was asked for.
        token_id: Its id; `None` for a vector of zeros in the place of the embedding.
    """

    name: str
    token_id: int | None


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Raise `ValueError` with the nearest valid name."""
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(map(repr, choices))}."
    raise ValueError(f"`{argument}`={value!r} is not known: {hint}")


def find_mask(mask: Any, tokenizer: Any, vocabulary: int) -> Mask:
    """The token that masks.

    Args:
        mask: "mask", "n", "pad", "zero", another token of the tokenizer, or an id.
        tokenizer: Or `None`.
        vocabulary: Number of embeddings of the model.

    Raises:
        ValueError: The tokenizer has no such token; the model has no such embedding.
    """
    if isinstance(mask, int) and not isinstance(mask, bool):
        return Mask(str(mask), _within(mask, mask, vocabulary))
    if not isinstance(mask, str):
        raise ValueError(f"`mask`={mask!r}: give one of {', '.join(map(repr, MASKS))}, a token or its id.")
    if mask == "zero":
        return Mask(mask, None)
    if tokenizer is None:
        raise ValueError(f"`mask`={mask!r} needs a tokenizer: give `tokenizer`, the id of a token, or 'zero'.")
    known = tokenizer.get_vocab()
    named = {"mask": tokenizer.mask_token_id, "pad": tokenizer.pad_token_id, "n": known.get("N")}
    found = named[mask] if mask in named else known.get(mask)
    if found is not None:
        return Mask(mask, _within(found, mask, vocabulary))
    has = [repr(name) for name, token in named.items() if token is not None] + ["'zero'"]
    if mask in MASKS:
        raise ValueError(
            f"`mask`={mask!r}: the tokenizer has no such token; choose {', '.join(has)}, or a token of it."
        )
    near = difflib.get_close_matches(mask, [*MASKS, *known], n=1, cutoff=0.5) if len(known) < _SMALL else []
    hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(has)}, or one that is."
    raise ValueError(f"`mask`={mask!r} is no token of the tokenizer: {hint}")


def _within(token: int, mask: Any, vocabulary: int) -> int:
    if not 0 <= token < vocabulary:
        raise ValueError(f"`mask`={mask!r} has the id {token}, but the model has embeddings for 0 to {vocabulary - 1}.")
    return token


def longest_input(model: Any) -> int | None:
    """How many tokens the model takes at most; `None` where there is no limit."""
    if isinstance(model, SSMPreTrainedModel):
        return model.config.longest_input
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def is_single(inputs: Any) -> bool:
    """Whether this is one sequence: a text, or a row of ids."""
    if isinstance(inputs, str):
        return True
    if isinstance(inputs, (Tensor, np.ndarray)):
        return inputs.ndim == 1
    return isinstance(inputs, (list, tuple)) and bool(inputs) and all(_is_id(part) for part in inputs)


def _is_id(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _columns(inputs: Any) -> list[str] | None:
    """The columns of a Dataset; `None` of anything else.

    Raises:
        ValueError: These are several splits, or a single row.
    """
    columns = getattr(inputs, "column_names", None)
    if isinstance(columns, Mapping):
        raise ValueError(f"`inputs` has the splits {', '.join(map(repr, columns))}: give one of them.")
    if isinstance(inputs, Mapping):
        raise ValueError("`inputs` is a mapping: give the text, the ids, a list of them, or a Dataset.")
    return None if columns is None else list(columns)


def read_sequences(inputs: Any, tokenizer: Any, vocabulary: int, longest: int | None) -> list[Tensor]:
    """The ids of each sequence.

    Args:
        inputs: A text or a row of ids; a list of either; a Dataset with a column "input_ids", "sequence" or "text".
            With a column "attention_mask", padding is left out.
        tokenizer: Or `None`.
        vocabulary: Number of embeddings of the model.
        longest: How many tokens the model takes.

    Returns:
        `(L,)` each, int64.

    Raises:
        ValueError: Nothing; an empty sequence; one that is too long; ids that the model does not know; texts without a
            tokenizer; anything else.
    """
    columns = None if is_single(inputs) else _columns(inputs)
    if is_single(inputs):
        rows: list[Any] = [inputs]
    elif columns is not None:
        rows = _rows(inputs, columns)
    elif isinstance(inputs, (list, tuple)) or (isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == 2):
        rows = list(inputs)
    else:
        raise ValueError(f"`inputs` is a {type(inputs).__name__}: give a text, ids, a list of them, or a Dataset.")
    if not rows:
        raise ValueError("`inputs` is empty: give a sequence.")
    several = not is_single(inputs)
    return [
        _ids(row, tokenizer, vocabulary, longest, f"sequence {number}: " if several else "")
        for number, row in enumerate(rows)
    ]


def _rows(inputs: Any, columns: list[str]) -> list[Any]:
    if "input_ids" in columns and "attention_mask" in columns:
        pairs = zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        return [
            [token for token, kept in zip(np.asarray(ids).tolist(), np.asarray(mask).tolist(), strict=True) if kept]
            for ids, mask in pairs
        ]
    column = next((name for name in ("input_ids", *_TEXT_COLUMNS) if name in columns), None)
    if column is None:
        raise ValueError(
            f"`inputs` has the columns {', '.join(map(repr, columns))}: name one of them 'input_ids', 'sequence' or "
            "'text'."
        )
    return list(inputs[column])


def _ids(row: Any, tokenizer: Any, vocabulary: int, longest: int | None, where: str) -> Tensor:
    if isinstance(row, str):
        if tokenizer is None:
            raise ValueError(f"{where}a text needs a tokenizer: give `tokenizer`, or ids.")
        found = torch.tensor(tokenizer(row, verbose=False)["input_ids"], dtype=torch.int64)
    else:
        found = _tensor(row, where)
    if len(found) == 0:
        raise ValueError(f"{where}the sequence is empty: give one token at least.")
    if found.min() < 0 or found.max() >= vocabulary:
        raise ValueError(
            f"{where}ids from {found.min().item()} to {found.max().item()}, but the model has embeddings for 0 to "
            f"{vocabulary - 1}: use its own tokenizer."
        )
    if longest is not None and len(found) > longest:
        raise ValueError(f"{where}{len(found)} tokens, but the model takes {longest}: shorten the sequence.")
    return found


def _tensor(row: Any, where: str) -> Tensor:
    if isinstance(row, (list, tuple)) and all(_is_id(part) for part in row):
        return torch.tensor([int(part) for part in row], dtype=torch.int64)
    if isinstance(row, (Tensor, np.ndarray)):
        found = torch.as_tensor(row)
        integer = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
        if found.dim() == 1 and (integer or not found.numel()):
            return found.detach().to("cpu", torch.int64, copy=True)
    raise ValueError(f"{where}this is a {type(row).__name__}: a sequence is a text, or a list or tensor of token ids.")


def read_targets(target: Any, inputs: Any, count: int) -> list[Any]:
    """The target of each sequence.

    Args:
        target: One for all; a list with one for each; or the name of a column of a Dataset.
        inputs: As given to the probe.
        count: Sequences.

    Raises:
        ValueError: Another number of targets than of sequences; there is no such column.
    """
    if isinstance(target, str):
        columns = (None if is_single(inputs) else _columns(inputs)) or []
        name = next((own for own in _LABEL_COLUMNS if own in columns), target) if target == "label" else target
        if not columns:
            raise ValueError(f"`target`={target!r} is the name of a column, but `inputs` is no Dataset: give a class.")
        check_choice("target", name, columns)
        return [int(label) if _is_id(label) else label for label in inputs[name]]
    if isinstance(target, (Tensor, np.ndarray)) and target.ndim:
        target = target.tolist()
    if isinstance(target, list) and not is_single(inputs):
        if len(target) != count:
            raise ValueError(f"`target` has {len(target)} entries for {count} sequences: give one for each.")
        return target
    if isinstance(target, (np.integer, Tensor)):
        target = target.item()
    return [target] * count
