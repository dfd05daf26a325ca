"""Labels of tokens: one class for each token of a text, and none for the special tokens around them."""

from typing import Any

from datasets import DatasetDict, Features, List, Value
from transformers import PreTrainedTokenizerBase

from hf_ssm.data.labels import IGNORED_LABEL


def align_labels(data: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None) -> DatasetDict:
    """Give each token its label: -100 to special tokens, and to the others the labels of the row in their order.

    An unknown letter is a token with a label like any other.

    Args:
        data: `input_ids` and `labels` per split, as `tokenize` gives them; `labels` are lists.
        tokenizer: The tokenizer that made the ids.
        max_length: The limit that rows were cut to; None means the tokenizer's `model_max_length`, as for `tokenize`.
            The labels of such a row are cut as well, on the side where the tokenizer cuts.

    Returns:
        The splits with `labels` as long as `input_ids`.

    Raises:
        ValueError: A row has not one label for each token that is not special.
    """

    limit = tokenizer.model_max_length if max_length is None else max_length
    # transformers counts the unknown token among the special ones, though it stands for a letter.
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}

    def align(row: dict[str, Any], index: int, name: str) -> dict[str, Any]:
        ids, labels = row["input_ids"], row["labels"]
        special = [token in special_ids for token in ids]
        plain = len(ids) - sum(special)
        was_cut = len(ids) == limit
        if len(labels) < plain or (len(labels) > plain and not was_cut):
            raise ValueError(
                f"split {name!r}, row {index + 1}: {len(labels)} labels for {plain} tokens; give one for each, or take "
                "a tokenizer that makes one token of each letter (dna, byte)."
            )
        given = iter(labels[len(labels) - plain :] if tokenizer.truncation_side == "left" else labels)
        return {"labels": [IGNORED_LABEL if mark else next(given) for mark in special]}

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
