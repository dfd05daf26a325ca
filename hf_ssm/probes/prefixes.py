"""The same values as `Evaluator` for causal models of hf_ssm, without reading again what stands before a candidate.

Legend: `R` positions that the model reads, `V` variants, `B` variants in one batch, `D` hidden size.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.models.cache import SSMCache
from hf_ssm.models.heads import SSMForCausalLM, SSMForSequenceClassification
from hf_ssm.modules.filters import StateSpaceFilter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.streaming_conv import StreamingConvolution, Taps
from hf_ssm.probes.evaluation import Evaluator, _chunks
from hf_ssm.probes.targets import Subject

__all__ = ["PrefixEvaluator", "evaluator_for"]

# Positions between two states that are kept, and the length from which this takes less time than reading all at once.
_BLOCK, _SHORTEST = 64, 128
# The same where long convolutions go on by their recurrence: fast by pieces of 64, slowly by what is less.
_RECURRENT_BLOCK, _SHORTEST_RECURRENT = 64, 256
# With fewer candidates for each block, the way from block to block costs more than it spares.
_FEW_PER_BLOCK = 2
# For the states of all variants.
_MOST_BYTES = 2**28


class _SharedPast:
    """A long convolution that all variants of a batch go on with, from one past of theirs: it is read once.

    In the place of the stream that has read that past, for a single piece.
    """

    def __init__(self, stream: StreamingConvolution):
        self._stream = stream
        # Outputs of the past at the positions that follow, `(1, L, D)`, and the taps for inputs there, `(D, L)`.
        self._past: Tensor | None = None
        self._taps: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "_SharedPast":
        return self

    def select(self, index: Tensor) -> None:
        """All rows are the same."""

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """As `StreamingConvolution.extend`."""
        if self._past is None or self._taps is None:
            self._taps = taps(u.shape[1])
            precise = torch.promote_types(u.dtype, self._taps.dtype)
            nothing = torch.zeros_like(u[:1], dtype=precise)
            self._past = copy.copy(self._stream).extend(nothing, taps)
        return (long_conv(u.to(self._past.dtype), self._taps).add_(self._past)).to(u.dtype)


class _Border(NamedTuple):
    """What is known in front of a position: the states of the layers, and the sum of the outputs, `(1, D)`.

    `shared` is the same cache with a `_SharedPast` for each stream.
    """

    cache: SSMCache
    shared: SSMCache
    total: Tensor


class _Rows(NamedTuple):
    """What is known in front of a position of variants, each with the mask at one of the `places` before it.

    A cache with a row for each, and the sums of their outputs and the last ones, `(V, D)`.
    """

    places: list[int]
    cache: SSMCache
    total: Tensor
    last: Tensor


class PrefixEvaluator(Evaluator):
    """Keeps the states of the sequence as it stands at borders between blocks.

    A candidate of a block goes on from the border in front of it. From one call to the next the states up to the first
    token that has changed stay. Without candidates in front, it costs about half the tokens of `Evaluator`.
    """

    def __init__(self, model: Any, subject: Subject, mask_id: int | None, max_tokens: int):
        super().__init__(model, subject, mask_id, max_tokens)
        self._is_classifier = isinstance(model, SSMForSequenceClassification)
        self._borders = _borders(self.length, _RECURRENT_BLOCK if _is_recurrent(model) else _BLOCK)
        self._known: dict[int, _Border] = {}
        self._own: dict[int, _Rows] = {}
        self._walked: Tensor | None = None

    def after(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        if len(candidates) < _FEW_PER_BLOCK * len(self._borders):
            return super().after(masked, candidates)
        self._walk(masked, max(candidates))
        if self._fits(len(candidates)):
            return self._after_together(masked, sorted(candidates), candidates)
        self._own = {}
        return self._after_each_border(masked, candidates)

    def _after_each_border(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        """Each candidate from the border in front of it to the end."""
        values = torch.empty(len(candidates), dtype=torch.float64)
        places = torch.tensor(candidates)
        for border, end in self._blocks():
            inside = ((places >= border) & (places < end)).nonzero().squeeze(1)
            for chunk in _chunks(inside.tolist(), self._rows(self.length - border)):
                rows = masked.repeat(len(chunk), 1)
                rows[torch.arange(len(chunk)), places[chunk]] = True
                values[chunk] = self._values(rows) if border == 0 else self._go_on(rows, border)
        return values

    def _after_together(self, masked: Tensor, places: list[int], candidates: Sequence[int]) -> Tensor:
        """All candidates block by block, from the last border before which their variants are as they were."""
        start = max((b for b, own in self._own.items() if own.places == _before(places, b)), default=0)
        rows = self._own.get(start)
        for border, end in self._blocks():
            if border < start or not _before(places, end):
                continue
            new = [place for place in places if border <= place < end]
            rows = self._through_block(self._with_new(rows, border, new), masked, border, end)
            if end < self.length:
                self._own[end] = rows
        assert rows is not None
        self.evaluations += len(places)
        values = dict(zip(rows.places, self._read(rows.total, rows.last).tolist(), strict=True))
        return torch.tensor([values[place] for place in candidates], dtype=torch.float64)

    def _fits(self, count: int) -> bool:
        """Whether there is room for the states of so many variants at all borders, and these are all they remember."""
        caches = [known.cache for known in self._known.values()]
        if not caches or any(state.streams for cache in caches for state in cache.states):
            # To take up a running convolution of each variant takes longer than to share the past of all.
            return False
        return _bytes(caches[0]) * count * len(self._borders) <= _MOST_BYTES

    def _with_new(self, rows: _Rows | None, border: int, new: list[int]) -> _Rows:
        """A copy that goes on by itself, and with it variants that are the sequence as it stands up to the border."""
        cache = SSMCache(self.model.config)
        if border == 0:
            return _Rows(new, cache, torch.zeros(()), torch.zeros(()))
        places, groups, totals = [], [], []
        if rows is not None:
            places, totals = [*rows.places], [rows.total]
            groups.append(rows.cache.rows(torch.arange(len(places))))
        if new:
            known = self._known[border]
            groups.append(known.cache.rows(torch.zeros(len(new), dtype=torch.long)))
            places += new
            totals.append(known.total.expand(len(new), -1))
        total = torch.cat(totals)
        _assemble(cache, groups, border, torch.full((len(places),), border, device=self.device))
        return _Rows(places, cache, total, total)

    def _through_block(self, rows: _Rows, masked: Tensor, border: int, end: int) -> _Rows:
        """The variants at the end of a block; the cache goes on."""
        variants = masked[:end].repeat(len(rows.places), 1)
        own = torch.arange(len(rows.places), device=self.device)
        variants[own, torch.tensor(rows.places, device=self.device)] = True
        chunks = list(own.split(self._rows(end - border)))
        caches = [rows.cache] if len(chunks) == 1 else [self._part(rows.cache, chunk) for chunk in chunks]
        totals, lasts = [], []
        for chunk, cache in zip(chunks, caches, strict=True):
            part = self._inputs(variants[chunk], border)
            hidden = self.model.model(**part, past_key_values=cache, return_dict=True).last_hidden_state
            totals.append(_total(hidden))
            lasts.append(hidden[:, -1])
        self.tokens += len(rows.places) * (end - border)
        cache = caches[0]
        if len(caches) > 1:
            cache = SSMCache(self.model.config)
            _assemble(cache, [list(part.states) for part in caches], end, torch.full_like(own, end))
        return _Rows(rows.places, cache, rows.total + torch.cat(totals), torch.cat(lasts))

    def _part(self, cache: SSMCache, rows: Tensor) -> SSMCache:
        part = SSMCache(self.model.config)
        if cache.length:
            _assemble(part, [cache.rows(rows)], cache.length, torch.full_like(rows, cache.length))
        return part

    def _blocks(self) -> list[tuple[int, int]]:
        return list(zip(self._borders, [*self._borders[1:], self.length], strict=True))

    def _read(self, total: Tensor, last: Tensor) -> Tensor:
        """The values of variants, of the sums of their outputs and of the last ones, `(B, D)`."""
        if not self._is_classifier:
            logits = self.model.lm_head(last)
        elif _pooling(self.model) == "last":
            logits = self.model.classifier(last)
        else:
            logits = self.model.classifier((total / self.length).to(last.dtype))
        return self.target.value(logits).cpu()

    def _walk(self, masked: Tensor, last: int) -> None:
        """Have the states at all borders up to the position `last`."""
        if self._walked is not None:
            changed = (self._walked != masked).nonzero()
            first = int(changed[0]) if len(changed) else self.length
            self._known = {border: state for border, state in self._known.items() if border <= first}
            self._own = {border: state for border, state in self._own.items() if border <= first}
        self._walked = masked.clone()
        wanted = [border for border in self._borders if 0 < border <= last and border not in self._known]
        start = max(self._known, default=0)
        for end in wanted:
            known = self._known.get(start)
            cache = SSMCache(self.model.config) if known is None else copy.deepcopy(known.cache)
            part = self._inputs(masked.unsqueeze(0)[:, :end], start)
            hidden = self.model.model(**part, past_key_values=cache, return_dict=True).last_hidden_state
            total = _total(hidden)
            self._known[end] = _Border(cache, _shared(cache), total if known is None else known.total + total)
            self.tokens += end - start
            start = end

    def _go_on(self, rows: Tensor, border: int) -> Tensor:
        """The values of variants, `(B, R)` to `(B,)`, that are the sequence as it stands up to a border."""
        known = self._known[border]
        cache = copy.deepcopy(known.shared)
        cache.batch_repeat_interleave(len(rows))
        part = self._inputs(rows, border)
        hidden = self.model.model(**part, past_key_values=cache, return_dict=True).last_hidden_state
        self.evaluations += len(rows)
        self.tokens += len(rows) * (self.length - border)
        return self._read(known.total + _total(hidden), hidden[:, -1])

    def _inputs(self, masked: Tensor, first: int = 0) -> dict[str, Tensor]:
        if masked.shape[1] == self.length:
            return super()._inputs(masked, first)
        # A piece of the sequence that ends before it does.
        end = masked.shape[1]
        whole = torch.nn.functional.pad(masked, (0, self.length - end))
        return {name: value[:, : end - first] for name, value in super()._inputs(whole, first).items()}


def _before(places: list[int], border: int) -> list[int]:
    return [place for place in places if place < border]


def _bytes(cache: SSMCache) -> int:
    return sum(tensor.nbytes for state in cache.states for tensor in state.tensors.values())


def _assemble(cache: SSMCache, groups: Sequence[Sequence[LayerState]], length: int, tokens: Tensor) -> None:
    """Make a new cache one of these groups of rows, which have read so many positions."""
    for index, layer in enumerate(cache.states):
        layer.assemble([states[index] for states in groups])
    cache.advance(length, tokens)


def _shared(cache: SSMCache) -> SSMCache:
    shared = copy.deepcopy(cache)
    for state in shared.states:
        streams: dict[str, Any] = {name: _SharedPast(stream) for name, stream in state.streams.items()}
        state.streams = streams
    return shared


def evaluator_for(model: Any, subject: Subject, mask_id: int | None, max_tokens: int) -> Evaluator:
    """The evaluator that does least work."""
    shortest = _SHORTEST_RECURRENT if _is_recurrent(model) else _SHORTEST
    fits = len(subject.read) >= shortest and _has_states(model, subject)
    return (PrefixEvaluator if fits else Evaluator)(model, subject, mask_id, max_tokens)


def _has_states(model: Any, subject: Subject) -> bool:
    """Whether the target can be had from the states of the layers before a position."""
    if isinstance(model, SSMForCausalLM):
        return subject.target.function is None
    if not isinstance(model, SSMForSequenceClassification) or model.config.looks_ahead is not None:
        return False
    return _pooling(model) in ("last", "mean")


def _total(hidden: Tensor) -> Tensor:
    """The sum over positions, `(B, D)`; half precision could not hold it."""
    return hidden.sum(dim=1, dtype=torch.promote_types(hidden.dtype, torch.float32))


def _pooling(model: Any) -> str:
    return model.config.pooling or model.config.default_pooling


def _is_recurrent(model: Any) -> bool:
    """Whether there is a long convolution that goes on by its recurrence."""
    return any(
        isinstance(part, LongConvolution) and isinstance(part.filter, StateSpaceFilter) and not part.has_sobolev_filter
        for part in model.modules()
    )


def _borders(length: int, block: int) -> list[int]:
    """0, and then in steps of a block such that the last block is a whole one."""
    return sorted({0, *range(length % block, length, block)})
