"""Scores of variants: how much less likely, or how different, the alternative allele is to a model.

Legend: `L` tokens of a window, `V` vocabulary, `D` hidden size.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.genome import Genome
from hf_ssm.data.records import Record
from hf_ssm.data.variants import Variant, Windows, as_variants, windows_of
from hf_ssm.inference.likelihoods import CausalLikelihood, log_probs_of, shared_length, without_end
from hf_ssm.inference.model import MOST_UNKNOWN, Encoded, SequenceModel, check_finite
from hf_ssm.inference.parts import table_of
from hf_ssm.probes.reading import check_choice
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


SCORES = {
    "llr": "causal",
    "next_token": "causal",
    "masked_log_odds": "masked",
    "embedding_distance": "any",
}
"""Name of each score, and the head that it needs."""

_WHY_MISSING = {
    "llr": "no base of the window has one before it",
    "next_token": "no base before the variant",
    "masked_log_odds": "masked log-odds need alleles of as many tokens",
}
"""Why a variant that has windows may lack a score."""

REASONS = ("reason", "missing")
"""Columns beside the scores: why a row has none, and which ones it lacks beside others."""


def score_variants(
    model: Any,
    tokenizer: Any,
    variants: Iterable[Mapping[str, Any] | Variant],
    genome: Genome | None = None,
    *,
    scores: Sequence[str] | None = None,
    window: int = 1024,
    horizon: int | None = None,
    both_strands: bool = True,
    share_prefixes: bool = True,
    keep_case: bool = False,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Score variants without labels.

    Each variant is scored by itself, against the reference: overlapping variants do not change each other's windows.
    All scores are differences of the alternative to the reference allele, in nats; the lower, the less likely the
    alternative; `embedding_distance` is a distance.

    - `llr` (causal models): log-likelihood of the window with the alternative minus that with the reference allele.
    - `next_token` (causal): log-probability of the first token at which both alleles differ, given the bases before it.
    - `masked_log_odds` (masked models): the same for the tokens of the variant, masked together in the window of the
      reference. For alleles of different lengths there is none.
    - `embedding_distance`: Euclidean distance of the mean hidden states of the last layer over both windows.

    Args:
        model: A model of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one.
        variants: Rows with `chrom`, `pos` (1-based), `ref`, `alt`, or with `ref_sequence` and `alt_sequence`; or
            `hf_ssm.data.variants.read_variants(path)`.
        genome: The reference, `hf_ssm.data.genome.Genome(path)`; not needed for sequences.
        scores: Names of scores; default: those of the likelihood for language models, else the distance.
        window: Bases of a window, default 1024, half of them before the variant.
        horizon: Bases from the variant on; default `window - window // 2`.
        both_strands: Average over both strands, default True. A strand without a score is left out of the mean.
        share_prefixes: Read what the windows of a variant have in common only once, default True, where the model
            allows it. The scores are the same up to rounding.
        keep_case: Whether lower-case letters, such as soft-masked repeats of a genome, stay so. By default they are
            read as capitals.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with one row for each variant in their order: its columns, a column for each score (`None` if there
        is none), `reason`, why the variant has no score, and `missing`, which scores it lacks beside others, and why
        (both "" where they do not apply). A strand has no score where the tokens of both windows are equal, as of a
        deletion at the end of a contig, or where more than half of the letters of a window are ambiguous (N) or unknown
        to the tokenizer.

    Raises:
        ValueError: A score is unknown or needs another model, the window is not positive or longer than the model
            takes, a variant with a place has no genome, or a column has the name of a result.
    """
    scorer = VariantScorer(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        genome,
        scores,
        window=window,
        horizon=horizon,
        both_strands=both_strands,
        share_prefixes=share_prefixes,
        keep_case=keep_case,
    )
    with evaluating(scorer.model.model):
        return table_of(as_variants(variants), scorer.table)


