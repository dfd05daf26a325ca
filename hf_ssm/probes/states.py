"""What evaluators that go on from states of the layers share.

Legend: `R` positions that the model reads, `V` variants, `B` variants in one batch, `D` hidden size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.heads import SSMForSequenceClassification
from hf_ssm.probes.evaluation import Evaluator
from hf_ssm.probes.targets import Subject

__all__ = ["StateEvaluator", "pooling_of", "total"]


class StateEvaluator(Evaluator):
    """Reads the sequence in blocks, between whose borders states are kept.

    Args:
        model, subject, mask_id, max_tokens: As `Evaluator` takes them.
        block: Positions of a block; the first one may be shorter.
        fewest: With fewer candidates per border than this, each is evaluated as a whole.
    """

    def __init__(self, model: Any, subject: Subject, mask_id: int | None, max_tokens: int, block: int, fewest: int):
        super().__init__(model, subject, mask_id, max_tokens)
        self._is_classifier = isinstance(model, SSMForSequenceClassification)
        # Of a mean, every position's output is wanted; else the last layer needs no more than what feeds its state.
        self._needs_last = not (self._is_classifier and pooling_of(model) == "mean")
        self._borders = sorted({0, *range(self.length % block, self.length, block)})
        self._fewest = fewest * len(self._borders)

    def after(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        # The way from block to block has its cost.
        if len(candidates) < self._fewest:
            return super().after(masked, candidates)
        return self._from_states(masked, candidates)

    def _from_states(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        raise NotImplementedError

    def _blocks(self) -> list[tuple[int, int]]:
        return list(zip(self._borders, [*self._borders[1:], self.length], strict=True))

    def _run(self, masked: Tensor, first: int, cache: SSMCache) -> Tensor:
        """The outputs of variants `(B, P)`, of which P positions are given, from `first` on; the cache goes on.

        Returns:
            `(B, P - first, D)`, or where the last position is all that is read `(B, 1, D)`.
        """
        cache.states[-1].last_position_only = self._needs_last
        self.tokens += len(masked) * (masked.shape[1] - first)
        outputs = self.model.model(**self._inputs(masked, first), past_key_values=cache, return_dict=True)
        hidden: Tensor = outputs.last_hidden_state
        return hidden

    def _read(self, total: Tensor, last: Tensor) -> Tensor:
        """The values of variants, of the sums of their outputs and of the last ones, `(B, D)`."""
        if not self._is_classifier:
            logits = self.model.lm_head(last)
        elif self._needs_last:
            logits = self.model.classifier(last)
        else:
            logits = self.model.classifier((total / self.length).to(last.dtype))
        return self.target.value(logits).cpu()

    def _inputs(self, masked: Tensor, first: int = 0) -> dict[str, Tensor]:
        if masked.shape[1] == self.length:
            return super()._inputs(masked, first)
        # A piece of the sequence that ends before it does.
        end = masked.shape[1]
        whole = torch.nn.functional.pad(masked, (0, self.length - end))
        return {name: value[:, : end - first] for name, value in super()._inputs(whole, first).items()}


def total(hidden: Tensor) -> Tensor:
    """The sum over positions, `(B, D)`; half precision could not hold it."""
    return hidden.sum(dim=1, dtype=torch.promote_types(hidden.dtype, torch.float32))


def pooling_of(model: Any) -> str:
    """How a classifier makes one vector of a sequence."""
    pooling: str = model.config.pooling or model.config.default_pooling
    return pooling
