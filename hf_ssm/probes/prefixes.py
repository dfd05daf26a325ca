"""The same values as `Evaluator` for causal models of hf_ssm, without reading again what stands before a candidate.

Legend: `R` positions that the model reads, `V` variants, `B` variants in one batch, `D` hidden size.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.heads import SSMForCausalLM, SSMForSequenceClassification
from hf_ssm.probes.evaluation import Evaluator, _chunks
from hf_ssm.probes.states import StateEvaluator, pooling_of, total
from hf_ssm.probes.streams import SharedPast
from hf_ssm.probes.targets import Subject
from hf_ssm.probes.variants import VariantEvaluator, bytes_of_a_row, is_recurrent

__all__ = ["PrefixEvaluator", "evaluator_for"]

# Positions between two states that are kept, and the length from which this takes less time than reading all at once.
_BLOCK, _SHORTEST = 50, 128
# The same where long convolutions go on by their recurrence: fast by pieces of 64, slowly by what is less.
_RECURRENT_BLOCK, _SHORTEST_RECURRENT = 64, 256
# With fewer candidates for each block, the way from block to block costs more than it spares.
_FEW_PER_BLOCK = 2
# For the states of all variants.
_MOST_BYTES = 2**28


class _Border(NamedTuple):
    """What is known in front of a position: the states of the layers, and the sum of the outputs, `(1, D)`.

    `shared` is the same cache with a `SharedPast` for each stream.
    """

    cache: SSMCache
    shared: SSMCache
    total: Tensor


class PrefixEvaluator(StateEvaluator):
    """Keeps the states of the sequence as it stands at borders between blocks.

    A candidate of a block goes on from the border in front of it. From one call to the next the states up to the first
    token that has changed stay. Without candidates in front, it costs about half the tokens of `Evaluator`.
    """

    _walked: Tensor | None = None
    _known: dict[int, _Border]

    def _from_states(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        self._walk(masked, max(candidates))
        values = torch.empty(len(candidates), dtype=torch.float64)
        places = torch.tensor(candidates)
        for border, end in self._blocks():
            inside = ((places >= border) & (places < end)).nonzero().squeeze(1)
            for chunk in _chunks(inside.tolist(), self._rows(self.length - border)):
                rows = masked.repeat(len(chunk), 1)
                rows[torch.arange(len(chunk)), places[chunk]] = True
                values[chunk] = self._values(rows) if border == 0 else self._go_on(rows, border)
        return values

    def _walk(self, masked: Tensor, last: int) -> None:
        """Have the states at all borders up to the position `last`."""
        if self._walked is None:
            self._known = {}
        else:
            changed = (self._walked != masked).nonzero()
            first = int(changed[0]) if len(changed) else self.length
            self._known = {border: state for border, state in self._known.items() if border <= first}
        self._walked = masked.clone()
        wanted = [border for border in self._borders if 0 < border <= last and border not in self._known]
        start = max(self._known, default=0)
        for end in wanted:
            known = self._known.get(start)
            cache = SSMCache(self.model.config) if known is None else copy.deepcopy(known.cache)
            added = total(self._run(masked.unsqueeze(0)[:, :end], start, cache))
            self._known[end] = _Border(cache, self._shared(cache), added if known is None else known.total + added)
            start = end

    def _shared(self, cache: SSMCache) -> SSMCache:
        shared = copy.deepcopy(cache)
        for layer, state in zip(self.model.model.layers, shared.states, strict=True):
            # Convolutions before the last one of the last layer are wanted whole.
            convolution = getattr(layer.mixer, "long_conv", None)
            is_last = state is shared.states[-1] and self._needs_last
            name_of_last = None if convolution is None or not is_last else f"long_conv_{convolution.groups - 1}"
            streams: dict[str, Any] = {
                name: SharedPast(stream, last_only=name == name_of_last) for name, stream in state.streams.items()
            }
            state.streams = streams
        return shared

    def _go_on(self, rows: Tensor, border: int) -> Tensor:
        """The values of variants, `(B, R)` to `(B,)`, that are the sequence as it stands up to a border."""
        known = self._known[border]
        cache = copy.deepcopy(known.shared)
        cache.batch_repeat_interleave(len(rows))
        hidden = self._run(rows, border, cache)
        self.evaluations += len(rows)
        return self._read(known.total + total(hidden), hidden[:, -1])


def evaluator_for(model: Any, subject: Subject, mask_id: int | None, max_tokens: int) -> Evaluator:
    """The evaluator that does least work."""
    if not _has_states(model, subject):
        return Evaluator(model, subject, mask_id, max_tokens)
    by_recurrence = is_recurrent(model)
    if len(subject.read) < (_SHORTEST_RECURRENT if by_recurrence else _SHORTEST):
        return Evaluator(model, subject, mask_id, max_tokens)
    block = _RECURRENT_BLOCK if by_recurrence else _BLOCK
    row = bytes_of_a_row(model)
    fits = row is not None and row * len(subject.candidates) * (len(subject.read) // block) <= _MOST_BYTES
    kind = VariantEvaluator if fits else PrefixEvaluator
    return kind(model, subject, mask_id, max_tokens, block, _FEW_PER_BLOCK)


def _has_states(model: Any, subject: Subject) -> bool:
    """Whether the target can be had from the states of the layers before a position."""
    if isinstance(model, SSMForCausalLM):
        return subject.target.function is None
    if not isinstance(model, SSMForSequenceClassification) or model.config.non_causal_flag is not None:
        return False
    return pooling_of(model) in ("last", "mean")
