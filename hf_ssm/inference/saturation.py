"""Saturation mutagenesis: the scores of every base of a region replaced by every other.

Legend: `L` tokens of the context, `N` positions of the region.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Tensor

from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import reverse_complement
from hf_ssm.inference.bases import BASES, BasesModel, BaseTokens, substitutions
from hf_ssm.inference.likelihoods import CausalLikelihood, without_end
from hf_ssm.inference.model import SequenceModel, check_finite, mean_of_strands
from hf_ssm.inference.score import columns_of_scores
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["Saturation", "saturate"]

# Positions between two states from which mutants are read. Fewer positions repeat fewer tokens, in more calls.
_BLOCK = 16


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
    reader = SequenceModel(model, tokenizer, max_tokens_per_batch, ReadOptions(keep_case=keep_case))
    saturation = Saturation(reader, scores=scores, window=window, horizon=horizon, both_strands=both_strands)
    with evaluating(reader.model):
        return Dataset(saturation.table(sequence, start, len(sequence) if stop is None else stop))


class Saturation:
    """Computes the table of `saturate`, whose arguments it takes; to be used within `evaluating`.

    Attributes:
        columns: Names of the scores.
    """

    def __init__(
        self,
        model: SequenceModel,
        *,
        scores: Sequence[str] | None = None,
        window: int = 1024,
        horizon: int = 128,
        both_strands: bool = True,
    ):
        for name, value in (("window", window), ("horizon", horizon)):
            if value < 1:
                raise ValueError(f"`{name}`={value}: give a positive number of bases.")
        self.model, self.window, self.horizon, self.both_strands = model, window, horizon, both_strands
        self._bases = BasesModel(model, "saturation mutagenesis")
        self.likelihood = CausalLikelihood(model) if self._bases.is_causal else None
        available = ("masked_log_odds",) if self.likelihood is None else ("llr", "next_token")
        self.columns = tuple(scores or available)
        for name in self.columns:
            check_choice("scores", name, available)

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
        of_places = {name: values[at] for name, values in scores.items()}
        return pa.table(columns | columns_of_scores(of_places, [reasons[n] for n, _ in places]))

    def _strand(self, context: str, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        """The scores of all four bases at each position, `(N, 4)`, NaN where there is none; why a position has none."""
        score = self._masked if self.likelihood is None else self._causal
        scores, faults = score(self.model.letters(context), first, last)
        for values in scores.values():
            values[[bool(fault) for fault in faults]] = np.nan
        return scores, faults

    def _causal(self, context: str, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        tokens = self._bases.tokens(context)
        ids, special = without_end(tokens.encoded), tokens.before
        faults = []
        for n in range(first, last):
            start = max(0, n - self.window // 2)
            window = slice(start, n + self.horizon)
            faults.append(BaseTokens(tokens.encoded, special, tokens.is_unknown[window]).fault(n - start))
        bases = F.pad(self._bases.ids_at(context), (0, 0, special, 0))
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
            mutants = list(substitutions(ids, bases, range(border, min(border + _BLOCK, last))))
            # There is no state before the first token.
            start = border if self.likelihood.shares else 0
            texts = []
            for place, base in mutants:
                texts.append(ids[start : place + self.horizon].clone())
                texts[-1][place - start] = bases[place, base]
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

    def _masked(self, context: str, first: int, last: int) -> tuple[dict[str, np.ndarray], list[str]]:
        windows, letters, logits = self._bases.masked(context, range(first, last), self.window)
        bases = self._bases.ids_at(context[first:last])
        log_probs = torch.stack(logits).log_softmax(-1).gather(-1, bases)
        there = torch.tensor([BASES.find(letter) for letter in context[first:last].upper()])
        log_odds = log_probs - log_probs.gather(-1, there.clamp(min=0).unsqueeze(-1))
        check_finite(log_odds)
        faults = [window.fault(letter) for window, letter in zip(windows, letters, strict=True)]
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
