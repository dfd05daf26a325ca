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

# By what share of the value at the start each but the first token of a step may lower it.
_NEXT_MAY_COST = 0.001
# All tokens are asked again when only this share of those asked the last time is left.
_ASKED_AGAIN = 0.75

# Called with the number of tokens that were masked just now.
Advance = Callable[[int], Any]


@dataclass(frozen=True)
class Choices:
    """How to search.

    Attributes:
        strategy: One of `STRATEGIES`.
        candidates: `screened`: how many are evaluated in a step.
        masks_per_step: `screened`: the share of the tokens left that one step may mask.
        score: `screened` and `one_shot`: "occlusion" or "gradient".
    """

    strategy: str = "exact"
    candidates: int = 12
    masks_per_step: float = 0.01
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
    """Scores propose, the model decides: the same search among the few that the scores put first.

    While there are many, the best of the evaluated are masked one after the other, as far as the value holds.
    """
    scores = (_Gradients if choices.score == "gradient" else _Occlusions)(evaluator, choices.candidates)
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[float] = [start]
    while left:
        masked = evaluator.masked(order)
        shortlist, values = scores.shortlist(masked, left, reached[-1])
        first = _highest(values)
        taken, gained = [shortlist[first]], [values[first].item()]
        more = int(choices.masks_per_step * len(left)) - 1
        if more > 0:
            ranked = [shortlist[index] for index in values.argsort(descending=True, stable=True).tolist()]
            chain = [place for place in ranked if place != taken[0]][:more]
            along = evaluator.along(evaluator.masked(order + taken), chain) if chain else values[:0]
            before = torch.cat([values[first : first + 1], along])[:-1]
            fallen = (along < before - _NEXT_MAY_COST * abs(start)).nonzero()
            count = int(fallen[0]) if len(fallen) else len(chain)
            taken += chain[:count]
            gained += along[:count].tolist()
        order += taken
        reached += gained
        gone = set(taken)
        left = [place for place in left if place not in gone]
        advance(len(taken))
    return order, reached[1:]


class _Gradients:
    """Those with the best scores of first order, which are new at each step."""

    def __init__(self, evaluator: Evaluator, count: int):
        self.evaluator = evaluator
        self.count = count

    def shortlist(self, masked: Tensor, left: Sequence[int], now: float) -> tuple[list[int], Tensor]:
        """The positions, in their order, and the values when each alone is masked too; `now` is the value before."""
        return self._best(self.evaluator.scores(masked), masked, left)

    def _best(self, scores: Tensor, masked: Tensor, left: Sequence[int]) -> tuple[list[int], Tensor]:
        places = sorted(_ranked(scores, left)[: self.count])
        return places, self.evaluator.after(masked, places)


class _Occlusions(_Gradients):
    """Those whose masking alone raised the value most, the last time that this was asked.

    All are asked at the start, and again whenever a quarter of them is gone.
    """

    def __init__(self, evaluator: Evaluator, count: int):
        super().__init__(evaluator, count)
        self.effects = torch.zeros(evaluator.length, dtype=torch.float64)
        self.due = evaluator.length

    def shortlist(self, masked: Tensor, left: Sequence[int], now: float) -> tuple[list[int], Tensor]:
        """As that of the gradients."""
        if len(left) <= self.due:
            self.due = int(_ASKED_AGAIN * len(left))
            places, values = list(left), self.evaluator.after(masked, left)
        else:
            places, values = self._best(self.effects, masked, left)
        self.effects[torch.tensor(places)] = values - now
        return places, values


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
