"""Augmentation of DNA by the reverse complement."""

from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_ssm.data.checks import check_column

_COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}


def with_random_reverse_complement(
    tokens: Dataset, tokenizer: PreTrainedTokenizerBase, probability: float = 0.5
) -> Dataset:
    """Replace rows randomly by their reverse complement each time they are read.

    Special tokens keep their positions. Suited to tasks whose labels do not depend on the strand, unlike promoters
    and splice sites. Random numbers come from torch's default generator.

    Args:
        tokens: Rows with `input_ids`, such as a split of `tokenize`. Other columns are unchanged.
        tokenizer: A single-nucleotide tokenizer.
        probability: Probability of the reverse complement, in [0, 1].

    Returns:
        The rows with the transform, which runs when rows are read.

    Raises:
        ValueError: The tokenizer lacks a token for A, C, G, T or N, there are no `input_ids`, or the probability is out
            of range.
    """
    check_column("tokens", "input_ids", tokens.column_names, "the data set")
    if not 0 <= probability <= 1:
        raise ValueError(f"probability={probability!r}: give a number from 0 to 1.")
    ids: dict[str, Any] = {base: tokenizer.convert_tokens_to_ids(base) for base in _COMPLEMENT}
    unknown = [base for base, token in ids.items() if token is None or token == tokenizer.unk_token_id]
    if unknown:
        raise ValueError(
            f"tokenizer: it has no token for the bases {', '.join(unknown)}; use a single-nucleotide tokenizer such as "
            "build_dna_tokenizer()."
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
