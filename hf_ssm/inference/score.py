"""Scores of variants: how much less likely, or how different, the alternative allele is to a model."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import Record
from hf_ssm.data.variants import Variant, Windows, as_variants, windows_of
from hf_ssm.inference.allele_scores import SCORES, WHY_MISSING, AlleleScores, Pair
from hf_ssm.inference.effects import Effects
from hf_ssm.inference.model import MOST_UNKNOWN, Encoded, SequenceModel
from hf_ssm.inference.parts import table_of
from hf_ssm.utils.evaluation import evaluating

__all__ = [
    "REASONS",
    "SCORES",
    "VariantScorer",
    "WindowLetters",
    "columns_of_scores",
    "mean_of_strands",
    "score_variants",
]

logger = logging.getLogger(__name__)


REASONS = {
    "reason": "why the allele has no score",
    "missing": "scores that the allele lacks beside others, and why",
}
"""Columns beside the scores, and what they are."""


def score_variants(
    model: Any,
    tokenizer: Any,
    variants: Iterable[Mapping[str, Any] | Variant],
    genome: Genome | None = None,
    *,
    scores: Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    window: int = 1024,
    horizon: int | None = None,
    shifts: Sequence[int] = (0,),
    flank: int | None = None,
    both_strands: bool = True,
    per_strand: bool = False,
    keep_case: bool = False,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Score variants without labels.

    Each variant is scored by itself, against the reference: overlapping variants do not change each other's windows.

    Scores of language models, in nats; the lower a difference, the less likely the alternative:

    - `llr` (causal models): log-likelihood of the window with the alternative minus that with the reference allele.
    - `next_token` (causal): log-probability of the first token at which both alleles differ, given the bases before it.
    - `masked_log_odds` (masked models): the same for the tokens of the variant, masked together in the window of the
      reference. Alleles of different lengths have no such score.
    - `pseudo_llr` (masked): difference of the pseudo-log-likelihoods of both windows (Salazar et al. 2020): each token
      is masked in turn, and predicted from all others. The score is exact, also for insertions and deletions, and costs
      as many passes as a window has tokens.
    - `unmasked_llr` (masked): the same sum in one pass in which nothing is masked, so that the model sees the tokens
      that it predicts.
    - `ref_<score>`, `alt_<score>`, `abs_<score>`, `mean_<score>` of `llr`, `pseudo_llr` and `unmasked_llr`: the
      log-likelihood of the window with the reference, or with the alternative allele; the absolute value of the
      difference; the difference of the means per token, which does not grow with the window.

    Other scores:

    - `embedding_distance` (any model): Euclidean distance of the mean hidden states of the last layer over both
      windows.
    - With `target`, the predictions of a classifier or a regressor: `<target>_ref`, `<target>_alt` and
      `<target>_delta`, alternative minus reference, of the probability, and `<target>_logit_ref`, ... of the logit,
      log(p / (1 - p)); for a regressor, of the value. For classifiers of tokens, these are sums over the tokens of the
      window, and `<target>_delta_max` is the largest difference at a token, with its sign, among the tokens outside of
      the alleles and those of alleles of equal length; `<target>_delta_max_offset` is the position of this token, in
      bases of the genome from the first base of the reference allele.

    Windows: on each strand, in its own direction, both windows begin with the same `window // 2` bases; the alleles and
    the bases behind them fill the other half. Both have equal lengths, also for insertions and deletions, whose windows
    end at different bases of the genome. At the ends of a contig both are shorter.

    Args:
        model: A model of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one.
        variants: Rows with `chrom`, `pos` (1-based), `ref`, `alt`, or with `ref_sequence` and `alt_sequence`; or
            `hf_ssm.data.variants.read_variants(path)`.
        genome: The reference, `hf_ssm.data.genome.Genome(path)`; not needed for sequences.
        scores: Names of scores; default: `llr` and `next_token`, or `masked_log_odds` for language models, otherwise
            `embedding_distance`.
        target: Name or number of a class or value of a classifier or regressor, several of them, or "all"; in place of
            `scores`. A value without a name is "prediction", or "value_0", "value_1", ... of several.
        window: Bases of a window, default 1024, half of them before the variant.
        horizon: Bases from the variant on; default `window - window // 2`.
        shifts: Average over windows that are moved by these numbers of bases, in the direction of each strand; default:
            not moved.
        flank: For classifiers of tokens: bases on each side of the alleles whose tokens count; default: all that both
            windows have.
        both_strands: Average over both strands, default True. A strand without a score is left out of the mean.
        per_strand: Add the columns `<score>_forward` and `<score>_reverse`.
        keep_case: Whether lower-case letters, such as soft-masked repeats of a genome, are kept. By default they are
            read as capitals.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with one row for each variant in their order: its columns, a column for each score (`None` if there is
        none), `reason`, why the variant has no score, and `missing`, which scores are missing although the variant has
        others, and why (both are "" if they do not apply). A strand has no score if the tokens of both windows are
        equal, as for a deletion at the end of a contig, or if more than half of the letters of a window are ambiguous
        (N) or unknown to the tokenizer.

    Raises:
        ValueError: A score or target is unknown or needs another model, the window is not positive or longer than the
            model takes, a variant has a position, but there is no `genome`, or a column has the name of a result.
    """
    scorer = VariantScorer(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        genome,
        scores,
        target=target,
        window=window,
        horizon=horizon,
        shifts=shifts,
        flank=flank,
        both_strands=both_strands,
        per_strand=per_strand,
        keep_case=keep_case,
    )
    with evaluating(scorer.model.model):
        return table_of(as_variants(variants), scorer.table)


