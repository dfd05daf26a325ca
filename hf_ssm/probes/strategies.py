"""The order in which the tokens of a sequence are masked: search strategies, and attributions as a ranking.

Legend: `M` maskable tokens, `R` positions that the model reads, `K` fills, `U` units (tokens or groups of neighbours).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_ssm.probes.attributions import ATTRIBUTIONS, AttributionSettings, attribute
from hf_ssm.probes.evaluators import Evaluator

__all__ = ["STRATEGIES", "SearchSettings", "canonical_strategy", "search"]

SEARCHES = ("exact", "shortlist", "one_shot")
STRATEGIES = (*SEARCHES, *ATTRIBUTIONS)

# Each token of a step after the first one may lower the value by this share of the value at the start.
_TOLERANCE = 0.001
# Scores are recomputed when this share of the units scored last is left.
RESCORE_SHARE = 0.75
# Fills of the first round of a step; each further round has twice as many, for half of the candidates.
_FIRST_FILLS = 4
# Most tokens that are masked one by one; longer sequences are masked in half as many groups of neighbours first, and
# the groups are divided into tokens when the best one lowers the value by this share of the start.
_MOST_UNITS, _DIVIDED_AT = 256, 0.05

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
        candidates: For "shortlist": number of units evaluated per step.
        masks_per_step: For "shortlist": largest share of the remaining units masked in one step.
        attribution: Settings of attributions.
    """

    strategy: str = "exact"
    candidates: int = 12
    masks_per_step: float = 0.01
    attribution: AttributionSettings = field(default_factory=AttributionSettings)

    def effective(self) -> dict[str, Any]:
        """The settings that influence the result."""
        settings: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy in ATTRIBUTIONS:
            return settings | self.attribution.effective(self.strategy)
        if self.strategy == "shortlist":
            settings |= {"candidates": self.candidates, "masks_per_step": self.masks_per_step}
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
        The positions in the order of masking; the values before the first masking and after each, `(M + 1, K)`,
        float64; and the scores of an attribution, `(M,)`, float64.
    """
    scores = None
    start = evaluator.start()
    if settings.strategy == "exact":
        order, values = _exact(evaluator, start, advance)
    elif settings.strategy == "shortlist":
        order, values = _shortlist(evaluator, settings, start, advance)
    else:
        if settings.strategy == "one_shot":
            left = evaluator.candidates.tolist()
            ranking = evaluator.values_if_masked(evaluator.masked([]), left, now=start).mean(1)
        else:
            scores = attribute(evaluator, settings.strategy, settings.attribution)
            # Tokens without a score come first.
            ranking = -scores.nan_to_num(-torch.inf)
        order = _ranked(ranking, evaluator.candidates.tolist())
        values = list(evaluator.along(evaluator.masked([]), order))
        advance(len(order))
    return order, torch.stack([start, *values]), scores


def _first_argmax(values: Tensor) -> int:
    """Index of the highest value, the first one in case of ties (which `torch.argmax` does not guarantee)."""
    return int((values == values.max()).nonzero()[0])


def _ranked(scores: Tensor, items: Sequence[Any]) -> list[Any]:
    """The items by descending score `(len(items),)`."""
    return [items[index] for index in scores.argsort(descending=True, stable=True).tolist()]


def _exact(evaluator: Evaluator, now: Tensor, advance: Advance) -> tuple[list[int], list[Tensor]]:
    """In each step the token whose masking leaves the highest mean value; the first one in case of ties.

    Source: Nishikawa & Suzuki 2025, Appendix K.
    """
    left = evaluator.candidates.tolist()
    order: list[int] = []
    reached: list[Tensor] = []
    while left:
        values = evaluator.values_if_masked(evaluator.masked(order), left, now=now)
        best = _first_argmax(values.mean(1))
        order.append(left.pop(best))
        now = values[best]
        reached.append(now)
        advance(1)
    return order, reached


def rounds(draws: int, candidates: int) -> list[tuple[int, int]]:
    """Numbers of fills and of the candidates that stay after them, of the rounds of a step, the last with all fills."""
    counts = []
    while draws > _FIRST_FILLS:
        counts.append(draws)
        draws //= 2
    return [(count, max(candidates >> number, 1)) for number, count in enumerate([draws, *reversed(counts)], start=1)]


def units_of(places: Sequence[int]) -> list[list[int]]:
    """Single tokens, or groups of neighbours of equal size."""
    size = 1 if len(places) <= _MOST_UNITS else -(-len(places) // (_MOST_UNITS // 2))
    return [list(places[first : first + size]) for first in range(0, len(places), size)]


def _shortlist(
    evaluator: Evaluator, settings: SearchSettings, start: Tensor, advance: Advance
) -> tuple[list[int], list[Tensor]]:
    """The exact search restricted, in each step, to the units with the highest scores, and with few fills at first.

    In long sequences, the runners-up of a step are masked one after the other for as long as the value holds.
    """
    order: list[int] = []
    reached: list[Tensor] = [start]
    tolerance, floor = _TOLERANCE * start.mean().abs(), start.mean() - _DIVIDED_AT * start.mean().abs()
    shortlist = _Shortlist(evaluator, settings, units_of(evaluator.candidates.tolist()))
    while shortlist.left:
        masked = evaluator.masked(order)
        best, now, runners_up = shortlist.step(masked, reached[-1])
        if now.mean() < floor and shortlist.has_groups:
            shortlist = _Shortlist(evaluator, settings, [[place] for unit in shortlist.left for place in unit])
            continue
        taken, values = [best], [now]
        more = int(settings.masks_per_step * len(shortlist.left)) - 1
        chain = runners_up[: max(more, 0)]
        if chain:
            along = evaluator.values(shortlist.variants(evaluator.masked([*order, *best]), chain, cumulative=True))
            means = torch.cat([now.unsqueeze(0), along]).mean(1)
            fallen = (means[1:] < means[:-1] - tolerance).nonzero()
            count = int(fallen[0]) if len(fallen) else len(chain)
            taken += chain[:count]
            values += list(along[:count])
        for unit, value in zip(taken, values, strict=True):
            shares = torch.arange(1, len(unit) + 1, dtype=torch.float64).unsqueeze(1) / len(unit)
            reached += list(torch.lerp(reached[-1], value, shares)) if len(unit) > 1 else [value]
            order += unit
            shortlist.left.remove(unit)
        advance(sum(map(len, taken)))
    return order, reached[1:]


class _Shortlist:
    """Chooses the units that a step evaluates, by their scores: the change of the value when the unit is masked.

    Scores are those of the last time that the unit was evaluated; all units are evaluated at the start, and again
    whenever a quarter of them is masked.

    Attributes:
        left: U lists of positions that are not masked yet.
    """

    def __init__(self, evaluator: Evaluator, settings: SearchSettings, units: list[list[int]]):
        self.evaluator = evaluator
        self.count = settings.candidates
        self.rounds = rounds(evaluator.draws, settings.candidates)
        self.left = units
        self.has_groups = any(len(unit) > 1 for unit in units)
        # By the first position of a unit.
        self.effects = torch.zeros(evaluator.length, dtype=torch.float64)
        self.due = len(units)

    def step(self, masked: Tensor, now: Tensor) -> tuple[list[int], Tensor, list[list[int]]]:
        """The best unit, its values `(K,)`, and all other units that were evaluated with all fills, the best first.

        Args:
            masked: `(R,)`, true where the sequence is masked already.
            now: `(K,)`, the values of the sequence with `masked`.
        """
        units = self.left
        if len(units) <= self.due:
            self.due = int(RESCORE_SHARE * len(units))
        else:
            firsts = torch.tensor([unit[0] for unit in units])
            units = sorted(_ranked(self.effects[firsts], units)[: self.count])
        values = torch.zeros(len(units), 0, dtype=torch.float64)
        for fills, staying in self.rounds:
            draws = range(values.shape[1], fills)
            values = torch.cat([values, self._values(masked, units, draws, now)], 1)
            means = values.mean(1)
            self.effects[torch.tensor([unit[0] for unit in units])] = means - now[:fills].mean()
            if fills < len(now) and staying < len(units):
                kept = sorted(_ranked(means, range(len(units)))[:staying])
                units, values = [units[index] for index in kept], values[kept]
        best = _first_argmax(means)
        return units[best], values[best], [unit for unit in _ranked(means, units) if unit != units[best]]

    def _values(self, masked: Tensor, units: list[list[int]], draws: Sequence[int], now: Tensor) -> Tensor:
        if self.has_groups:
            return self.evaluator.values(self.variants(masked, units), draws)
        return self.evaluator.values_if_masked(masked, [place for (place,) in units], draws, now)

    def variants(self, masked: Tensor, units: Sequence[list[int]], cumulative: bool = False) -> Tensor:
        """Variants `(U, R)` with each one of the units masked, or with each one and all before it."""
        rows = masked.repeat(len(units), 1)
        for number, unit in enumerate(units):
            rows[number:, unit] = True
        if not cumulative:
            for number, unit in enumerate(units):
                rows[number + 1 :, unit] = masked[unit]
        return rows
