"""Hidden states of sequences as a table, for any model of hf_ssm or transformers.

Legend: `B` texts of a batch, `L` tokens of a text, `T` those without special tokens, `K` chosen layers, `D` width of
the hidden states (twice the hidden size for models that are equivariant to the reverse complement).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.records import Record, as_records, check_dna
from hf_ssm.inference.layers import Layers
from hf_ssm.inference.model import Encoded, SequenceModel, check_strands, other_strand
from hf_ssm.inference.table_job import TableJob, check_new_columns, with_input_columns
from hf_ssm.inference.windows import GENOME_SPAN, Windows
from hf_ssm.probes.reading import check_choice

__all__ = ["POOLINGS", "Embedder", "embed", "vector_column"]

POOLINGS = ("mean", "max", "first", "last", "center", "token")
# Bytes of the vectors of a letter above which fewer letters form a part of the output.
_BYTES_PER_LETTER = 256


def embed(
    model: Any,
    tokenizer: Any,
    inputs: Iterable[Any],
    *,
    layers: int | str | Sequence[int | str] = -1,
    pooling: str = "mean",
    both_strands: bool = False,
    window: int | None = None,
    stride: int | None = None,
    sequence_column: str = "sequence",
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Hidden states of sequences.

    Args:
        model: A model of hf_ssm or transformers that reads token ids, with or without a head.
        tokenizer: Its tokenizer, a fast one of transformers.
        inputs: Texts, mappings with the column of the sequences, or a `datasets.Dataset`.
        layers: Numbers in the `hidden_states` of the model: 0 is the embedding, -1 (default) the last layer; "all",
            "last", or "middle" (number n // 2 of n layers); or names of modules, as in `model.named_modules()`, whose
            outputs have one vector for each token.
        pooling: "mean" or "max" over the tokens of a sequence, its "first" or "last" token, the token of the letter in
            its "center" (number n // 2 of n, from 0), or one row for each "token"; special tokens that the tokenizer
            adds are left out.
        both_strands: Average the vectors of the DNA sequence and of its reverse complement; with "token" and "center",
            the two vectors of the same letters.
        window: Cut each sequence into windows of this number of letters, one row for each window; the last window may
            be shorter.
        stride: Letters from the start of a window to the start of the next window, default `window`.
        sequence_column: The column of the sequences.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384. Only sequences with the same number of
            tokens are read together, so that a result does not depend on the other sequences.

    Returns:
        The columns of the inputs without the sequences, and `embedding`, a list of D numbers (float32; float64 for a
        model in float64), or `embedding_<number or name>` for each of several layers. If one sequence gives several
        rows: also `record`, the number of the sequence from 0. With windows: `start` and `end`, the letters of the
        window (0-based; `end` is the letter after the last one). With "token": `token_start` and `token_end`, the
        letters of the token in the sequence. Windows and tokens of intervals of a genome also have `genome_start` and
        `genome_end`, the same letters in the contig.

    Raises:
        TypeError: `inputs` is not an iterable of sequences.
        ValueError: A wrong argument or input, a sequence that is longer than the model takes, hidden states that are
            not finite, tokens of both strands that have different letters.
    """
    reader = SequenceModel(model, tokenizer, max_tokens_per_batch)
    options: dict[str, Any] = {"layers": layers, "pooling": pooling, "both_strands": both_strands}
    embedder = Embedder(reader, window=window, stride=stride, **options)
    return embedder.job(lambda: as_records(inputs, sequence_column)).dataset()