class VariantScorer:
    """Computes the table of scores of a list of variants; to be used within `evaluating`.

    The arguments are those of `score_variants`.
    """

    def __init__(
        self,
        model: SequenceModel,
        genome: Genome | None,
        scores: Sequence[str] | None = None,
        *,
        window: int = 1024,
        horizon: int | None = None,
        both_strands: bool = True,
        share_prefixes: bool = True,
        keep_case: bool = False,
    ):
        self.model, self.genome, self.both_strands = model, genome, both_strands
        self.letters = WindowLetters(model, keep_case)
        by_head = {"causal": ("llr", "next_token"), "masked": ("masked_log_odds",)}
        self.scores = tuple(scores or by_head.get(str(model.head), ("embedding_distance",)))
        for name in self.scores:
            check_choice("scores", name, tuple(SCORES))
            if SCORES[name] not in ("any", model.head):
                raise ValueError(
                    f"`scores`={name!r} needs a {SCORES[name]} language model, not a {type(model.model).__name__}."
                )
        if window < 2:
            raise ValueError(f"`window`={window}: give at least two bases.")
        if horizon is not None and horizon < 1:
            raise ValueError(f"`horizon`={horizon}: give at least one base.")
        self.left = window // 2
        self.right = window - self.left if horizon is None else horizon
        self.likelihood = CausalLikelihood(model, share_prefixes) if model.head == "causal" else None

    def table(self, variants: Sequence[Variant]) -> pa.Table:
        """The columns, the scores and the reasons of variants."""
        names = dict.fromkeys(name for variant in variants for name in variant.columns)
        self.check_columns(names)
        windows = [self._windows(variant) for variant in variants]
        reasons = [window if isinstance(window, str) else "" for window in windows]
        values = {name: np.full(len(variants), np.nan) for name in self.scores}
        numbers = [number for number, window in enumerate(windows) if isinstance(window, Windows)]
        usable = [window for window in windows if isinstance(window, Windows)]
        if usable:
            wheres = [_where(variants[number]) for number in numbers]
            aligned = [pair.is_substitution for pair in usable]
            strands = [[pair.forward for pair in usable]] + [[pair.reverse for pair in usable]] * self.both_strands
            results = [self._scores(pairs, aligned, wheres) for pairs in strands]
            for name in self.scores:
                values[name][numbers] = mean_of_strands([scores[name] for scores, _ in results])
            for number, faults in zip(numbers, zip(*(faults for _, faults in results), strict=True), strict=True):
                reasons[number] = faults[0] if all(faults) else ""
        columns: dict[str, Any] = {name: [variant.columns.get(name) for variant in variants] for name in names}
        return pa.table(columns | columns_of_scores(values, reasons))

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise `ValueError` if a column of the variants has the name of a result."""
        if taken := [name for name in names if name in (*self.scores, *REASONS)]:
            raise ValueError(f"the variants have a column {taken[0]!r}, as the table of scores has: rename it.")

    def _windows(self, variant: Variant) -> Windows | str:
        if variant.has_place and self.genome is None and not variant.reason:
            raise ValueError("variants with `chrom` and `pos` need the reference: give `genome` (--genome FASTA).")
        return windows_of(variant, self.genome, self.left, self.right)

    def _scores(
        self, pairs: Sequence[tuple[str, str]], aligned: Sequence[bool], wheres: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """Each score of the windows of one strand, NaN if there is none; and why a pair of windows has no score."""
        records = [
            Record(self.letters.read(sequence), where)
            for pair, where in zip(pairs, wheres, strict=True)
            for sequence in pair
        ]
        encoded = self.model.encode(records, refuse_unknown=False)
        faults = [
            self._fault(records[first : first + 2], encoded[first : first + 2]) for first in range(0, len(records), 2)
        ]
        scored = [number for number, fault in enumerate(faults) if not fault]
        values = {name: np.full(len(pairs), np.nan) for name in self.scores}
        if scored:
            chosen = [(encoded[2 * number], encoded[2 * number + 1]) for number in scored]
            for name, numbers in self._computed(chosen, [aligned[number] for number in scored]).items():
                for row, value in zip(scored, numbers, strict=True):
                    if value is not None:
                        check_finite(torch.tensor(value), wheres[row])
                        values[name][row] = value
        return values, faults

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

    def _computed(
        self, pairs: Sequence[tuple[Encoded, Encoded]], aligned: Sequence[bool]
    ) -> dict[str, list[float | None]]:
        scores: dict[str, list[float | None]] = {}
        if self.likelihood is not None and {"llr", "next_token"} & set(self.scores):
            scores |= self._causal(self.likelihood, pairs)
        if "masked_log_odds" in self.scores:
            scores["masked_log_odds"] = self._masked(pairs, aligned)
        if "embedding_distance" in self.scores:
            scores["embedding_distance"] = self._distances([text for pair in pairs for text in pair])
        return {name: scores[name] for name in self.scores}

    @staticmethod
    def _causal(
        likelihood: CausalLikelihood, pairs: Sequence[tuple[Encoded, Encoded]]
    ) -> dict[str, list[float | None]]:
        # Variants at the same place, such as the alleles of one row, share what is before them and their reference.
        groups: dict[bytes, dict[bytes, Tensor]] = {}
        places = []
        for pair in pairs:
            ids = [without_end(text) for text in pair]
            keys = [tokens.numpy().tobytes() for tokens in ids]
            group = groups.setdefault(keys[0], {})
            group.update(zip(keys, ids, strict=True))
            places.append((keys[0], keys[1], shared_length(ids)))
        values = likelihood.groups([list(group.values()) for group in groups.values()])
        # Log-probabilities from the first token that a group does not share.
        log_probs = {
            key: (shared_length(list(group.values())), dict(zip(group, of_group, strict=True)))
            for (key, group), of_group in zip(groups.items(), values, strict=True)
        }
        llr: list[float | None] = []
        first: list[float | None] = []
        for ref, alt, shared in places:
            start, of_group = log_probs[ref]
            of_alt, of_ref = of_group[alt], of_group[ref]
            # Of a single token, the model has no likelihood.
            has_llr = start + min(len(of_alt), len(of_ref)) > 1
            llr.append((of_alt.sum() - of_ref.sum()).item() if has_llr else None)
            at = shared - start
            first.append((of_alt[at] - of_ref[at]).item() if shared else None)
        return {"llr": llr, "next_token": first}

    def _masked(self, pairs: Sequence[tuple[Encoded, Encoded]], aligned: Sequence[bool]) -> list[float | None]:
        mask = self.model.tokenizer.mask_token_id
        if mask is None:
            raise ValueError("masked log-odds need a tokenizer with a mask token.")
        usable = [
            number
            for number, (ref, alt) in enumerate(pairs)
            if aligned[number] and torch.equal(ref.letters, alt.letters)
        ]
        differing = [pairs[number][0].ids != pairs[number][1].ids for number in usable]
        masked = [
            Encoded(torch.where(places, mask, pairs[number][0].ids), pairs[number][0].special, pairs[number][0].letters)
            for number, places in zip(usable, differing, strict=True)
        ]
        log_odds: list[float | None] = [None] * len(pairs)
        for batch in self.model.run(masked):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                places = differing[row].nonzero().squeeze(1).to(logits.device)
                ref, alt = (text.ids.to(logits.device)[places] for text in pairs[usable[row]])
                odds = log_probs_of(logits[places], alt) - log_probs_of(logits[places], ref)
                log_odds[usable[row]] = odds.sum().item()
        return log_odds

    def _distances(self, encoded: Sequence[Encoded]) -> list[float | None]:
        means: list[Tensor] = [torch.zeros(0)] * len(encoded)
        for batch in self.model.run(encoded, output_hidden_states=True):
            hidden = batch.outputs.hidden_states[-1].double()
            for row, states in zip(batch.rows, hidden, strict=True):
                kept = (~encoded[row].special).nonzero().squeeze(1).to(states.device)
                means[row] = states[kept].mean(0).cpu()
        stacked = torch.stack(means)
        return list(torch.linalg.vector_norm(stacked[::2] - stacked[1::2], dim=-1).tolist())


def _where(variant: Variant) -> str:
    return f"variant {variant.chrom}:{variant.start + 1} {variant.ref[:20]}>{variant.alt[:20]}"


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
                "lower-case (soft-masked) bases are read as capitals, since the tokenizer reads them otherwise; "
                "keep_case=True (--keep-case) is for models that were trained on both cases."
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


def columns_of_scores(values: Mapping[str, np.ndarray], reasons: Sequence[str]) -> dict[str, pa.Array]:
    """The columns of scores, NaN where there is none, and those of `REASONS`.

    Args:
        values: Name to scores, one for each row.
        reasons: Why a row has no score; "" if it has, or if only `_WHY_MISSING` says why.
    """
    reasons, missing = list(reasons), [""] * len(reasons)
    for row in np.flatnonzero(np.isnan(np.stack(list(values.values()))).any(0)):
        if reasons[row]:
            continue
        whys = {name: _WHY_MISSING[name] for name, scores in values.items() if np.isnan(scores[row])}
        if len(whys) == len(values):
            reasons[row] = "; ".join(whys.values())
        else:
            missing[row] = "; ".join(f"{name}: {why}" for name, why in whys.items())
    columns = {name: pa.array(scores, from_pandas=True) for name, scores in values.items()}
    return columns | dict(zip(REASONS, (pa.array(texts, pa.string()) for texts in (reasons, missing)), strict=True))
