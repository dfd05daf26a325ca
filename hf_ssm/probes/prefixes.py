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
from hf_ssm.probes.evaluation import Evaluator, _chunks
from hf_ssm.probes.targets import Subject

__all__ = ["PrefixEvaluator", "evaluator_for"]

# Positions between two states that are kept, and the length from which this takes less time than reading all at once.
_BLOCK, _SHORTEST = 64, 128
# The same where long convolutions go on by their recurrence: fast by pieces of 64, slowly by what is less.
_RECURRENT_BLOCK, _SHORTEST_RECURRENT = 64, 256
# With fewer candidates for each block, the way from block to block costs more than it spares.
_FEW_PER_BLOCK = 2


class _Border(NamedTuple):
    """What is known in front of a position: the states of the layers, and the sum of the outputs, `(1, D)`."""

    cache: SSMCache
    total: Tensor


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
        self._walked: Tensor | None = None

    def after(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        if len(candidates) < _FEW_PER_BLOCK * len(self._borders):
            return super().after(masked, candidates)
        values = torch.empty(len(candidates), dtype=torch.float64)
        self._walk(masked, max(candidates))
        places = torch.tensor(candidates)
        for border, end in zip(self._borders, [*self._borders[1:], self.length], strict=True):
            inside = ((places >= border) & (places < end)).nonzero().squeeze(1)
            for chunk in _chunks(inside.tolist(), self._rows(self.length - border)):
                rows = masked.repeat(len(chunk), 1)
                rows[torch.arange(len(chunk)), places[chunk]] = True
                values[chunk] = self._values(rows) if border == 0 else self._go_on(rows, border)
        return values

    def _walk(self, masked: Tensor, last: int) -> None:
        """Have the states at all borders up to the position `last`."""
        if self._walked is not None:
            changed = (self._walked != masked).nonzero()
            first = int(changed[0]) if len(changed) else self.length
            self._known = {border: state for border, state in self._known.items() if border <= first}
        self._walked = masked.clone()
        wanted = [border for border in self._borders if 0 < border <= last and border not in self._known]
        start = max(self._known, default=0)
        for end in wanted:
            known = self._known.get(start)
            cache = SSMCache(self.model.config) if known is None else copy.deepcopy(known.cache)
            part = self._inputs(masked.unsqueeze(0)[:, :end], start)
            hidden = self.model.model(**part, past_key_values=cache, return_dict=True).last_hidden_state
            total = _total(hidden)
            self._known[end] = _Border(cache, total if known is None else known.total + total)
            self.tokens += end - start
            start = end

    def _go_on(self, rows: Tensor, border: int) -> Tensor:
        """The values of variants, `(B, R)` to `(B,)`, that are the sequence as it stands up to a border."""
        known = self._known[border]
        cache = copy.deepcopy(known.cache)
        cache.batch_repeat_interleave(len(rows))
        part = self._inputs(rows, border)
        hidden = self.model.model(**part, past_key_values=cache, return_dict=True).last_hidden_state
        self.evaluations += len(rows)
        self.tokens += len(rows) * (self.length - border)
        if not self._is_classifier:
            logits = self.model.lm_head(hidden[:, -1])
        elif _pooling(self.model) == "last":
            logits = self.model.classifier(hidden[:, -1])
        else:
            mean = (known.total + _total(hidden)) / self.length
            logits = self.model.classifier(mean.to(hidden.dtype))
        return self.target.value(logits).cpu()

    def _inputs(self, masked: Tensor, first: int = 0) -> dict[str, Tensor]:
        if masked.shape[1] == self.length:
            return super()._inputs(masked, first)
        # A piece of the sequence that ends before it does.
        end = masked.shape[1]
        whole = torch.nn.functional.pad(masked, (0, self.length - end))
        return {name: value[:, : end - first] for name, value in super()._inputs(whole, first).items()}


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
