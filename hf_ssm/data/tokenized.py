"""From sequences to the token ids that a model and the collators of transformers take."""

import logging
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from hf_ssm.data.checks import check_column

logger = logging.getLogger(__name__)

# transformers writes "no limit" as int(1e30)
_NO_LIMIT = 10**12
_MANY_UNKNOWN = 0.1
# Names that no column of labels has.
_LENGTH, _UNKNOWN, _CUT = "__length__", "__unknown__", "__cut__"
# A tokenizer holds a hundred bytes and more for each token of a batch.
_ROWS = 32


def tokenize(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    sequence_column: str = "sequence",
    label_column: str | None = "label",
    max_length: int | None = None,
    pair_column: str | None = None,
) -> DatasetDict:
    """Replace sequences, or pairs of texts, by token ids.

    Nothing is padded: a collator such as `DataCollatorWithPadding(tokenizer)` pads each batch to its longest
    row and makes the attention mask. How many rows of a split were cut to `max_length` is logged as a
    warning, and so is a split of which more than a tenth of the tokens is unknown to the tokenizer.

    Args:
        data: The splits, such as `load_sequences` gives them.
        tokenizer: The tokenizer.
        sequence_column: Column of the sequences.
        label_column: Column of the class ids, which becomes `labels`. None makes no labels: for causal and
            masked language modelling the collator makes them from the ids.
        max_length: Longest row in tokens, special tokens included. None (the default) takes the tokenizer's
            `model_max_length`, which may be no limit. Of a pair that is too long the longer text is cut, until
            both are of one length; then both are.
        pair_column: Column of the second text of each row. The tokenizer joins the two as it joins any pair: ours
            put `[SEP]` in between. None: there is no second text.

    Returns:
        The splits with the columns `input_ids` (list of int) and, if asked for, `labels`; no others.

    Raises:
        ValueError: a column is missing, `pair_column` is `sequence_column`, `max_length` is not positive, or a sequence
            gives no token.
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length={max_length!r}: give a positive number of tokens.")
    limit = tokenizer.model_max_length if max_length is None else max_length
    texts = {"sequence_column": sequence_column}
    if pair_column is not None:
        if pair_column == sequence_column:
            raise ValueError(f"pair_column={pair_column!r} is sequence_column too; name the column of the second text.")
        texts["pair_column"] = pair_column
    return DatasetDict(
        {name: _tokenize_split(split, name, tokenizer, texts, label_column, limit) for name, split in data.items()}
    )


def _tokenize_split(
    split: Dataset,
    name: str,
    tokenizer: PreTrainedTokenizerBase,
    text_columns: dict[str, str],
    label_column: str | None,
    limit: int,
) -> Dataset:
    source = f"split {name!r}"
    columns = list(text_columns.values())
    for argument, column in text_columns.items():
        check_column(argument, column, split.column_names, source)
    keep = list(columns)
    if label_column is not None:
        check_column("label_column", label_column, split.column_names, source)
        keep.append(label_column)
    # The counts travel as columns: a function that counted on the side would count nothing when `map` answers
    # from its cache.
    tokens = split.select_columns(keep).map(
        _encode,
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
    """Token ids of a batch, and per row: their number, the unknown ones, and whether the row was cut."""
    # verbose=False: transformers would warn of each row over the tokenizer's limit; we cut them next.
    texts = [batch[column] for column in columns]
    ids = tokenizer(*texts, return_attention_mask=False, verbose=False)["input_ids"]
    cut = [len(row) > limit and limit < _NO_LIMIT for row in ids]
    for index in [index for index, too_long in enumerate(cut) if too_long]:
        # The tokenizer cuts, not a slice: it keeps the special token that ends a sequence.
        row = [column[index] for column in texts]
        ids[index] = tokenizer(*row, truncation=True, max_length=limit, return_attention_mask=False)["input_ids"]
    unknown = [row.count(tokenizer.unk_token_id) for row in ids]
    return {"input_ids": ids, _LENGTH: [len(row) for row in ids], _UNKNOWN: unknown, _CUT: cut}


def _report(tokens: Dataset, source: str, sequence_column: str, limit: int) -> None:
    """Raise for rows without tokens; warn of cut rows and of unknown letters."""
    lengths = list(tokens[_LENGTH])
    empty = [row for row, length in enumerate(lengths, start=1) if length == 0]
    if empty:
        raise ValueError(
            f"sequence_column={sequence_column!r}: {len(empty)} sequences of {source} give no token (first: "
            f"row {empty[0]}); take these rows out."
        )
    cut = sum(tokens[_CUT])
    if cut:
        logger.warning("%s: cut %d of %d sequences to %d tokens.", source, cut, len(lengths), limit)
    unknown = sum(tokens[_UNKNOWN])
    if unknown > _MANY_UNKNOWN * sum(lengths):
        logger.warning(
            "%s: %d of %d tokens are unknown to the tokenizer; is it the right one for this data?",
            source,
            unknown,
            sum(lengths),
        )