class VariantScorer:
    """Computes the table of scores of a list of variants; to be used within `evaluating`.

    The arguments are those of `score_variants`.

    Attributes:
        descriptions: What each column of scores is, in their order.
        evaluated: The columns that compare both alleles, for `evaluate_scores`.
    """

    def __init__(
        self,
        model: SequenceModel,
        genome: Genome | None,
        scores: Sequence[str] | None = None,
        *,
        target: str | Sequence[str] | None = None,
        window: int = 1024,
        horizon: int | None = None,
        shifts: Sequence[int] = (0,),
        flank: int | None = None,
        both_strands: bool = True,
        per_strand: bool = False,
        keep_case: bool = False,
    ):
        if window < 2:
            raise ValueError(f"`window`={window}: give at least two bases.")
        if horizon is not None and horizon < 1:
            raise ValueError(f"`horizon`={horizon}: give at least one base.")
        self._left = window // 2
        self._right = window - self._left if horizon is None else horizon
        for shift in shifts:
            if not -self._right < shift <= self._left:
                raise ValueError(f"`shifts`: {shift} bases move the variant out of the window of {window} bases.")
        if not shifts:
            raise ValueError("`shifts` is empty: give numbers of bases, such as 0.")
        if target is not None and scores is not None:
            raise ValueError("`scores` and `target` exclude each other: give one of them.")
        if target is None and flank is not None:
            raise ValueError(
                f"`flank`={flank} needs `target` and a classifier of tokens: give `target`, or leave `flank` out."
            )
        self.model, self.genome, self.letters = model, genome, WindowLetters(model, keep_case)
        self._shifts, self._strands = shifts, ("forward", "reverse") if both_strands else ("forward",)
        self._measure: Any = AlleleScores(model, scores) if target is None else Effects(model, target, flank)
        self.descriptions = {name: self._measure.descriptions[name] for name in self._measure.columns}
        self.evaluated = self._measure.evaluated
        self._per_strand = {
            f"{name}_{strand}": (name, strand)
            for strand in (self._strands if per_strand else ())
            for name in self._measure.columns
        }
        self.descriptions |= {
            column: f"{self.descriptions[name]}, {strand} strand" for column, (name, strand) in self._per_strand.items()
        }

    def table(self, variants: Sequence[Variant]) -> pa.Table:
        """The columns, the scores and the reasons of variants."""
        names = dict.fromkeys(name for variant in variants for name in variant.columns)
        self.check_columns(names)
        readings, reasons = self._readings(variants)
        # Strand to the mean scores of each variant; "" for all strands.
        means: dict[str, list[dict[str, float]]] = {}
        for strand in ("", *self._strands):
            chosen = [[reading for tag, reading in of_variant if strand in ("", tag)] for of_variant in readings]
            means[strand] = [self._measure.combined(of_variant) if of_variant else {} for of_variant in chosen]
        values = {name: _values(means[""], name) for name in self._measure.columns}
        columns: dict[str, Any] = {name: [variant.columns.get(name) for variant in variants] for name in names}
        columns |= columns_of_scores(values, reasons, self._measure.why_missing)
        why = {name: columns.pop(name) for name in REASONS}
        for column, (name, strand) in self._per_strand.items():
            columns[column] = _column(column, _values(means[strand], name))
        return pa.table(columns | why)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise `ValueError` if a column of the variants has the name of a result."""
        if taken := [name for name in names if name in (*self.descriptions, *REASONS)]:
            raise ValueError(
                f"the variants have a column {taken[0]!r}, but the table of scores needs this name: rename the column."
            )

    def _readings(self, variants: Sequence[Variant]) -> tuple[list[list[tuple[str, Any]]], list[str]]:
        """For each variant, the strand and the scores of each window that has some; and why none has."""
        readings: list[list[tuple[str, Any]]] = [[] for _ in variants]
        faults: list[list[str]] = [[] for _ in variants]
        for shift in self._shifts:
            windows = [self._windows(variant, shift) for variant in variants]
            usable = [(number, found) for number, found in enumerate(windows) if isinstance(found, Windows)]
            for number, found in enumerate(windows):
                faults[number] += [found] if isinstance(found, str) else []
            for strand in self._strands if usable else ():
                of_strand = self._pairs(strand, [(variants[number], found) for number, found in usable])
                pairs = {number: pair for (number, _), pair in zip(usable, of_strand, strict=True)}
                for number, pair in pairs.items():
                    faults[number] += [pair] if isinstance(pair, str) else []
                scored = {number: pair for number, pair in pairs.items() if isinstance(pair, Pair)}
                results = self._measure.read(list(scored.values())) if scored else []
                for number, result in zip(scored, results, strict=True):
                    readings[number].append((strand, result))
        reasons = ["" if found else whys[0] for found, whys in zip(readings, faults, strict=True)]
        return readings, reasons

    def _windows(self, variant: Variant, shift: int) -> Windows | str:
        if shift and not variant.has_place:
            raise ValueError(
                "`shifts` needs variants with `chrom` and `pos`, because windows of sequences cannot be moved: "
                "leave `shifts` out."
            )
        return windows_of(variant, self.genome, self._left - shift, self._right + shift)

    def _pairs(self, strand: str, usable: Sequence[tuple[Variant, Windows]]) -> list[Pair | str]:
        """The tokens of the windows of one strand, or why they have no score."""
        is_reversed = strand == "reverse"
        sequences = [windows.reverse if is_reversed else windows.forward for _, windows in usable]
        records = [
            Record(self.letters.read(sequence), variant.where)
            for (variant, _), pair in zip(usable, sequences, strict=True)
            for sequence in pair
        ]
        encoded = self.model.encode(records, refuse_unknown=False)
        pairs: list[Pair | str] = []
        for number, (variant, windows) in enumerate(usable):
            both = slice(2 * number, 2 * number + 2)
            ref, alt = encoded[both]
            alleles = len(variant.ref), len(variant.alt)
            before, length = windows.before[is_reversed], len(sequences[number][0])
            why = self._fault(records[both], encoded[both])
            pairs.append(why or Pair(ref, alt, alleles, before, length, is_reversed, records[2 * number].where))
        return pairs

    def _fault(self, records: Sequence[Record], encoded: Sequence[Encoded]) -> str:
        """Why a pair of windows has no score; "" if it has."""
        for record, text in zip(records, encoded, strict=True):
            if why := self.letters.fault(self.model.unknown_letters(record, text)):
                return why
        if torch.equal(encoded[0].ids, encoded[1].ids):
            return (
                "both windows have the same tokens: nothing follows the variant, or a repeat is longer than the window"
            )
        return ""


def _values(means: Sequence[Mapping[str, float]], name: str) -> np.ndarray:
    return np.array([of_variant.get(name, np.nan) for of_variant in means], dtype=float)


class WindowLetters:
    """The letters of windows of DNA: in capitals unless their case is kept, and why they are too little known.

    Args:
        model: The model that reads the windows.
        keep_case: Whether lower-case letters stay so.

    Attributes:
        keeps_case: Whether they do, as the tokenizer needs no capitals or as asked.
    """

    def __init__(self, model: SequenceModel, keep_case: bool):
        # A tokenizer that reads both cases alike, or lower case only, needs no capitals.
        self.keeps_case, self._is_noted = keep_case or not model.needs_capitals, False

    def read(self, sequence: str) -> str:
        """The letters as the model reads them; one line of the log says so if that changes one."""
        if self.keeps_case:
            return sequence
        capitals = sequence.upper()
        if capitals != sequence and not self._is_noted:
            self._is_noted = True
            logger.warning(
                "lower-case (soft-masked) bases are read as capitals, because the tokenizer reads lower-case "
                "letters differently. For a model that was trained on both cases, use keep_case=True (--keep-case)."
            )
        return capitals

    @staticmethod
    def fault(is_unknown: np.ndarray) -> str:
        """Why letters, of which some are unknown, have no score; "" if they have."""
        share = is_unknown.mean()
        return f"{share:.0%} of the window are N or unknown to the tokenizer" if share > MOST_UNKNOWN else ""


def mean_of_strands(values: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the strands that have a score, whose others are NaN; NaN where none has one."""
    stacked = np.stack(values)
    counts = np.isfinite(stacked).sum(0)
    mean: np.ndarray = np.where(counts > 0, np.nansum(stacked, axis=0) / np.maximum(counts, 1), np.nan)
    return mean


