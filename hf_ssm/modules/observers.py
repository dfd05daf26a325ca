"""Observers of a forward pass: operators show them what they mix, to compute τ, to rescale, or to record.

An observer travels with the rows (`Rows.observer`). Each block begins with `begin`, so a block that activation
checkpointing computes twice has two observers, and returns `results` beside its hidden states.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.rows import Reading
from hf_ssm.utils.processes import Processes, all_processes

__all__ = ["Observer", "TauMeter", "observing"]


class Observer:
    """Base of observers; it returns nothing."""

    def begin(self) -> "Observer":
        """The observer of one block."""
        return self

    def processes(self, operator: SequenceOperator) -> Processes | None:
        """The processes whose rows are one batch; `None` for a batch of this process alone."""
        return None

    def __call__(self, operator: SequenceOperator, reading: Reading) -> Tensor | None:
        """Called by an operator before it mixes positions; returns a factor that its kernel is multiplied by."""
        raise NotImplementedError

    def results(self) -> tuple[Tensor, ...]:
        """Tensors that the block returns beside its hidden states."""
        return ()


class TauMeter(Observer):
    """Computes τ of each block, the mean over its operators and their groups, with gradients; none of attention.

    In a distributed run (`torch.distributed`, several processes) the rows of all processes are one batch for τ in
    training mode; all processes have to compute τ together, as they do in data parallel training. In evaluation mode
    the rows of each process are a batch of their own.

    Source: Liu & Li 2024, eq. (6).
    """

    def __init__(self) -> None:
        self.taus: list[Tensor] = []

    def begin(self) -> "TauMeter":
        return TauMeter()

    def processes(self, operator: SequenceOperator) -> Processes | None:
        return all_processes() if operator.training else None

    def __call__(self, operator: SequenceOperator, reading: Reading) -> None:
        self.taus.append(operator.tau(reading, self.processes(operator)))

    def results(self) -> tuple[Tensor, ...]:
        return (torch.stack(self.taus).mean(),) if self.taus else ()


@contextmanager
def observing(model: nn.Module, observer: Observer) -> Iterator[None]:
    """Show what the operators of a model mix to an observer, in place of τ."""
    backbones: list[Any] = [module for module in model.modules() if hasattr(type(module), "observer")]
    for backbone in backbones:
        backbone.observer = observer
    try:
        yield
    finally:
        for backbone in backbones:
            backbone.observer = None