class Embedder:
    """Computes tables of embeddings.

    Args:
        model: The model, with or without a head, and its tokenizer.
        layers, pooling, both_strands, window, stride: As for `embed`.

    Attributes:
        model: The model without its head.
        names: Columns of the vectors, one for each layer.
        width: D.
        dtype: Of the vectors: float64 for a model in float64, otherwise float32.

    Raises:
        ValueError: As for `embed`, as far as it concerns the arguments.
    """

    def __init__(
        self,
        model: SequenceModel,
        *,
        layers: int | str | Sequence[int | str] = -1,
        pooling: str = "mean",
        both_strands: bool = False,
        window: int | None = None,
        stride: int | None = None,
    ):
        check_choice("pooling", pooling, POOLINGS)
        # The head, such as the logits of a large vocabulary, is not computed.
        self.model = model.with_model(getattr(model.model, "base_model", model.model))
        windows = Windows(self.model, window, stride)
        self._windows = None if window is None else windows
        self._pooling, self._of_tokens, self._both_strands = pooling, pooling == "token", both_strands
        self._layers = Layers(self.model, layers, getattr(model.model, "base_model_prefix", ""))
        layer_names = self._layers.names
        self.names = ["embedding"] if len(layer_names) == 1 else [f"embedding_{name}" for name in layer_names]
        self.width = self._layers.width
        self.dtype = torch.float64 if self._layers.dtype == torch.float64 else torch.float32
        bytes_per_token = 4 * self.width * len(layer_names)
        self._weight = math.ceil(bytes_per_token / _BYTES_PER_LETTER) if self._of_tokens else 1

    def job(self, read: Callable[[], Iterable[Record]], total: int | None = None) -> TableJob[Record]:
        """The table of sequences or windows; `total` as of `TableJob`."""
        size = self._weight
        return TableJob(
            lambda: self._cut(read()),
            self.table,
            self.model.model,
            lambda record: len(record.sequence) * size,
            "letter",
            None if total is None else total * size,
        )

    def _cut(self, records: Iterable[Record]) -> Iterator[Record]:
        for number, record in enumerate(records):
            if self._windows is None:
                yield _extended(record, {"record": number}) if self._of_tokens else record
                continue
            for window in self._windows.of(number, record):
                columns = {"record": number, "start": window.start, "end": window.stop}
                if record.place is not None and not self._of_tokens:
                    columns |= dict(zip(GENOME_SPAN, record.place.interval(window.start, window.stop), strict=True))
                yield _extended(window.cut(), columns)

    def table(self, records: Sequence[Record]) -> pa.Table:
        """The table of some sequences; within `evaluating`."""
        encoded, vectors = self._vectors(records)
        columns: dict[str, Tensor] = {}
        if self._of_tokens:
            letters = torch.cat([self._letters(*pair) for pair in zip(records, encoded, strict=True)])
            columns |= {"token_start": letters[:, 0], "token_end": letters[:, 1]}
            places = [record.place for record, rows in zip(records, vectors, strict=True) for _ in rows]
            if None not in places:
                pairs = zip(places, letters.tolist(), strict=True)
                spans = torch.tensor([place.interval(*span) for place, span in pairs if place is not None])
                columns |= dict(zip(GENOME_SPAN, spans.unbind(1), strict=True))
        columns |= dict(zip(self.names, torch.cat(vectors).unbind(1), strict=True))
        results = {name: vector_column(values) for name, values in columns.items()}
        return with_input_columns(records, [len(rows) for rows in vectors], results)

    def _letters(self, record: Record, encoded: Encoded) -> Tensor:
        """Letters of each token in the whole sequence, `(T, 2)`."""
        return encoded.spans + (0 if self._windows is None else record.columns["start"])

    def _vectors(self, records: Sequence[Record]) -> tuple[list[Encoded], list[Tensor]]:
        """The tokens of each sequence, and its vectors: `(1, K, D)`, or `(T, K, D)` with one for each token."""
        for record in records if self._both_strands else ():
            check_dna(record)
        centers = [len(record.sequence) // 2 for record in records]
        encoded = self.model.encode(records)
        vectors = self.strand(records, encoded, centers)
        if not self._both_strands:
            return encoded, vectors
        opposite = [len(record.sequence) - 1 - center for record, center in zip(records, centers, strict=True)]
        other_records = other_strand(records)
        others = self.model.encode(other_records)
        other_vectors = self.strand(other_records, others, opposite)
        if self._of_tokens:
            for record, one, other in zip(records, encoded, others, strict=True):
                check_strands(record, one.spans, other.spans)
            other_vectors = [rows.flip(0) for rows in other_vectors]
        return encoded, [(one + other) / 2 for one, other in zip(vectors, other_vectors, strict=True)]

    def strand(self, records: Sequence[Record], encoded: Sequence[Encoded], centers: Sequence[int]) -> list[Tensor]:
        """The vectors of each sequence on one strand; within `evaluating`.

        Args:
            records: The sequences.
            encoded: Their tokens.
            centers: The letter of each sequence whose token the pooling "center" takes.
        """
        vectors: list[Tensor] = [torch.empty(0)] * len(records)
        for rows, states in self._batches(encoded):
            for place, row in enumerate(rows):
                kept = (~encoded[row].special).to(states[0].device)
                picked = torch.stack([state[place][kept] for state in states], 1)
                vectors[row] = self._pooled(picked.to(self.dtype), encoded[row], centers[row]).cpu()
                if not vectors[row].isfinite().all():
                    raise ValueError(
                        f"{records[row].where}: the hidden states are not finite, because the weights hold NaN, or "
                        f"the precision of the model ({states[0].dtype}) is too low."
                    )
        return vectors

    def _pooled(self, states: Tensor, encoded: Encoded, center: int) -> Tensor:
        """`(1, K, D)`, or `(T, K, D)` for each token, from `(T, K, D)`."""
        if self._pooling == "token":
            return states
        if self._pooling in ("mean", "max"):
            return states.mean(0, keepdim=True) if self._pooling == "mean" else states.amax(0, keepdim=True)
        if self._pooling == "center":
            ends = encoded.spans[:, 1].contiguous()
            # The token that has the letter; where none has it, such as white space, the next one.
            number = min(int(torch.searchsorted(ends, center, right=True)), len(states) - 1)
        else:
            number = 0 if self._pooling == "first" else len(states) - 1
        return states[number : number + 1]

    def _batches(self, encoded: Sequence[Encoded]) -> Iterator[tuple[list[int], list[Tensor]]]:
        """Numbers of the texts of a batch, and their hidden states in each layer."""
        # Texts of a batch have one length: in float32, padding changes the rounding of FFTs and of attention by several
        # units in the sixth digit, and models without a mask would read it.
        by_length: dict[int, list[int]] = {}
        for row, text in enumerate(encoded):
            by_length.setdefault(len(text.ids), []).append(row)
        with self._layers.recording():
            for rows in by_length.values():
                for batch in self.model.run([encoded[row] for row in rows], output_hidden_states=True):
                    yield [rows[row] for row in batch.rows], self._layers.states(batch)


def _extended(record: Record, columns: dict[str, Any]) -> Record:
    check_new_columns(record.columns, columns, record.where)
    return replace(record, columns=record.columns | columns)


def vector_column(values: Tensor) -> pa.Array:
    """A column of numbers `(N,)`, or of lists of one length `(N, D)`."""
    if values.dim() == 1:
        return pa.array(values.numpy())
    return pa.FixedSizeListArray.from_arrays(pa.array(values.flatten().numpy()), values.shape[1])
