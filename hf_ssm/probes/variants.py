"""All variants of a sequence go on from states of their own, which stay from one step of a search to the next.

Legend: `R` positions that the model reads, `V` variants, `D` hidden size.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache, SSMCacheLayer
from hf_ssm.models.base.heads import SSMForSequenceClassification
from hf_ssm.models.hyena.modeling_hyena import HyenaMixer
from hf_ssm.models.s4.modeling_s4 import S4Mixer
from hf_ssm.models.selective.mixer_selective import SelectiveMixer
from hf_ssm.modules.filters import StateSpaceFilter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.selective_scan import SelectiveScan
from hf_ssm.probes.scans import FirstScan
from hf_ssm.probes.states import StateEvaluator, pooling_of, total
from hf_ssm.probes.streams import LastSum, OneChange
from hf_ssm.probes.targets import Subject

__all__ = ["VariantEvaluator", "bytes_of_a_row", "is_recurrent", "runs_by_changes"]

# The stream of the long convolution of a layer that has but one.
_STREAM = "long_conv_0"
# So many rows of a batch spare more by a first row that they differ from than it costs.
_ROWS_FOR_ONE_MORE = 8


class _Rows(NamedTuple):
    """What is known in front of a border: of the sequence as it stands, and of it with the mask at one of `places`.

    A cache with a row for each, and the sums of their outputs, `(1 + V, D)`.
    """

    places: list[int]
    cache: SSMCache
    total: Tensor


class VariantEvaluator(StateEvaluator):
    """Keeps, at each border between blocks, the states of all variants and of the sequence as it stands.

    After a token was masked, the states in front of it stay as they are, and those of the sequence behind it are those
    that the variant with this token masked has had. So a call reads on from the last border before that token, or from
    that before the candidate, whichever comes later: with many candidates, about two fifths of the tokens that
    `Evaluator` reads.
    """

    def __init__(self, model: Any, subject: Subject, mask_id: int | None, max_tokens: int, block: int, fewest: int):
        super().__init__(model, subject, mask_id, max_tokens, block, fewest)
        self._by_changes = runs_by_changes(model)
        mixers = [layer.mixer for layer in model.model.layers]
        self._first = FirstScan(mixers[0]) if len(mixers) > 1 and isinstance(mixers[0], SelectiveMixer) else None
        self._own: dict[int, _Rows] = {}
        self._walked: Tensor | None = None

    def _from_states(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        places = sorted(candidates)
        start = self._last_border_as_it_was(masked, places)
        for border, end in self._blocks():
            if border >= start:
                rows, last = self._through_block(places, masked, border, end)
                self._own[end] = rows
        self._walked = masked.clone()
        del self._own[self.length]
        self.evaluations += len(places)
        found = self._read(rows.total, last)[-len(places) :]
        values = dict(zip(places, found.tolist(), strict=True))
        return torch.tensor([values[place] for place in candidates], dtype=torch.float64)

    def _last_border_as_it_was(self, masked: Tensor, places: list[int]) -> int:
        """Where to go on from; forgets what is known behind."""
        if self._walked is None:
            return 0
        changed = (self._walked != masked).nonzero()
        first = int(changed[0]) if len(changed) else self.length
        known = (b for b, own in self._own.items() if b <= first and set(own.places).issuperset(_before(places, b)))
        return max(known, default=0)

    def _through_block(self, places: list[int], masked: Tensor, border: int, end: int) -> tuple[_Rows, Tensor]:
        """What is known at the end of a block, and the last outputs, `(1 + V, D)`."""
        before = self._own.get(border)
        wanted = _before(places, end)
        # Those that are new were the sequence as it stands up to the border.
        numbers = {} if before is None else {place: row for row, place in enumerate(before.places, start=1)}
        index = torch.tensor([0, *(numbers.get(place, 0) for place in wanted)], device=self.device)
        at = torch.tensor([self.length, *wanted], device=self.device)
        caches: list[SSMCache] = []
        totals, lasts = [], []
        # Where variants are known by their differences from the first row, each batch has that one; it has to if their
        # convolutions are, and of a scan it may, at its cost.
        together = self._rows(end - border)
        added = int(self._by_changes or (self._first is not None and together >= _ROWS_FOR_ONE_MORE))
        # Nobody asks how the sequence as it stands ends.
        first = int(end == self.length and not added)
        for part in torch.arange(first, len(at), device=self.device).split(max(1, together - added)):
            twice = added if caches else 0
            part = F.pad(part, (twice, 0))
            cache = self._begun() if before is None else _taken(before.cache, index[part])
            hidden = self._run_part(masked[:end], at[part], border, cache)
            sums = total(hidden) if before is None else before.total[index[part]] + total(hidden)
            caches.append(cache)
            totals.append(sums[twice:])
            lasts.append(hidden[twice:, -1])
        return _Rows(wanted, _joined(caches, added), torch.cat(totals)), torch.cat(lasts)

    def _begun(self) -> SSMCache:
        cache = SSMCache(self.model.config)
        if self._by_changes:
            *first, last = zip(self.model.model.layers, cache.states, strict=True)
            for layer, state in first:
                streams: dict[str, Any] = state.streams
                streams[_STREAM] = OneChange(_reach(layer.mixer), self.length)
            of_last: dict[str, Any] = last[1].streams
            of_last[_STREAM] = LastSum(self.length)
        return cache

    def _run_part(self, masked: Tensor, at: Tensor, border: int, cache: SSMCache) -> Tensor:
        """As `_run` with the mask also at the place of each row, if that is within reach."""
        for state in cache.states:
            for stream in state.streams.values():
                if isinstance(stream, OneChange):
                    stream.places = at
        rows = masked.repeat(len(at), 1)
        inside = (at < self.length).nonzero().squeeze(1)
        rows[inside, at[inside]] = True
        if self._first is None or at[0] < self.length:
            return self._run(rows, border, cache)
        with self._first.standing_in(at, border):
            return self._run(rows, border, cache)


def runs_by_changes(model: Any) -> bool:
    """Whether a change spreads so simply that no variant needs a long convolution of its own.

    In the first layer it stays where it is up to the long convolution; of the last layer one position is read. Layers
    in between would need all that the variants are convolved with.
    """
    layers = model.model.layers
    if len(layers) > 2 or (isinstance(model, SSMForSequenceClassification) and pooling_of(model) == "mean"):
        return False
    mixers = [layer.mixer for layer in layers]
    return all(isinstance(mixer, (HyenaMixer, S4Mixer)) and mixer.long_conv.groups == 1 for mixer in mixers)


def is_recurrent(model: Any) -> bool:
    """Whether there is a long convolution that goes on by its recurrence."""
    convolutions = [part for part in model.modules() if isinstance(part, LongConvolution)]
    return not runs_by_changes(model) and any(_has_recurrence(part) for part in convolutions)


def bytes_of_a_row(model: Any) -> int | None:
    """Of all that the layers of a causal model remember of a variant; `None` where that grows with what is read."""
    operators = [part for part in model.modules() if isinstance(part, (LongConvolution, SelectiveScan))]
    if not runs_by_changes(model) and not all(_has_recurrence(part) for part in operators):
        return None
    cache = SSMCache(model.config)
    token = torch.zeros(1, 1, dtype=torch.long, device=model.get_input_embeddings().weight.device)
    model.model(token, past_key_values=cache)
    return sum(tensor.nbytes for state in cache.states for tensor in state.tensors.values())


def _has_recurrence(operator: SequenceOperator) -> bool:
    scans = not isinstance(operator, LongConvolution) or isinstance(operator.filter, StateSpaceFilter)
    return scans and not operator.has_sobolev_filter


def _reach(mixer: Any) -> int:
    """Positions at which the input of the long convolution feels one token."""
    return mixer.short_filter.kernel_size[0] if isinstance(mixer, HyenaMixer) else 1


def _before(places: list[int], border: int) -> list[int]:
    return [place for place in places if place < border]


def _taken(cache: SSMCache, rows: Tensor) -> SSMCache:
    """A cache of these rows, which goes on by itself."""
    taken, tokens = copy.copy(cache), cache.tokens_seen
    layers: list[Any] = cache.rows(rows)
    taken.layers = layers
    taken.tokens_seen = None if tokens is None else tokens[rows]
    return taken


def _joined(caches: Sequence[SSMCache], twice: int) -> SSMCache:
    """One cache of batches, of which all but the first begin with so many rows that the first one has."""
    if len(caches) == 1:
        return caches[0]
    joined = copy.copy(caches[0])
    rows = [torch.arange(twice if number else 0, cache.batch_size) for number, cache in enumerate(caches)]
    parts = [cache.rows(own) for cache, own in zip(caches, rows, strict=True)]
    layers: list[Any] = [SSMCacheLayer() for _ in parts[0]]
    joined.layers = layers
    for index, layer in enumerate(joined.states):
        layer.assemble([states[index] for states in parts])
    joined.tokens_seen = torch.full((sum(map(len, rows)),), joined.length)
    return joined
