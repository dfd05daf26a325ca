"""Hidden states of both alleles of variants.

Legend: `N` variants, `K` layers, `D` width of the hidden states.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import Record
from hf_ssm.data.variants import Variant, Windows, as_variants, windows_of
from hf_ssm.inference.embed import POOLINGS, Embedder, vector_column
from hf_ssm.inference.parts import table_of
from hf_ssm.inference.score import WindowLetters, mean_of_strands
from hf_ssm.inference.windows import groups_of
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["ALLELES", "VariantEmbedder", "embed_variants"]

ALLELES = ("ref", "alt", "delta")
"""Suffixes of the vectors: of the windows of both alleles, and alternative minus reference."""


def embed_variants(
    model: Any,
    tokenizer: Any,
    variants: Iterable[Mapping[str, Any] | Variant],
    genome: Genome | None = None,
    *,
    layers: int | str | Sequence[int | str] = -1,
    pooling: str = "mean",
    both_strands: bool = False,
    window: int = 1024,
    keep_case: bool = False,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Hidden states of the windows of both alleles of variants, and their difference.

    Args:
        model: A model of hf_ssm or transformers that reads token ids, with or without a head.
        tokenizer: Its tokenizer, a fast one of transformers.
        variants: Rows with `chrom`, `pos` (1-based), `ref`, `alt`, or with `ref_sequence` and `alt_sequence`; or
            `hf_ssm.data.variants.read_variants(path)`.
        genome: The reference, `hf_ssm.data.genome.Genome(path)`; not needed for sequences.
        layers: As for `embed`.
        pooling: As for `embed`, but not "token". The "center" is the first letter, in either case, at which both
            windows differ.
        both_strands: Average the vectors of both strands. On the reverse strand, the windows begin with the bases on
            the other side of the variant.
        window: Bases of a window, default 1024, half of them before the variant. Both windows of a variant have the
            same length, also for insertions and deletions.
        keep_case: Whether lower-case letters, such as soft-masked repeats of a genome, are kept. By default they are
            read as capitals.
        max_tokens_per_batch: As for `embed`.

    Returns:
        A Dataset with one row for each variant in their order: its columns, `embedding_ref`, `embedding_alt` and
        `embedding_delta`, D numbers each (with several layers `embedding_<layer>_ref` and so on), and `reason`, why the
        variant has no vectors, which are then NaN ("" if it has vectors). A strand has no vectors if more than half of
        the letters of a window are ambiguous (N) or unknown to the tokenizer; such a strand is left out of the mean.

    Raises:
        ValueError: As for `embed`; a variant has a position, but there is no `genome`; or a column has the name of a
            result.
    """
    embedder = VariantEmbedder(
        model,
        tokenizer,
        genome,
        layers=layers,
        pooling=pooling,
        both_strands=both_strands,
        window=window,
        keep_case=keep_case,
        max_tokens_per_batch=max_tokens_per_batch,
    )
    return table_of(embedder.groups(as_variants(variants)), embedder.table_of_groups, part_size=1)


