"""Scores of variants: how much less likely, or how different, the alternative allele is to a model.

Legend: `L` tokens of a window, `V` vocabulary, `D` hidden size.
"""

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
from hf_ssm.inference.model import Encoded, SequenceModel
from hf_ssm.inference.parts import table_of
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["SCORES", "VariantScorer", "score_variants"]

SCORES = {
    "llr": "causal",
    "next_token": "causal",
    "masked_log_odds": "masked",
    "embedding_distance": "any",
}
"""Name of each score, and the head that it needs."""

# No score, and why.
_NONE = float("nan")
_WHY_MISSING = {
    "next_token": "no base before the variant",
    "masked_log_odds": "masked log-odds need alleles of as many tokens",
}


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
        both_strands: Average over both strands, default True.
        share_prefixes: Read what the windows of a variant have in common only once, default True, where the model
            allows it. The scores are the same up to rounding.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with one row for each variant in their order: its columns, a column for each score (`None` if there
        is none) and `reason`, why scores are missing ("" if none is).

    Raises:
        ValueError: A score is unknown or needs another model, the window is not positive or longer than the model
            takes, or a variant with a place has no genome.
    """
    scorer = VariantScorer(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        genome,
        scores,
        window=window,
        horizon=horizon,
        both_strands=both_strands,
        share_prefixes=share_prefixes,
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
    ):
        self.model, self.genome, self.both_strands = model, genome, both_strands
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
        windows = [self._windows(variant) for variant in variants]
        reasons = [found if isinstance(found, str) else "" for found in windows]
        usable = [number for number, found in enumerate(windows) if isinstance(found, Windows)]
        values = {name: np.full(len(variants), _NONE) for name in self.scores}
        own = [found for found in windows if isinstance(found, Windows)]
        if own:
            strands = [[found.forward for found in own]] + [[found.reverse for found in own]] * self.both_strands
            aligned = [found.is_substitution for found in own]
            results = [self._scores(pairs, aligned, [variants[number] for number in usable]) for pairs in strands]
            for name in self.scores:
                values[name][usable] = np.mean([result[name] for result in results], axis=0)
        for name, why in _WHY_MISSING.items():
            for number in usable if name in values else ():
                if np.isnan(values[name][number]):
                    reasons[number] = why
        own_columns = dict.fromkeys(name for variant in variants for name in variant.columns)
        columns: dict[str, Any] = {name: [variant.columns.get(name) for variant in variants] for name in own_columns}
        columns |= {name: pa.array(found, from_pandas=True) for name, found in values.items()}
        return pa.table(columns | {"reason": pa.array(reasons, pa.string())})

    def _windows(self, variant: Variant) -> Windows | str:
        if variant.has_place and self.genome is None and not variant.reason:
            raise ValueError("variants with `chrom` and `pos` need the reference: give `genome` (--genome FASTA).")
        return windows_of(variant, self.genome, self.left, self.right)

    def _scores(
        self, pairs: Sequence[tuple[str, str]], aligned: Sequence[bool], variants: Sequence[Variant]
    ) -> dict[str, np.ndarray]:
        """Each score of the windows of one strand."""
        records = [
            Record(sequence, f"variant {variant.chrom}:{variant.start + 1} {variant.ref[:20]}>{variant.alt[:20]}")
            for pair, variant in zip(pairs, variants, strict=True)
            for sequence in pair
        ]
        encoded = self.model.encode(records)
        both = list(zip(encoded[::2], encoded[1::2], strict=True))
        found: dict[str, np.ndarray] = {}
        if self.likelihood is not None and {"llr", "next_token"} & set(self.scores):
            found |= self._causal(self.likelihood, both)
        if "masked_log_odds" in self.scores:
            found["masked_log_odds"] = self._masked(both, aligned)
        if "embedding_distance" in self.scores:
            found["embedding_distance"] = self._distances(encoded)
        for name in {"llr", "embedding_distance"} & found.keys():
            if not np.isfinite(found[name]).all():
                where = records[2 * int(np.flatnonzero(~np.isfinite(found[name]))[0])].where
                raise ValueError(f"{where}: the model gives NaN: its weights hold NaN, or its precision is too low.")
        return found

    @staticmethod
    def _causal(likelihood: CausalLikelihood, pairs: Sequence[tuple[Encoded, Encoded]]) -> dict[str, np.ndarray]:
        # Variants at the same place, such as the alleles of one row, share what is before them and their reference.
        groups: dict[bytes, dict[bytes, Tensor]] = {}
        places = []
        for pair in pairs:
            ids = [without_end(text) for text in pair]
            keys = [own.numpy().tobytes() for own in ids]
            group = groups.setdefault(keys[0], {})
            group.update(zip(keys, ids, strict=True))
            places.append((keys[0], keys[1], shared_length(ids)))
        values = likelihood.groups([list(group.values()) for group in groups.values()])
        # Log-probabilities from the first token that a group does not share.
        known = {
            key: (shared_length(list(group.values())), dict(zip(group, own, strict=True)))
            for (key, group), own in zip(groups.items(), values, strict=True)
        }
        llr, first = [], []
        for ref, alt, shared in places:
            start, own = known[ref]
            difference = own[alt], own[ref]
            llr.append((difference[0].sum() - difference[1].sum()).item())
            at = shared - start
            first.append((difference[0][at] - difference[1][at]).item() if shared else _NONE)
        return {"llr": np.array(llr), "next_token": np.array(first)}

    def _masked(self, pairs: Sequence[tuple[Encoded, Encoded]], aligned: Sequence[bool]) -> np.ndarray:
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
        found = np.full(len(pairs), _NONE)
        for batch in self.model.run(masked):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                places = differing[row].nonzero().squeeze(1).to(logits.device)
                ref, alt = (text.ids.to(logits.device)[places] for text in pairs[usable[row]])
                odds = log_probs_of(logits[places], alt) - log_probs_of(logits[places], ref)
                found[usable[row]] = odds.sum().item()
        return found

    def _distances(self, encoded: Sequence[Encoded]) -> np.ndarray:
        means: list[Tensor] = [torch.zeros(0)] * len(encoded)
        for batch in self.model.run(encoded, output_hidden_states=True):
            hidden = batch.outputs.hidden_states[-1].double()
            for row, own in zip(batch.rows, hidden, strict=True):
                kept = (~encoded[row].special).nonzero().squeeze(1).to(own.device)
                means[row] = own[kept].mean(0).cpu()
        stacked = torch.stack(means)
        return torch.linalg.vector_norm(stacked[::2] - stacked[1::2], dim=-1).numpy()
