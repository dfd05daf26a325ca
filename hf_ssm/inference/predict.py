"""Predictions of classifiers for sequences, windows of them, and tokens, for models of hf_ssm and transformers.

Legend: `B` texts of a batch, `L` tokens of a text, `T` those without special tokens, `K` classes or values.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.records import Record, as_records, check_dna, unknown_share
from hf_ssm.data.regions import Regions
from hf_ssm.inference.model import (
    MOST_UNKNOWN,
    SequenceModel,
    UnknownLetters,
    check_finite,
    check_strands,
    other_strand,
)
from hf_ssm.inference.parts import table_of, with_input_columns
from hf_ssm.inference.windows import GENOME_SPAN, Window, Windows, groups_of
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["AGGREGATIONS", "Predictor", "kind_of", "letters_of", "predict"]

AGGREGATIONS = ("mean", "max")
# Columns that tell the windows of a sequence apart.
_SPAN = ("record", "start", "end")
# Kinds of scores: softmax, sigmoid, none.
_CLASSES, _LABELS, _VALUES = "classes", "labels", "values"
_OTHER_COMMANDS = {
    "causal": "a causal language model: use hf-ssm score for likelihoods, hf-ssm embed for hidden states",
    "masked": "a masked language model: use hf-ssm score for log-odds, hf-ssm embed for hidden states",
    None: "not a classifier of sequences or tokens: use hf-ssm embed for hidden states",
}

Unit = list[Window]
"""The windows whose scores are combined."""


def predict(
    model: Any,
    tokenizer: Any,
    inputs: Iterable[Any],
    *,
    window: int | None = None,
    stride: int | None = None,
    aggregate: str | None = None,
    both_strands: bool = False,
    sequence_column: str = "sequence",
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Predictions of a classifier.

    Args:
        model: A sequence or token classifier of hf_ssm or transformers that reads token ids.
        tokenizer: Its tokenizer, a fast one of transformers.
        inputs: Texts, mappings with the column of the sequences, or a `datasets.Dataset`.
        window: Cut each sequence into windows of this number of letters. By default only sequences that are longer than
            the model takes are cut, into the longest windows that it takes.
        stride: Letters from the start of a window to the start of the next window, default `window`. The last window of
            a sequence may be shorter.
        aggregate: Combine the scores of the windows of a sequence: "mean" or "max" of each column. Windows of DNA with
            mostly unknown letters, such as N, do not count: a sequence of them has no prediction. By default each
            window has a row. Tokens that lie in several windows always get the mean.
        both_strands: Average the scores of each DNA sequence, or window, and of its reverse complement; for token
            classifiers, average the scores of the same letters.
        sequence_column: The column of the sequences.
        max_tokens_per_batch: Largest number of tokens in a batch, padding included, default 16384.

    Returns:
        The columns of the inputs without the sequences, followed by

        * if a sequence has several rows: `record`, the number of the sequence from 0, `start` and `end`, the letters of
          the window or token (0-based; `end` is the letter after the last one), for intervals of a genome
          `genome_start` and `genome_end`, the same letters in the contig, and for tokens `letters`;
        * if more than half of the letters of some DNA are not bases, such as N: `unknown_letters`, the share of such
          letters in each row, because a prediction is of little use if this share is large;
        * for classes: `prediction`, the name of the class with the highest probability, and `probability_<name>` of
          each class (softmax);
        * for classes that do not exclude each other (`problem_type="multi_label_classification"`): `prediction`, the
          names of the classes with a probability of at least 0.5, joined by ";", and `probability_<name>` (sigmoid);
        * for values (`problem_type="regression"`, or one label): `prediction`, or `value_0`, `value_1`, ...,
          with the names of the values if the model has names.

        Probabilities and values are float64.

    Raises:
        TypeError: `inputs` is not an iterable of sequences.
        ValueError: A wrong argument or input, or a model that is not a classifier.
    """
    predictor = Predictor(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        window=window,
        stride=stride,
        aggregate=aggregate,
        both_strands=both_strands,
    )
    # The sequences are read twice.
    inputs = list(inputs) if isinstance(inputs, Iterator) else inputs
    predictor.survey(as_records(inputs, sequence_column))
    return table_of(predictor.groups(as_records(inputs, sequence_column)), predictor.table_of_groups, part_size=1)