class VariantEmbedder:
    """Computes tables of embeddings of variants.

    Args:
        model, tokenizer, genome, layers, pooling, both_strands, window, keep_case, max_tokens_per_batch: As for
            `embed_variants`.

    Attributes:
        names: Columns of the vectors, three for each layer.

    Raises:
        ValueError: As for `embed_variants`, as far as it concerns the arguments.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        genome: Genome | None = None,
        *,
        pooling: str = "mean",
        both_strands: bool = False,
        window: int = 1024,
        keep_case: bool = False,
        **options: Any,
    ):
        check_choice("pooling", pooling, POOLINGS)
        if pooling == "token":
            raise ValueError(
                "`pooling`='token' is not possible for variants, as the alleles may have different tokens: give "
                "another pooling."
            )
        if window < 2:
            raise ValueError(f"`window`={window}: give at least two bases.")
        self._embedder = Embedder(model, tokenizer, pooling=pooling, **options)
        self._letters = WindowLetters(self._embedder.reader, keep_case)
        self._genome, self._both_strands = genome, both_strands
        self._window, self._left, self._right = window, window // 2, window - window // 2
        self.names = [f"{name}_{allele}" for name in self._embedder.names for allele in ALLELES]

    def groups(self, variants: Iterable[Variant]) -> Iterator[list[Variant]]:
        """Consecutive variants that are embedded together and form a part of the output."""
        return groups_of(variants, lambda variant: 4 * self._window)

    def table_of_groups(self, groups: Iterable[list[Variant]]) -> pa.Table:
        """The table of the variants of several groups."""
        return pa.concat_tables([self.table(group) for group in groups], promote_options="permissive")

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise `ValueError` if a column of the variants has the name of a result."""
        if taken := [name for name in names if name in (*self.names, "reason")]:
            raise ValueError(
                f"the variants have a column {taken[0]!r}, but the table of embeddings needs this name: rename the "
                "column."
            )

    def table(self, variants: Sequence[Variant]) -> pa.Table:
        """The columns, the vectors and the reasons of variants."""
        names = dict.fromkeys(name for variant in variants for name in variant.columns)
        self.check_columns(names)
        windows = [windows_of(variant, self._genome, self._left, self._right) for variant in variants]
        reasons = [window if isinstance(window, str) else "" for window in windows]
        numbers = [number for number, window in enumerate(windows) if isinstance(window, Windows)]
        usable = [window for window in windows if isinstance(window, Windows)]
        width, dtype = self._embedder.width, torch.empty(0, dtype=self._embedder.dtype).numpy().dtype
        vectors = np.full((len(variants), 2, len(self._embedder.names), width), np.nan, dtype)
        if usable:
            wheres = [variants[number].where for number in numbers]
            strands = [[pair.forward for pair in usable]] + [[pair.reverse for pair in usable]] * self._both_strands
            with evaluating(self._embedder.reader.model):
                results = [self._strand(pairs, wheres) for pairs in strands]
            vectors[numbers] = mean_of_strands([of_strand for of_strand, _ in results])
            for number, faults in zip(numbers, zip(*(faults for _, faults in results), strict=True), strict=True):
                reasons[number] = faults[0] if all(faults) else ""
        columns: dict[str, Any] = {name: [variant.columns.get(name) for variant in variants] for name in names}
        of_alleles = [vectors[:, 0], vectors[:, 1], vectors[:, 1] - vectors[:, 0]]
        flat = np.stack(of_alleles, 2).reshape(len(variants), len(self.names), width)
        columns |= {name: vector_column(torch.from_numpy(flat[:, k])) for k, name in enumerate(self.names)}
        return pa.table(columns | {"reason": pa.array(reasons, pa.string())})

    def _strand(self, pairs: Sequence[tuple[str, str]], wheres: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """The vectors of both windows of one strand, `(N, 2, K, D)`, and why they are NaN ("" if they are not)."""
        reader = self._embedder.reader
        records = [
            Record(self._letters.read(sequence), where, is_window=True)
            for pair, where in zip(pairs, wheres, strict=True)
            for sequence in pair
        ]
        encoded = reader.encode(records, refuse_unknown=False)
        faults = [
            self._letters.fault(reader.unknown_letters(record, text))
            for record, text in zip(records, encoded, strict=True)
        ]
        of_pairs = [first or second for first, second in zip(faults[::2], faults[1::2], strict=True)]
        chosen = [row for row in range(len(records)) if not of_pairs[row // 2]]
        letters = [record.sequence.upper() for record in records]
        centers = [_first_difference(letters[row - row % 2 :][:2]) for row in chosen]
        vectors = np.full((len(records), len(self._embedder.names), self._embedder.width), np.nan)
        if chosen:
            found = self._embedder.strand([records[row] for row in chosen], [encoded[row] for row in chosen], centers)
            vectors[chosen] = torch.cat(found).numpy()
        return vectors.reshape(len(pairs), 2, *vectors.shape[1:]), of_pairs


def _first_difference(pair: Sequence[str]) -> int:
    """The first letter at which two windows differ; for equal windows, the letter in the middle."""
    differing = (number for number, letters in enumerate(zip(*pair, strict=True)) if letters[0] != letters[1])
    return next(differing, len(pair[0]) // 2)
