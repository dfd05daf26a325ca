"""Tokenization of data sets for the collators of transformers."""

import logging
from typing import Any

import torch
from datasets import Dataset, DatasetDict, Features, List, Value
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from hf_ssm.data.checks import check_column, check_integer
from hf_ssm.data.labels import IGNORED_LABEL

logger = logging.getLogger(__name__)

_NO_LIMIT = 10**12  # transformers represents "no limit" by int(1e30)
_MANY_UNKNOWN = 0.1
_LENGTH, _UNKNOWN, _CUT = "__length__", "__unknown__", "__cut__"
_ROWS = 32  # per batch; a tokenizer needs hundreds of bytes per token of a batch


def tokenize(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    sequence_column: str = "sequence",
    label_column: str | None = "label",
    max_length: int | None = None,
    pair_column: str | None = None,
    *,
    separate: bool = False,
) -> DatasetDict:
    """Replace sequences, or pairs of texts, by token ids, without padding.

    Collators such as `DataCollatorWithPadding(tokenizer)` pad each batch. Warnings give the number of truncated rows
    per split, and splits of which more than a tenth of the tokens is unknown to the tokenizer.

    Args:
        data: The splits, such as those of `load_sequences`.
        tokenizer: The tokenizer.
        sequence_column: Column of the sequences.
        label_column: Column of the labels, renamed to `labels`. None for language modelling, where the collator makes
            the labels.
        max_length: Longest row in tokens, including special tokens. None (the default) means the tokenizer's
            `model_max_length`. Of a pair in one row, the longer text is truncated first.
        pair_column: Column of the second text of each row, or None.
        separate: Whether the texts of a pair are tokenized separately, for a model that encodes each by itself
            (`PairCollator` makes its batches); `max_length` is then that of each text.

    Returns:
        The splits with the columns `input_ids` (of separate texts two lists in each row) and, if `label_column` is
        given, `labels`.

    Raises:
        ValueError: A column is missing, `pair_column` equals `sequence_column`, `max_length` is not positive, a
            sequence has no token, or `separate` without `pair_column`.
    """
    if separate and pair_column is None:
        raise ValueError("separate=True is for pairs of texts: give pair_column, the column of the second text.")
    if max_length is not None:
        check_integer("max_length", max_length, 1)
    if pair_column == sequence_column:
        raise ValueError(f"pair_column={pair_column!r} equals sequence_column; give the column of the second text.")
    limit = tokenizer.model_max_length if max_length is None else max_length
    texts = {"sequence_column": sequence_column, **({} if pair_column is None else {"pair_column": pair_column})}
    return DatasetDict(
        {
            name: _tokenize_split(split, name, tokenizer, texts, label_column, limit, separate)
            for name, split in data.items()
        }
    )


class PairCollator:
    """Pads pairs that were tokenized with `separate=True`, all texts of a batch to the same length.

    Args:
        tokenizer: The tokenizer, which knows the padding and its side.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` `(B, 2, L)`, and `labels` `(B,)` if the rows have them."""
        padded = self._pad([{"input_ids": ids} for row in rows for ids in row["input_ids"]])
        batch = {name: padded[name].unflatten(0, (-1, 2)) for name in ("input_ids", "attention_mask")}
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        return batch


def _tokenize_split(
    split: Dataset,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    text_columns: dict[str, str],
    label_column: str | None,
    limit: int,
    separate: bool,
) -> Dataset:
    source, columns = f"split {name!r}", list(text_columns.values())
    needed = {**text_columns, **({} if label_column is None else {"label_column": label_column})}
    for argument, column in needed.items():
        check_column(argument, column, split.column_names, source)
    # The counts are columns, because `map` does not call the function when it loads its result from the cache.
    tokens = split.select_columns(list(needed.values())).map(
        _encode_separately if separate else _encode,
        batched=True,
        batch_size=_ROWS,
        remove_columns=columns,
        fn_kwargs={"tokenizer": tokenizer, "columns": columns, "limit": limit},
        desc=f"Tokenizing {name}",
    )
    _report(tokens, source, columns[0], limit)
    tokens = tokens.remove_columns([_LENGTH, _UNKNOWN, _CUT])
    if label_column is not None and label_column != "labels":
        tokens = tokens.rename_column(label_column, "labels")
    return tokens


