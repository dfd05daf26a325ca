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

from hf_ssm.data.records import Record, reverse_complement
from hf_ssm.inference.likelihoods import CausalLikelihood, without_end
from hf_ssm.inference.model import Encoded, SequenceModel
from hf_ssm.probes.reading import check_choice
from hf_ssm.utils.evaluation import evaluating

__all__ = ["BASES", "Saturation", "saturate"]

BASES = "ACGT"

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
    share_prefixes: bool = True,
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
        start, stop: The region: first base, counted from 0, and the one after the last; default: all.
        scores: Names of scores; default: all of the model. `next_token` alone needs one pass of a causal model.
        window: See above, default 1024.
        horizon: See above, default 128.
        both_strands: Average over both strands, default True.
        share_prefixes: Read what mutants have in common only once, default True.
        max_tokens_per_batch: Largest number of tokens in a batch, default 16384.

    Returns:
        A Dataset with 3 rows for each position: `position` (counted from 0 in `sequence`), `ref`, `alt`, and `llr` and
        `next_token` (causal) or `masked_log_odds` (masked); see `score_variants`. Positions with other letters than A,
        C, G and T are left out. `next_token` is `None` for a base without one before it.

    Raises:
        ValueError: The model is no language model, the region is empty or outside of the sequence, an argument is not
            positive, the context is longer than the model takes, or the tokenizer joins bases.
    """
    saturation = Saturation(
        SequenceModel(model, tokenizer, max_tokens_per_batch),
        scores=scores,
        window=window,
        horizon=horizon,
        both_strands=both_strands,
        share_prefixes=share_prefixes,
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
        share_prefixes: bool = True,
    ):
        for name, value in (("window", window), ("horizon", horizon)):
            if value < 1:
                raise ValueError(f"`{name}`={value}: give a positive number of bases.")
        if model.head not in ("causal", "masked"):
            raise ValueError(f"{type(model.model).__name__} is no language model, which saturation mutagenesis needs.")
        self.model, self.window, self.horizon, self.both_strands = model, window, horizon, both_strands
        self.likelihood = CausalLikelihood(model, share_prefixes) if model.head == "causal" else None
        known = ("llr", "next_token") if model.head == "causal" else ("masked_log_odds",)
        self.columns = tuple(scores or known)
        for name in self.columns:
            check_choice("scores", name, known)
        # Ids of the four bases.
        self._bases = torch.cat([self._encoded(base)[1] for base in BASES])

    def table(self, sequence: str, start: int, stop: int) -> pa.Table:
        """The scores of all substitutions of a region."""
        if not 0 <= start < stop <= len(sequence):
            raise ValueError(f"`start`={start}, `stop`={stop}: give a region of the {len(sequence)} bases.")
        left = self.window // 2
        right = self.horizon if self.likelihood is not None else self.window - left
        begin, end = max(0, start - left), min(len(sequence), stop + left)
        score = self._causal if self.likelihood is not None else self._masked
        scores = score(sequence[begin : stop + right], start - begin, stop - begin)
        if self.both_strands:
            strand = reverse_complement(sequence[max(0, start - right) : end])
            other = score(strand, end - stop, end - start)
            # Both axes reversed: positions, and bases into their complements.
            scores = {name: (own + np.flip(other[name])) / 2 for name, own in scores.items()}
        return self._rows(sequence[start:stop].upper(), start, scores)

    def _rows(self, region: str, start: int, scores: Mapping[str, np.ndarray]) -> pa.Table:
        """The table of scores `(N, 4)`."""
        places = [(n, k) for n, ref in enumerate(region) for k, alt in enumerate(BASES) if ref in BASES and alt != ref]
        columns: dict[str, Any] = {
            "position": [start + n for n, _ in places],
            "ref": [region[n] for n, _ in places],
            "alt": [BASES[k] for _, k in places],
        }
        at = tuple(np.array(places, dtype=np.int64).reshape(-1, 2).T)
        chosen = {name: pa.array(own[at], from_pandas=True) for name, own in scores.items() if name in self.columns}
        return pa.table(columns | chosen)

    def _encoded(self, text: str) -> tuple[Tensor, Tensor]:
        """The special tokens before a text, and one token for each of its letters."""
        (encoded,) = self.model.encode([Record(text, "the sequence")])
        ids = without_end(encoded)
        before = len(ids) - len(text)
        letters = encoded.letters[max(before, 0) : len(ids)]
        if before < 0 or not torch.equal(letters[:, 0], torch.arange(len(text))):
            raise ValueError(
                "saturation mutagenesis needs a tokenizer with one token for each base; give the variants as a table "
                "to `hf-ssm score` instead."
            )
        return ids[:before], ids[before:]

    def _causal(self, context: str, first: int, last: int) -> dict[str, np.ndarray]:
        """The scores of all four bases at each position, `(N, 4)`."""
        special, letters = self._encoded(context)
        first, last = first + len(special), last + len(special)
        ids = torch.cat([special, letters])
        reference = _Reference(ids, self._bases)
        sums = torch.zeros(last - first, len(BASES), dtype=torch.double)
        for place, base, values in self._mutants(ids, first, last, reference):
            sums[place - first, base] = values.sum()
        is_there = ids[first:last].unsqueeze(-1) == self._bases
        known = torch.stack([reference.tokens[place : place + self.horizon].sum() for place in range(first, last)])
        nexts = reference.bases[first:last] - reference.tokens[first:last].unsqueeze(-1)
        llr = (sums - known.unsqueeze(-1)).masked_fill(is_there, 0)
        return {"llr": llr.numpy(), "next_token": nexts.numpy()}

    def _mutants(
        self, ids: Tensor, first: int, last: int, reference: "_Reference"
    ) -> Iterator[tuple[int, int, Tensor]]:
        """Place, base and log-probabilities of the tokens from the place on of each mutant; reads the reference too."""
        assert self.likelihood is not None
        cache: Any = None
        read = 0
        for border in range(first, last if "llr" in self.columns else first, _BLOCK):
            stop = min(border + _BLOCK, last)
            mutants = [(place, base) for place in range(border, stop) for base in self._others(ids, place)]
            # There is no state before the first token.
            start = border if self.likelihood.shares else 0
            texts = [_mutant(ids[start : p + self.horizon], p - start, self._bases[base]) for p, base in mutants]
            if start:
                logits, cache = self.likelihood.read(ids[None, read:border], cache, keep=True)
                reference.add(logits[0])
                read = border
                found = self.likelihood.continued(cache, logits[:, -1], [0] * len(texts), texts, border)
            else:
                found = [F.pad(values, (1, 0)) for values in self.likelihood.full(texts)]
            for (place, base), values in zip(mutants, found, strict=True):
                yield place, base, values[place - start :]
        reference.add(self.likelihood.read(ids[None, read:], cache)[0][0])

    def _others(self, ids: Tensor, place: int) -> list[int]:
        """The bases that differ from the one at a place; none for another letter."""
        own = (self._bases == ids[place]).nonzero().flatten().tolist()
        return [base for base in range(len(BASES)) if own and base != own[0]]

    def _masked(self, context: str, first: int, last: int) -> dict[str, np.ndarray]:
        """Log-odds of all four bases against the reference at each position, `(N, 4)`."""
        mask = self.model.tokenizer.mask_token_id
        if mask is None:
            raise ValueError("masked log-odds need a tokenizer with a mask token.")
        texts, places = [], []
        for place in range(first, last):
            begin = max(0, place - self.window // 2)
            special, letters = self._encoded(context[begin : begin + self.window])
            places.append(len(special) + place - begin)
            ids = _mutant(torch.cat([special, letters]), places[-1], torch.tensor(mask))
            texts.append(Encoded(ids, torch.zeros_like(ids, dtype=torch.bool), ids.new_zeros(len(ids), 2)))
        found = torch.zeros(last - first, len(BASES), dtype=torch.double)
        for batch in self.model.run(texts):
            for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
                own = logits[places[row]].double().log_softmax(-1).cpu()[self._bases]
                at = BASES.find(context[first + row].upper())
                found[row] = own - own[at]
        return {"masked_log_odds": found.numpy()}


class _Reference:
    """Log-probabilities that the reference itself gives.

    Attributes:
        tokens: `(L,)`, of its own tokens; 0 for the first one, before which there is none.
        bases: `(L, 4)`, of the four bases in their places; NaN for the first.
    """

    def __init__(self, ids: Tensor, bases: Tensor):
        self._ids, self._bases = ids, bases
        self.tokens = torch.zeros(len(ids), dtype=torch.double)
        self.bases = torch.full((len(ids), len(bases)), float("nan"), dtype=torch.double)
        self._read = 0

    def add(self, logits: Tensor) -> None:
        """Take the logits `(n, V)` of the next n tokens."""
        first, self._read = self._read + 1, self._read + len(logits)
        values = logits.double().log_softmax(-1).cpu()[: len(self._ids) - first]
        self.tokens[first : self._read + 1] = values.gather(-1, self._ids[first : self._read + 1, None]).squeeze(-1)
        self.bases[first : self._read + 1] = values[:, self._bases]


def _mutant(ids: Tensor, place: int, token: Tensor) -> Tensor:
    changed = ids.clone()
    changed[place] = token
    return changed
