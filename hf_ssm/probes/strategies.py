"""The order in which the tokens of a sequence are masked: search strategies, and attributions as a ranking.

Legend: `M` maskable tokens, `R` positions that the model reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_ssm.probes.attributions import ATTRIBUTIONS, AttributionSettings, attribute
from hf_ssm.probes.evaluators import Evaluator

__all__ = ["SCORES", "STRATEGIES", "SearchSettings", "canonical_strategy", "search"]

SEARCHES = ("exact", "shortlist", "one_shot")
STRATEGIES = (*SEARCHES, *ATTRIBUTIONS)
SCORES = ("occlusion", "gradient")

# Each token of a step after the first one may lower the value by this share of the value at the start.
_TOLERANCE = 0.001
# Occlusion scores are recomputed when this share of the tokens scored last is left.
RESCORE_SHARE = 0.75

# Called with the number of tokens masked since the last call.
Advance = Callable[[int], Any]


def canonical_strategy(name: str) -> str:
    """The documented name of a strategy; "screened" is another name of "shortlist"."""
    return "shortlist" if name == "screened" else name


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
        strategy: One of `STRATEGIES`.
        candidates: For "shortlist": number of tokens evaluated per step.
        masks_per_step: For "shortlist": largest share of the remaining tokens masked in one step.
        score: For "shortlist" and "one_shot": "occlusion" or "gradient".
        attribution: Settings of attributions.
    """

    strategy: str = "exact"
    candidates: int = 12
    masks_per_step: float = 0.01
    score: str = "occlusion"
    attribution: AttributionSettings = field(default_factory=AttributionSettings)

    def effective(self) -> dict[str, Any]:
        """The settings that influence the result."""
        settings: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy in ATTRIBUTIONS:
            return settings | self.attribution.effective(self.strategy)
        if self.strategy == "shortlist":
            settings |= {"candidates": self.candidates, "masks_per_step": self.masks_per_step}
        if self.strategy != "exact":
            settings |= {"score": self.score}
        return settings


def search(
    evaluator: Evaluator, settings: SearchSettings, advance: Advance = lambda count: None
) -> tuple[list[int], Tensor, Tensor | None]:
    """Mask all maskable tokens of a sequence.

    Args:
        evaluator: Evaluator of the sequence.
        settings: Settings of the search.
        advance: Progress callback.

    Returns:
        The positions in the order of masking; the value before the first masking and after each, `(M + 1,)`, float64;
        and the scores of an attribution, `(M,)`, float64.
    """
    scores = None
    start = evaluator.one(evaluator.masked([]))
    if settings.strategy == "exact":
        order, values = _exact(evaluator, advance)
    elif settings.strategy == "shortlist":
        order, values = _shortlist(evaluator, settings, start, advance)
    elif settings.strategy == "one_shot":
        order, values = _one_shot(evaluator, settings.score, advance)
    else:
        scores = attribute(evaluator, settings.strategy, settings.attribution)
        # Tokens without a score come first.
        order, values = _in_order(evaluator, -scores.nan_to_num(-torch.inf), advance)
    return order, torch.tensor([start, *values], dtype=torch.float64), scores


def _first_argmax(values: Tensor) -> int:
    """Index of the highest value, the first one in case of ties (which `torch.argmax` does not guarantee)."""
    return int((values == values.max()).nonzero()[0])


def _exact(evaluator: Evaluator, advance: Advance) -> tuple[list[int], list[float]]:
    """In each step the token whose masking leaves the highest value; the first one in case of ties.

    Source: Nishikawa & Suzuki 2025, Appendix K.
    """
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[float] = []
    while left:
        values = evaluator.values_if_masked(evaluator.masked(order), left)
        best = _first_argmax(values)
        order.append(left.pop(best))
        reached.append(values[best].item())
        advance(1)
    return order, reached


def _shortlist(
    evaluator: Evaluator, settings: SearchSettings, start: float, advance: Advance
) -> tuple[list[int], list[float]]:
    """The exact search restricted, in each step, to the tokens with the highest scores.

    In long sequences, the runners-up of a step are masked one after the other for as long as the value holds.
    """
    shortlist = _Shortlist(evaluator, settings)
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[float] = [start]
    while left:
        places, values = shortlist.evaluated(evaluator.masked(order), left, reached[-1])
        first = _first_argmax(values)
        taken, gained = [places[first]], [values[first].item()]
        more = int(settings.masks_per_step * len(left)) - 1
        if more > 0:
            chain = [place for place in _ranked(values, places) if place != taken[0]][:more]
            along = evaluator.along(evaluator.masked(order + taken), chain) if chain else values[:0]
            before = torch.cat([values[first : first + 1], along])[:-1]
            fallen = (along < before - _TOLERANCE * abs(start)).nonzero()
            count = int(fallen[0]) if len(fallen) else len(chain)
            taken += chain[:count]
            gained += along[:count].tolist()
        order += taken
        reached += gained
        left = [place for place in left if place not in taken]
        advance(len(taken))
    return order, reached[1:]


class _Shortlist:
    """Chooses the tokens that a step evaluates, by their scores.

    Scores by gradients are recomputed in each step. Those by occlusion are the change of the value when one token is
    masked, as measured the last time that the token was evaluated; all tokens are evaluated at the start, and again
    whenever a quarter of them is masked.
    """

    def __init__(self, evaluator: Evaluator, settings: SearchSettings):
        self.evaluator = evaluator
        self.count = settings.candidates
        self.by_gradient = settings.score == "gradient"
        self.effects = torch.zeros(evaluator.length, dtype=torch.float64)
        self.due = evaluator.length

    def evaluated(self, masked: Tensor, left: Sequence[int], value: float) -> tuple[list[int], Tensor]:
        """The shortlisted positions in ascending order, and the value with each of them masked too, `(count,)`.

        Args:
            masked: `(R,)`, true where the sequence is masked already.
            left: Positions not masked yet.
            value: The value of the sequence with `masked`.
        """
        if not self.by_gradient and len(left) <= self.due:
            self.due = int(RESCORE_SHARE * len(left))
            places = list(left)
        else:
            scores = self.evaluator.scores(masked) if self.by_gradient else self.effects
            places = sorted(_ranked(scores[torch.tensor(left)], left)[: self.count])
        values = self.evaluator.values_if_masked(masked, places)
        self.effects[torch.tensor(places)] = values - value
        return places, values


def _one_shot(evaluator: Evaluator, score: str, advance: Advance) -> tuple[list[int], list[float]]:
    """A single ranking by the scores of the unmasked sequence."""
    left, masked = evaluator.candidates.tolist(), evaluator.masked([])
    scores = (
        evaluator.scores(masked)[torch.tensor(left)]
        if score == "gradient"
        else evaluator.values_if_masked(masked, left)
    )
    return _in_order(evaluator, scores, advance)


def _in_order(evaluator: Evaluator, scores: Tensor, advance: Advance) -> tuple[list[int], list[float]]:
    """All maskable tokens by descending score `(M,)`."""
    order = _ranked(scores, evaluator.candidates.tolist())
    values = evaluator.along(evaluator.masked([]), order)
    advance(len(order))
    return order, values.tolist()


def _ranked(scores: Tensor, places: Sequence[int]) -> list[int]:
    """The positions by descending score `(len(places),)`."""
    return [places[index] for index in scores.argsort(descending=True, stable=True).tolist()]