def columns_of_scores(
    values: Mapping[str, np.ndarray], reasons: Sequence[str], why_missing: Mapping[str, str] = WHY_MISSING
) -> dict[str, pa.Array]:
    """The columns of scores, NaN where there is none, and those of `REASONS`.

    Args:
        values: Name to scores, one for each row.
        reasons: Why a row has no score; "" if it has, or if only `why_missing` says why.
        why_missing: Why a row lacks a score that others have.
    """
    reasons, missing = list(reasons), [""] * len(reasons)
    for row in np.flatnonzero(np.isnan(np.stack(list(values.values()))).any(0)):
        if reasons[row]:
            continue
        whys = {name: why_missing[name] for name, scores in values.items() if np.isnan(scores[row])}
        if len(whys) == len(values):
            reasons[row] = "; ".join(dict.fromkeys(whys.values()))
        else:
            missing[row] = "; ".join(f"{name}: {why}" for name, why in whys.items())
    columns = {name: _column(name, scores) for name, scores in values.items()}
    return columns | dict(zip(REASONS, (pa.array(texts, pa.string()) for texts in (reasons, missing)), strict=True))


def _column(name: str, values: np.ndarray) -> pa.Array:
    column = pa.array(values, from_pandas=True)
    return column.cast(pa.int64()) if "_delta_max_offset" in name else column