@dataclass(frozen=True)
class _Scores:
    """Scores of a text.

    Attributes:
        values: `(1, K)` of the whole text, or `(T, K)` of its tokens; float64.
        letters: `(T, 2)`, first letter of each token and the one after its last; `(0, 2)` for the whole text.
    """

    values: np.ndarray
    letters: np.ndarray


class Predictor:
    """Computes tables of predictions.

    Args:
        reader: The model and its tokenizer.
        window, stride, aggregate, both_strands: As for `predict`.
        regions: Regions of a genome: windows that overlap none are left out. All sequences then need a place.

    `survey` reads all sequences before `table_of_groups` computes the tables of the groups of `groups`.

    Attributes:
        value_columns: Names of the columns of numbers in the tables.
        classes: Names of the classes in the column `prediction`; `None` for a model that predicts values.
        unknown: Count of the rows, or of the sequences of tokens, by their unknown letters, from `survey`.
        longest_window: Letters of the longest window of a sequence that `survey` found cut; `None` if none is cut.

    Raises:
        ValueError: As for `predict`, as far as it concerns the arguments.
    """

    def __init__(
        self,
        reader: SequenceModel,
        *,
        window: int | None = None,
        stride: int | None = None,
        aggregate: str | None = None,
        both_strands: bool = False,
        regions: Regions | None = None,
    ):
        if reader.head not in ("class", "tokens"):
            raise ValueError(f"{type(reader.model).__name__} is {_OTHER_COMMANDS[reader.head]}.")
        self._of_tokens = reader.head == "tokens"
        if aggregate is not None:
            check_choice("aggregate", aggregate, AGGREGATIONS)
            if self._of_tokens:
                raise ValueError(
                    f"`aggregate`={aggregate!r}: {type(reader.model).__name__} classifies tokens, and each token "
                    "has its own row: leave `aggregate` out."
                )
        self._reader, self._windows = reader, Windows(reader, window, stride)
        self._aggregate, self._both_strands, self._regions = aggregate, both_strands, regions
        # Whether the table tells several rows of a sequence apart.
        self._has_spans = self._of_tokens or (aggregate is None and window is not None)
        self.unknown = UnknownLetters(reader.reads_only_dna)
        self.longest_window: int | None = None
        config = reader.model.config
        self._kind = kind_of(config)
        names = [str(config.id2label.get(index, index)) for index in range(config.num_labels)]
        # Names that are not unique could not be columns.
        self._names = names if len(set(names)) == len(names) else [str(index) for index in range(len(names))]
        self.value_columns = self._value_columns()
        self.classes = None if self._kind == _VALUES else self._names

    def survey(self, records: Iterable[Record]) -> int:
        """The number of letters to read, on one strand; those of overlapping windows count repeatedly.

        Raises:
            ValueError: A sequence that a model of DNA reads, or that is to be read on both strands, is no DNA.
        """
        total = 0
        for number, record in enumerate(records):
            if self._both_strands:
                check_dna(record)
            self._reader.check_letters(record)
            windows = self._windows_of(number, record)
            self._has_spans |= len(windows) > 1 and self._aggregate is None
            total += letters_of(windows)
            if len(windows) > 1:
                self.longest_window = max(self.longest_window or 0, windows[0].stop - windows[0].start)
            for unit in self._units_of(windows):
                self.unknown.add(record.sequence[unit[0].start : unit[-1].stop])
        return total

    def chosen(self, prediction: str) -> list[str]:
        """The classes that a value of the column `prediction` names: one, or any number that do not exclude others."""
        return [name for name in prediction.split(";") if name] if self._kind == _LABELS else [prediction]

    def groups(self, records: Iterable[Record]) -> Iterator[list[Unit]]:
        """Consecutive units that are computed together and form a part of the output."""
        return groups_of(self._units(records), letters_of)

    def _units(self, records: Iterable[Record]) -> Iterator[Unit]:
        for number, record in enumerate(records):
            yield from self._units_of(self._windows_of(number, record))

    def _windows_of(self, number: int, record: Record) -> list[Window]:
        windows = self._windows.of(number, record)
        if self._regions is None:
            return windows
        place, regions = record.place, self._regions
        if place is None:
            raise ValueError(
                f"{record.where} has no place in a genome, but `regions` (--regions) needs places: give a BED file."
            )
        return [
            window for window in windows if regions.overlapping(place.chrom, *place.interval(window.start, window.stop))
        ]

    def _units_of(self, windows: list[Window]) -> list[Unit]:
        if not windows:
            return []
        return [windows] if self._of_tokens or self._aggregate is not None else [[window] for window in windows]

    def table_of_groups(self, groups: Iterable[list[Unit]]) -> pa.Table:
        """The table of several groups."""
        units = [unit for group in groups for unit in group]
        with evaluating(self._reader.model):
            scores = self._scores([window for unit in units for window in unit])
            combined = [self._combined(unit, [next(scores) for _ in unit]) for unit in units]
        columns = self._spans(units, combined) if self._has_spans else {}
        if self.unknown.any_mostly:
            texts = (self._texts(*pair) for pair in zip(units, combined, strict=True))
            columns["unknown_letters"] = [unknown_share(text) for of_unit in texts for text in of_unit]
        columns |= self._columns(np.concatenate([score.values for score in combined]))
        counts = [len(score.values) for score in combined]
        return with_input_columns([unit[0].record for unit in units], counts, columns)

    def _spans(self, units: Sequence[Unit], combined: Sequence[_Scores]) -> dict[str, Any]:
        """Number of the sequence and letters of each row."""
        rows: list[tuple[Record, int, int, int]]
        if self._of_tokens:
            rows = [
                (unit[0].record, unit[0].number, start, stop)
                for unit, score in zip(units, combined, strict=True)
                for start, stop in score.letters.tolist()
            ]
        else:
            rows = [(unit[0].record, unit[0].number, unit[0].start, unit[0].stop) for unit in units]
        columns: dict[str, Any] = dict(zip(_SPAN, zip(*(row[1:] for row in rows), strict=True), strict=True))
        if all(record.place is not None for record, *_ in rows):
            places = [record.place.interval(start, stop) for record, _, start, stop in rows if record.place]
            columns |= dict(zip(GENOME_SPAN, zip(*places, strict=True), strict=True))
        if self._of_tokens:
            columns["letters"] = [record.sequence[start:stop] for record, _, start, stop in rows]
        return columns

    def _texts(self, unit: Unit, combined: _Scores) -> list[str]:
        """The letters of each row of a unit."""
        sequence = unit[0].record.sequence
        spans = combined.letters.tolist() if self._of_tokens else [(unit[0].start, unit[-1].stop)]
        return [sequence[start:stop] for start, stop in spans]

    def _columns(self, values: np.ndarray) -> dict[str, Any]:
        """The scores `(rows, K)` as columns."""
        columns: dict[str, Any] = {
            name: pa.array(of_name, from_pandas=True)
            for name, of_name in zip(self.value_columns, values.T, strict=True)
        }
        if self._kind == _VALUES:
            return columns
        if self._kind == _LABELS:
            chosen = [";".join(np.array(self._names)[row]) for row in values >= 0.5]
        else:
            chosen = [self._names[best] for best in values.argmax(1)]
        has_none = np.isnan(values).any(1)
        return {"prediction": pa.array(chosen, pa.string(), mask=has_none), **columns}

    def _value_columns(self) -> list[str]:
        if self._kind != _VALUES:
            return [f"probability_{name}" for name in self._names]
        named = [str(index) if name == f"LABEL_{index}" else name for index, name in enumerate(self._names)]
        return ["prediction"] if len(named) == 1 else [f"value_{name}" for name in named]

    def _combined(self, unit: Unit, scores: Sequence[_Scores]) -> _Scores:
        """The scores of the windows of a unit as one."""
        values = np.concatenate([score.values for score in scores])
        if self._aggregate is not None:
            sequence, is_dna = unit[0].record.sequence, self.unknown.is_dna
            known = [not is_dna or unknown_share(sequence[each.start : each.stop]) <= MOST_UNKNOWN for each in unit]
            values = values[known] if any(known) else np.full_like(values[:1], np.nan)
            combined = values.max(0) if self._aggregate == "max" else values.mean(0)
            return _Scores(combined[None], scores[0].letters)
        if not self._of_tokens:
            return scores[0]
        letters = np.concatenate([score.letters + window.start for window, score in zip(unit, scores, strict=True)])
        if len(unit) == 1:
            return _Scores(values, letters)
        ranks = np.concatenate([_ranks(score.letters) for score in scores])
        tokens, row = np.unique(np.column_stack([letters, ranks]), axis=0, return_inverse=True)
        row = row.reshape(-1)
        sums = np.zeros((len(tokens), values.shape[1]))
        np.add.at(sums, row, values)
        return _Scores(sums / np.bincount(row)[:, None], tokens[:, :2])

    def _scores(self, windows: Sequence[Window]) -> Iterator[_Scores]:
        """The scores of each window, of both strands if asked."""
        for group in groups_of(windows, lambda window: window.stop - window.start):
            records = [window.cut() for window in group]
            scores = self._strand(records)
            if self._both_strands:
                others = self._strand(other_strand(records))
                scores = [_averaged(*each) for each in zip(records, scores, others, strict=True)]
            yield from scores

    def _strand(self, records: Sequence[Record]) -> list[_Scores]:
        encoded = self._reader.encode(records)
        scores: list[Any] = [None] * len(records)
        for batch in self._reader.run(encoded):
            for row, logits in zip(batch.rows, batch.outputs.logits.cpu().double(), strict=True):
                text = encoded[row]
                kept = logits[: len(text.ids)][~text.special] if self._of_tokens else logits[None]
                values = self._activated(kept)
                check_finite(values, records[row].where)
                letters = text.spans if self._of_tokens else text.letters[:0]
                scores[row] = _Scores(values.numpy(), letters.numpy())
        return scores

    def _activated(self, logits: Tensor) -> Tensor:
        if self._kind == _VALUES:
            return logits
        return logits.sigmoid() if self._kind == _LABELS else logits.softmax(-1)


def letters_of(unit: Unit) -> int:
    """Number of letters of some windows."""
    return sum(window.stop - window.start for window in unit)


def kind_of(config: Any) -> str:
    """Kind of a classifier's predictions: "classes" (softmax), "labels" (sigmoid) or "values"."""
    if config.problem_type == "multi_label_classification":
        return _LABELS
    is_value = config.problem_type == "regression" or (config.problem_type is None and config.num_labels == 1)
    return _VALUES if is_value else _CLASSES


def _ranks(letters: np.ndarray) -> np.ndarray:
    """Numbers, from 0, of the tokens with the same letters `(T, 2)`, such as the bytes of one letter."""
    _, first, same = np.unique(letters, axis=0, return_index=True, return_inverse=True)
    ranks: np.ndarray = np.arange(len(letters)) - first[same.reshape(-1)]
    return ranks


def _averaged(record: Record, scores: _Scores, other: _Scores) -> _Scores:
    """The mean of the scores of a sequence and of its reverse complement."""
    check_strands(record, torch.from_numpy(scores.letters), torch.from_numpy(other.letters))
    return _Scores((scores.values + other.values[::-1]) / 2, scores.letters)
