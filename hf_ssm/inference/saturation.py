"""Saturation mutagenesis: the scores of every base of a region replaced by every other.

Legend: `L` tokens of the context, `N` positions of the region.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.records import reverse_complement
from hf_ssm.inference.base_tokens import BASES, BaseTokens, base_ids, base_tokens, other_bases
from hf_ssm.inference.likelihoods import CausalLikelihood, without_end
from hf_ssm.inference.model import SequenceModel, check_finite
from hf_ssm.inference.score import WindowLetters, columns_of_scores, mean_of_strands
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["BASES", "Saturation", "saturate"]

# Positions between two states from which mutants are read. Fewer positions repeat fewer tokens, in more calls.
_BLOCK = 16
_NEEDS = "saturation mutagenesis", "give the variants as a table to `hf-ssm score` instead"


def saturate(
    model: Any,
    tokenizer: Any,
    sequence: str,
    start: int = 0,
    stop: int | None = None,
    *,
    scores: Sequence[str] | None = None,
    window: int = 1024,
    horizon: int = 128,
    both_strands: bool = True,
    keep_case: bool = False,
    max_tokens_per_batch: int = 16384,
) -> Dataset:
    """Score every substitution of a region.

    The context of all mutants is the region with `window // 2` bases on each side, or fewer at the ends of the
    sequence. A causal model reads a mutant from the beginning of the context to `horizon` bases from the substitution
    on, and `llr` compares the likelihood of these with that of the reference. Mutants share the states before the
    substitution, so that each costs about `horizon` tokens instead of up to
    `window // 2 + N + horizon`. A masked model reads each position masked, in the middle of `window` bases.

    Args:
        model: A causal or masked language model of hf_ssm or transformers.
        tokenizer: Its tokenizer, a fast one with one token for each base.
        sequence: The sequence, of which the region is a part.
        start, stop: The region: the first base, counted from 0, and the base after the last one; default: the whole
            sequence.
        scores: Names of scores; default: all of the model. `next_token` alone needs one pass of a causal model.
        window: See above, default 1024.
        horizon: See above, default 128.
        both_strands: Average over both strands, default True. A strand without a score is left out of the mean.
        keep_case: Whether lower-case letters are kept, and replaced by lower-case letters. By default they are read as
            capitals.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with 3 rows for each position: `position` (counted from 0 in `sequence`), `ref`, `alt`, and `llr` and
        `next_token` (causal) or `masked_log_odds` (masked), `reason` and `missing`; see `score_variants`. Positions
        with other letters than A, C, G and T are left out.

    Raises:
        ValueError: The model is not a language model, the region is empty or outside of the sequence, an argument is
            not positive, the context is longer than the model takes, the tokenizer joins bases, or the model gives NaN.
    """
    saturation = Saturation(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        scores=scores,
        window=window,
        horizon=horizon,
        both_strands=both_strands,
        keep_case=keep_case,
    )
    with evaluating(saturation.model.model):
        return Dataset(saturation.table(sequence, start, len(sequence) if stop is None else stop))


class Saturation:
    """Computes the table of `saturate`, whose arguments it takes; to be used within `evaluating`."""

    def __init__(
        self,
        model: SequenceModel,
        *,
        scores: Sequence[str] | None = None,
        window: int = 1024,
        horizon: int = 128,
        both_strands: bool = True,
        keep_case: bool = False,
    ):
        for name, value in (("window", window), ("horizon", horizon)):
            if value < 1:
                raise ValueError(f"`{name}`={value}: give a positive number of bases.")
        if model.head not in ("causal", "masked"):
            raise ValueError(
                f"{type(model.model).__name__} is not a language model, but saturation mutagenesis needs a "
                "language model: give another checkpoint, or, in the command, --target for a classifier or "
                "regressor."
            )
        self.model, self.window, self.horizon, self.both_strands = model, window, horizon, both_strands
        self.likelihood = CausalLikelihood(model) if model.head == "causal" else None
        available = ("llr", "next_token") if model.head == "causal" else ("masked_log_odds",)
        self.columns = tuple(scores or available)
        for name in self.columns:
            check_choice("scores", name, available)
        self.letters = WindowLetters(model, keep_case)
        self._bases = base_ids(model, self.letters.keeps_case, *_NEEDS)

    def table(self, sequence: str, start: int, stop: int) -> pa.Table:
        """The scores of all substitutions of a region."""
        if not 0 <= start < stop <= len(sequence):
            raise ValueError(f"`start`={start}, `stop`={stop}: give a region inside the {len(sequence)} bases.")
        left = self.window // 2
        right = self.horizon if self.likelihood is not None else self.window - left
        begin, end = max(0, start - left), min(len(sequence), stop + left)
        strands = [self._strand(sequence[begin : stop + right], start - begin, stop - begin)]
        if self.both_strands:
            turned = reverse_complement(sequence[max(0, start - right) : end])
            other, faults = self._strand(turned, end - stop, end - start)
            # Both axes reversed: positions, and bases into their complements.
            strands.append(({name: np.flip(values) for name, values in other.items()}, faults[::-1]))
        scores = {name: mean_of_strands([values[name] for values, _ in strands]) for name in self.columns}
        reasons = [whys[0] if all(whys) else "" for whys in zip(*(faults for _, faults in strands), strict=True)]
        return self._rows(sequence[start:stop].upper(), start, scores, reasons)

    def _rows(self, region: str, start: int, scores: Mapping[str, np.ndarray], reasons: Sequence[str]) -> pa.Table:
        """The table of scores `(N, 4)`, and of reasons for each position."""
        places = [(n, k) for n, ref in enumerate(region) for k, alt in enumerate(BASES) if ref in BASES and alt != ref]
        columns: dict[str, Any] = {
            "position": pa.array([start + n for n, _ in places], pa.int64()),
            "ref": pa.array([region[n] for n, _ in places], pa.string()),
            "alt": pa.array([BASES[k] for _, k in places], pa.string()),
        }
        at = tuple(np.array(places, dtype=np.int64).reshape(-1, 2).T)
        chosen = {name: values[at] for name, values in scores.items()}
        return pa.table(columns | columns_of_scores(chosen, [reasons[n] for n, _ in places]))

    def _encoded(self, text: str) -> BaseTokens:
        return base_tokens(self.model, text, *_NEEDS)

    def _strand(self, context: str, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The scores of all four bases at each position, `(N, 4)`, NaN where there is none; why a position has none."""
        context = self.letters.read(context)
        is_lower = torch.tensor([letter.islower() for letter in context])
        bases = self._bases[is_lower.long()]
        score = self._causal if self.likelihood is not None else self._masked
        scores, faults = score(context, bases, first, last)
        for values in scores.values():
            values[[bool(fault) for fault in faults]] = np.nan
        return scores, faults

    def _fault(self, is_unknown: np.ndarray, place: int) -> str:
        """Why a base of a window has no score; "" if it has."""
        why = self.letters.fault(is_unknown)
        return why or ("the tokenizer does not know the base" if is_unknown[place] else "")

    def _causal(self, context: str, bases: Tensor, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The scores of all four bases at each position, `(N, 4)`, and why a position has none."""
        tokens = self._encoded(context)
        ids, special = without_end(tokens.encoded), tokens.before
        left, faults = self.window // 2, []
        for n in range(first, last):
            start = max(0, n - left)
            faults.append(self._fault(tokens.is_unknown[start : n + self.horizon], n - start))
        bases = torch.cat([bases.new_zeros(special, len(BASES)), bases])
        first, last = first + special, last + special
        reference = _Reference(ids, bases)
        sums = torch.zeros(last - first, len(BASES), dtype=torch.double)
        for place, base, values in self._mutants(ids, bases, first, last, reference):
            sums[place - first, base] = values.sum()
        is_there = ids[first:last].unsqueeze(-1) == bases[first:last]
        references = torch.stack([reference.tokens[place : place + self.horizon].sum() for place in range(first, last)])
        nexts = reference.bases[first:last] - reference.tokens[first:last].unsqueeze(-1)
        llr = (sums - references.unsqueeze(-1)).masked_fill(is_there, 0)
        check_finite(llr)
        check_finite(nexts[1:] if first == 0 else nexts)
        if first == 0 and min(len(ids), self.horizon) == 1:
            # Of a single token, the model has no likelihood.
            llr[0] = float("nan")
        return {"llr": llr.numpy(), "next_token": nexts.numpy()}, faults

    def _mutants(
        self, ids: Tensor, bases: Tensor, first: int, last: int, reference: "_Reference"
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Place, base and log-probabilities of the tokens from the place on of each mutant; reads the reference too."""
        assert self.likelihood is not None
        cache: Any = None
        read = 0
        for border in range(first, last if "llr" in self.columns else first, _BLOCK):
            stop = min(border + _BLOCK, last)
            mutants = [(place, base) for place in range(border, stop) for base in other_bases(ids[place], bases[place])]
            # There is no state before the first token.
            start = border if self.likelihood.shares else 0
            texts = [_mutant(ids[start : p + self.horizon], p - start, bases[p, base]) for p, base in mutants]
            if start:
                logits, cache = self.likelihood.read(ids[None, read:border], cache, keep=True)
                reference.add(logits[0])
                read = border
                log_probs = self.likelihood.continued(cache, logits[:, -1], [0] * len(texts), texts, border)
            else:
                log_probs = [F.pad(values, (1, 0)) for values in self.likelihood.full(texts)]
            for (place, base), values in zip(mutants, log_probs, strict=True):
                yield place, base, values[place - start :]
        reference.add(self.likelihood.read(ids[None, read:], cache)[0][0])

    def _masked(self, context: str, bases: Tensor, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """Log-odds of all four bases against the reference, `(N, 4)`, and why a position has none."""
        mask = self.model.tokenizer.mask_token_id
        if mask is None:
            raise ValueError("masked log-odds need a tokenizer with a mask token: give another tokenizer.")
        left = self.window // 2
        contexts = [
            self._encoded(context[max(0, place - left) : place + self.window - left]) for place in range(first, last)
        ]
        # Of the base in its window.
        letters = [min(place, left) for place in range(first, last)]
        places = [window.before + letter for window, letter in zip(contexts, letters, strict=True)]
        # With the special tokens behind the letters, which the model has read in training.
        masked = [
            replace(window.encoded, ids=_mutant(window.encoded.ids, place, torch.tensor(mask)))
            for window, place in zip(contexts, places, strict=True)
        ]
        log_odds = torch.zeros(last - first, len(BASES), dtype=torch.double)
        for batch in self.model.run(masked):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                of_bases = logits[places[row]].double().log_softmax(-1).cpu()[bases[first + row]]
                log_odds[row] = of_bases - of_bases[BASES.find(context[first + row].upper())]
        check_finite(log_odds)
        faults = [self._fault(window.is_unknown, letter) for window, letter in zip(contexts, letters, strict=True)]
        return {"masked_log_odds": log_odds.numpy()}, faults


class _Reference:
    """Log-probabilities that the reference itself gives.

    Attributes:
        tokens: `(L,)`, of its own tokens; 0 for the first one, before which there is none.
        bases: `(L, 4)`, of the bases that may replace each token; NaN for the first.
    """

    def __init__(self, ids: Tensor, bases: Tensor):
        self._ids, self._bases = ids, bases
        self.tokens = torch.zeros(len(ids), dtype=torch.double)
        self.bases = torch.full(bases.shape, float("nan"), dtype=torch.double)
        self._read = 0

    def add(self, logits: Tensor) -> None:
        """Take the logits `(n, V)` of the next n tokens."""
        first, self._read = self._read + 1, self._read + len(logits)
        values = logits.double().log_softmax(-1).cpu()[: len(self._ids) - first]
        self.tokens[first : self._read + 1] = values.gather(-1, self._ids[first : self._read + 1, None]).squeeze(-1)
        self.bases[first : self._read + 1] = values.gather(-1, self._bases[first : self._read + 1])


def _mutant(ids: Tensor, place: int, token: Tensor) -> Tensor:
    changed = ids.clone()
    changed[place] = token
    return changed
