"""Orders in which the tokens of a sequence are masked, by how little the masking of each harms.

Legend: `M` tokens that can be masked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_ssm.probes.evaluation import Evaluator

__all__ = ["STRATEGIES", "Choices", "search"]

STRATEGIES = ("exact", "screened", "one_shot")
SCORES = ("occlusion", "gradient")

# By what share of the value at the start a step that masks several may lower it.
_STEP_MAY_COST = 0.05

# Called with the number of tokens that were masked just now.
Advance = Callable[[int], Any]


@dataclass(frozen=True)
class Choices:
    """How to search.

    Attributes:
        strategy: One of `STRATEGIES`.
        candidates: `screened`: how many are evaluated where the scores do not decide.
        masks_per_step: `screened`: the share of the tokens left that one step may mask.
        score: `screened` and `one_shot`: "occlusion" or "gradient".
    """

    strategy: str = "exact"
    candidates: int = 8
    masks_per_step: float = 0.05
    score: str = "occlusion"

    def settings(self) -> dict[str, Any]:
        """Those that have a say in the result."""
        found: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy == "screened":
            found |= {"candidates": self.candidates, "masks_per_step": self.masks_per_step}
        if self.strategy != "exact":
            found |= {"score": self.score}
        return found


def search(evaluator: Evaluator, choices: Choices, advance: Advance = lambda count: None) -> tuple[list[int], Tensor]:
    """Mask all tokens that can be masked.

    Args:
        evaluator: Of the sequence.
        choices: How.
        advance: Told of progress.

    Returns:
        The positions in the order in which they were masked, and the value before and after each, `(M + 1,)`, float64.
    """
    start = evaluator.one(evaluator.masked([]))
    if choices.strategy == "exact":
        order, values = _exact(evaluator, advance)
    elif choices.strategy == "screened":
        order, values = _screened(evaluator, choices, start, advance)
    else:
        order, values = _one_shot(evaluator, choices.score, advance)
    return order, torch.tensor([start, *values], dtype=torch.float64)


def _highest(values: Tensor) -> int:
    """Where the highest value is, the first of equals (which `torch.argmax` does not promise)."""
    return int((values == values.max()).nonzero()[0])


def _exact(evaluator: Evaluator, advance: Advance) -> tuple[list[int], list[float]]:
    """At each step the token whose masking leaves the value highest; of equals the first.

    Source: Nishikawa & Suzuki 2025, Appendix K.
    """
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[float] = []
    while left:
        values = evaluator.after(evaluator.masked(order), left)
        best = _highest(values)
        order.append(left.pop(best))
        reached.append(values[best].item())
        advance(1)
    return order, reached


def _screened(evaluator: Evaluator, choices: Choices, start: float, advance: Advance) -> tuple[list[int], list[float]]:
    """Scores propose, the model decides.

    While there are many, the tokens with the best scores are masked one after the other, up to where the value falls by
    more than a step may cost. Where it does so at the first, or where there are few left, the best `candidates` are
    evaluated, and the best of them is masked.
    """
    scores = (_Gradients if choices.score == "gradient" else _Occlusions)(evaluator)
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[float] = [start]
    while left:
        masked, now = evaluator.masked(order), reached[-1]
        ranked = _ranked(scores.of(masked, left, now), left)
        count = int(choices.masks_per_step * len(left))
        taken: list[int] = []
        if count > 1:
            values = evaluator.along(masked, ranked[:count])
            fallen = (values < now - _STEP_MAY_COST * abs(start)).nonzero()
            taken = ranked[: int(fallen[0]) if len(fallen) else count]
        if not taken:
            shortlist = sorted(ranked[: choices.candidates])
            values = evaluator.after(masked, shortlist)
            scores.learn(shortlist, values, now)
            best = _highest(values)
            taken, values = [shortlist[best]], values[best:]
        order += taken
        reached += values[: len(taken)].tolist()
        gone = set(taken)
        left = [place for place in left if place not in gone]
        advance(len(taken))
    return order, reached[1:]


class _Gradients:
    """Scores of first order, new at each step."""

    def __init__(self, evaluator: Evaluator):
        self.evaluator = evaluator

    def of(self, masked: Tensor, left: Sequence[int], now: float) -> Tensor:
        """By position; `now` is the value before anything more is masked."""
        return self.evaluator.scores(masked)

    def learn(self, places: Sequence[int], values: Tensor, now: float) -> None:
        """Take in what the masking of each of these places alone would give."""


class _Occlusions(_Gradients):
    """By how much the value rose when each token alone was masked, the last time that this was asked.

    All are asked at the start, and again whenever two thirds of them are gone.
    """

    def __init__(self, evaluator: Evaluator):
        super().__init__(evaluator)
        self.effects = torch.zeros(evaluator.length, dtype=torch.float64)
        self.due = evaluator.length

    def of(self, masked: Tensor, left: Sequence[int], now: float) -> Tensor:
        if len(left) <= self.due:
            self.learn(left, self.evaluator.after(masked, left), now)
            self.due = len(left) // 3
        return self.effects

    def learn(self, places: Sequence[int], values: Tensor, now: float) -> None:
        self.effects[torch.tensor(places)] = values - now


def _one_shot(evaluator: Evaluator, score: str, advance: Advance) -> tuple[list[int], list[float]]:
    """A single ranking, by the gradient or by the masking of each token alone."""
    left, masked = evaluator.candidates.tolist(), evaluator.masked([])
    if score == "gradient":
        order = _ranked(evaluator.scores(masked), left)
    else:
        values = evaluator.after(masked, left)
        order = [left[index] for index in values.argsort(descending=True, stable=True).tolist()]
    values = evaluator.along(masked, order)
    advance(len(order))
    return order, values.tolist()


def _ranked(scores: Tensor, left: Sequence[int]) -> list[int]:
    """The positions left, the highest score first."""
    found = scores[torch.tensor(left)].argsort(descending=True, stable=True)
    return [left[index] for index in found.tolist()]
