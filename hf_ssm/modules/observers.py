"""Observers of a forward pass: what operators mix is shown to them, to compute τ, to rescale, or to record.

An observer travels with the rows (`Rows.observer`). Each block begins with `begin`, so that a block which activation
checkpointing computes twice has two observers, and returns `results` beside its hidden states.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.rows import Reading
from hf_ssm.utils.processes import Processes, all_processes

__all__ = ["Observer", "TauMeter", "measured_tau", "observing"]


class Observer:
    """The base of observers: nothing is returned."""

    def begin(self) -> "Observer":
        """The observer of one block."""
        return self

    def beside(self, other: "Observer | None") -> "Observer":
        """Both observers of the same blocks, such as a rescaling of a model that is asked for τ; this one is last."""
        return self if other is None else _Both(other, self)

    def processes(self, operator: SequenceOperator) -> Processes | None:
        """The processes whose rows are one batch; `None` for a batch of this process alone."""
        return None

    def __call__(self, operator: SequenceOperator, reading: Reading) -> Tensor | None:
        """Called by an operator before it mixes positions; returns a factor that its kernel is multiplied by."""
        raise NotImplementedError

    def skip(self) -> None:
        """Called by a mixer that has no operator, such as attention, instead."""

    def results(self) -> tuple[Tensor, ...]:
        """What the block returns beside its hidden states."""
        return ()


def measured_tau(operator: SequenceOperator, reading: Reading, processes: Processes | None) -> Tensor:
    """τ of what an operator mixes, a scalar in the precision of its parameters."""
    return operator.tau(reading, processes).to(next(operator.parameters()).dtype)


class TauMeter(Observer):
    """Computes τ of each block, the mean over its operators and their groups, with gradients; none of attention.

    In a distributed run (`torch.distributed`, several processes) the rows of all processes are one batch for τ in
    training mode; all processes have to compute τ together, as they do in data parallel training. In evaluation mode
    the rows of each process are a batch of their own.

    Source: Liu & Li 2024, eq. (6).
    """

    def __init__(self) -> None:
        self.taus: list[Tensor] = []
        self.is_skipped = False

    def begin(self) -> "TauMeter":
        return TauMeter()

    def processes(self, operator: SequenceOperator) -> Processes | None:
        return all_processes() if operator.training else None

    def __call__(self, operator: SequenceOperator, reading: Reading) -> None:
        self.taus.append(measured_tau(operator, reading, self.processes(operator)))

    def skip(self) -> None:
        self.is_skipped = True

    def results(self) -> tuple[Tensor, ...]:
        if self.is_skipped and not self.taus:
            return ()
        if not self.taus:
            raise ValueError(
                "τ needs operators that call `observe` (see `SequenceOperator`), but none in this block did."
            )
        return (torch.stack(self.taus).mean(),)


class _Both(Observer):
    """Two observers of the same blocks, such as a rescaling of a model that is asked for τ; the first one is first."""

    def __init__(self, first: Observer, second: Observer):
        self.first, self.second = first, second

    def begin(self) -> "_Both":
        return _Both(self.first.begin(), self.second.begin())

    def processes(self, operator: SequenceOperator) -> Processes | None:
        return self.first.processes(operator) or self.second.processes(operator)

    def __call__(self, operator: SequenceOperator, reading: Reading) -> Tensor | None:
        factor, other = self.first(operator, reading), self.second(operator, reading)
        return other if factor is None else factor

    def skip(self) -> None:
        self.first.skip()
        self.second.skip()

    def results(self) -> tuple[Tensor, ...]:
        return *self.first.results(), *self.second.results()


@contextmanager
def observing(blocks: Sequence[Any], observer: Observer) -> Iterator[None]:
    """Show what the operators of these blocks mix to an observer."""
    before = [block.observer for block in blocks]
    for block in blocks:
        block.observer = observer
    try:
        yield
    finally:
        for block, earlier in zip(blocks, before, strict=True):
            block.observer = earlier
