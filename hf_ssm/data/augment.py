"""Augmentation of DNA: the other strand of a sequence says the same."""

from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_ssm.data.checks import check_column

_COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}


def with_random_reverse_complement(
    tokens: Dataset, tokenizer: PreTrainedTokenizerBase, probability: float = 0.5
) -> Dataset:
    """Replace rows by their reverse complement, drawn anew (from torch's generator) each time a row is read.

    Bases are reversed and complemented; special tokens stay where they are. For tasks whose answer does not depend
    on the strand; promoters and splice sites do.

    Args:
        tokens: Rows with `input_ids`, such as a split of `tokenize`. Other columns are left alone.
        tokenizer: A single-nucleotide tokenizer.
        probability: Of the other strand, in [0, 1].

    Returns:
        The same rows with the transform; nothing is computed yet.

    Raises:
        ValueError: The tokenizer does not give one token to each of A, C, G, T and N, there are no `input_ids`, or the
            probability is out of range.
    """
    check_column("tokens", "input_ids", tokens.column_names, "the data set")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability!r}: give a number from 0 to 1.")
    ids: dict[str, Any] = {base: tokenizer.convert_tokens_to_ids(base) for base in _COMPLEMENT}
    unknown = [base for base, token in ids.items() if token is None or token == tokenizer.unk_token_id]
    if unknown:
        raise ValueError(
            f"tokenizer: it has no token for the bases {', '.join(unknown)}; the reverse complement needs a "
            "single-nucleotide tokenizer, such as build_dna_tokenizer()."
        )
    other = {ids[base]: ids[complement] for base, complement in _COMPLEMENT.items()}

    def turn(row: list[int]) -> list[int]:
        strand = iter([other[token] for token in reversed(row) if token in other])
        return [next(strand) if token in other else token for token in row]

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        drawn = torch.rand(len(batch["input_ids"])) < probability
        rows = [turn(row) if flip else row for row, flip in zip(batch["input_ids"], drawn.tolist(), strict=True)]
        return {**batch, "input_ids": rows}

    return tokens.with_transform(transform)