def _encode(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, columns: list[str], limit: int
) -> dict[str, list[Any]]:
    """Token ids of a batch; per row also their number, the number of unknown ones, and whether it was truncated."""
    texts = [batch[column] for column in columns]
    # verbose=False suppresses the warning for rows over the limit, which are truncated next.
    ids = tokenizer(*texts, return_attention_mask=False, verbose=False)["input_ids"]
    cut = [len(row) > limit and limit < _NO_LIMIT for row in ids]
    for index in [index for index, too_long in enumerate(cut) if too_long]:
        # Truncation by the tokenizer keeps the special token at the end of the sequence.
        row = [column[index] for column in texts]
        ids[index] = tokenizer(*row, truncation=True, max_length=limit, return_attention_mask=False)["input_ids"]
    unknown = [row.count(tokenizer.unk_token_id) for row in ids]
    return {"input_ids": ids, _LENGTH: [len(row) for row in ids], _UNKNOWN: unknown, _CUT: cut}


def _encode_separately(
    batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase, columns: list[str], limit: int
) -> dict[str, list[Any]]:
    """As `_encode`, for each text by itself; the counts are sums, but the length is 0 if a text has no token."""
    encoded = [_encode({column: batch[column]}, tokenizer, [column], limit) for column in columns]
    counts = {name: [of_text[name] for of_text in encoded] for name in (_LENGTH, _UNKNOWN, _CUT)}
    return {
        "input_ids": [list(pair) for pair in zip(*(of_text["input_ids"] for of_text in encoded), strict=True)],
        _LENGTH: [sum(pair) if all(pair) else 0 for pair in zip(*counts[_LENGTH], strict=True)],
        _UNKNOWN: [sum(pair) for pair in zip(*counts[_UNKNOWN], strict=True)],
        _CUT: [any(pair) for pair in zip(*counts[_CUT], strict=True)],
    }


def _report(tokens: Dataset, source: str, sequence_column: str, limit: int) -> None:
    """Raise for rows without tokens; warn of truncated rows and unknown tokens."""
    lengths = list(tokens[_LENGTH])
    empty = [row for row, length in enumerate(lengths, start=1) if length == 0]
    if empty:
        raise ValueError(
            f"sequence_column={sequence_column!r}: {len(empty)} sequences of {source} have no token (first: row "
            f"{empty[0]}); remove these rows."
        )
    cut, unknown = sum(tokens[_CUT]), sum(tokens[_UNKNOWN])
    if cut:
        logger.warning("%s: truncated %d of %d sequences to %d tokens.", source, cut, len(lengths), limit)
    if unknown > _MANY_UNKNOWN * sum(lengths):
        logger.warning(
            "%s: %d of %d tokens are unknown to the tokenizer; check that it fits the data.",
            source,
            unknown,
            sum(lengths),
        )


def align_labels(data: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> DatasetDict:
    """Align per-character labels with tokens: -100 for special tokens, the labels in order for all others.

    An unknown character is a token with a label.

    Args:
        data: Splits with `input_ids` and lists `labels`, as returned by `tokenize`.
        tokenizer: The tokenizer of `input_ids`.
        max_length: The `max_length` of `tokenize`; None means the tokenizer's `model_max_length`. Labels of truncated
            rows are truncated on the tokenizer's truncation side.

    Returns:
        The splits with `labels` of the same length as `input_ids`.

    Raises:
        ValueError: A row does not have one label per non-special token.
    """
    limit = tokenizer.model_max_length if max_length is None else max_length
    # transformers counts the unknown token among the special tokens, but it stands for a character.
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def align(row: dict[str, Any], index: int, name: str) -> dict[str, Any]:
        ids, labels = row["input_ids"], row["labels"]
        special = [token in special_ids for token in ids]
        plain = len(ids) - sum(special)
        if len(labels) < plain or (len(labels) > plain and len(ids) != limit):
            raise ValueError(
                f"split {name!r}, row {index + 1}: {len(labels)} labels for {plain} tokens; give one label per token, "
                "and use a tokenizer with one token per character (dna, byte)."
            )
        remaining = iter(labels[len(labels) - plain :] if tokenizer.truncation_side == "left" else labels)
        return {"labels": [IGNORED_LABEL if mark else next(remaining) for mark in special]}

    return DatasetDict(
        {
            name: split.map(
                align,
                with_indices=True,
                fn_kwargs={"name": name},
                features=Features({**split.features, "labels": List(Value("int64"))}),
                load_from_cache_file=False,
                desc=f"Aligning labels of {name}",
            )
            for name, split in data.items()
        }
    )
