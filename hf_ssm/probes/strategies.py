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
# With draws, a step evaluates about this many variants per draw of the curve, and fewer if there are fewer than eight
# times as many units; each unit with this many fills at least and this many times the draws at most.
_VARIANTS_PER_DRAW, _FEWEST_FILLS, _MOST_FILLS = 7, 2, 2
# Weight of the effects of earlier steps, per step.
_MEMORY = 0.85
# Most tokens that are masked one by one; longer sequences are masked in half as many groups of neighbours first, and
# the groups are divided into tokens when the best one lowers the value by this share of the start.
_MOST_UNITS, _DIVIDED_AT = 256, 0.05

# Called with the number of tokens masked since the last call.
Advance = Callable[[int], Any]
# Returns that many new fills `(count, R)` of a numbered step.
Draw = Callable[[int, int], Tensor]


def canonical_strategy(name: str) -> str:
    """The documented name of a strategy; "screened" is another name of "shortlist"."""
    return "shortlist" if name == "screened" else name


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search.

    Attributes:
        strategy: One of `STRATEGIES`.
        candidates: For "shortlist" with one token: number of units evaluated per step.
        masks_per_step: For "shortlist" with one token: largest share of the remaining units masked in one step.
        attribution: Settings of attributions.
    """

    strategy: str = "exact"
    candidates: int = 12
    masks_per_step: float = 0.01
    attribution: AttributionSettings = field(default_factory=AttributionSettings)

    def effective(self, redraws: bool) -> dict[str, Any]:
        """The settings that influence the result; `redraws`: whether "shortlist" draws new fills in each step."""
        settings: dict[str, Any] = {"strategy": self.strategy}
        if self.strategy in ATTRIBUTIONS:
            return settings | self.attribution.effective(self.strategy)
        if self.strategy == "shortlist" and redraws:
            return settings | {"fills": "new in each step"}
        if self.strategy == "shortlist":
            settings |= {"candidates": self.candidates, "masks_per_step": self.masks_per_step}
        return settings


def search(
    evaluator: Evaluator,
    settings: SearchSettings,
    advance: Advance = lambda count: None,
    draw: Draw | None = None,
) -> tuple[list[int], Tensor, Tensor | None]:
    """Mask all maskable tokens of a sequence.

    Args:
        evaluator: Evaluator of the sequence.
        settings: Settings of the search.
        advance: Progress callback.
        draw: Source of fresh fills, which "shortlist" needs for an evaluator with more than one fill.

    Returns:
        The positions in the order of masking; the values before the first masking and after each, `(M + 1, K)`,
        float64; and the scores of an attribution, `(M,)`, float64.
    """
    scores = None
    start = evaluator.start()
    if settings.strategy == "exact":
        order, values = _exact(evaluator, start, advance)
    elif settings.strategy == "shortlist" and evaluator.draws > 1:
        assert draw is not None
        order, values = _with_fresh_fills(evaluator, draw, start, advance)
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


def units_of(places: Sequence[int]) -> list[list[int]]:
    """Single tokens, or groups of neighbours of equal size."""
    size = 1 if len(places) <= _MOST_UNITS else -(-len(places) // (_MOST_UNITS // 2))
    return [list(places[first : first + size]) for first in range(0, len(places), size)]


def fills_of_step(draws: int, units: int, left: int) -> int:
    """Number of fresh fills of a step with this many of the units left, for K draws of the curve."""
    return min(
        max(round(min(_VARIANTS_PER_DRAW, units / 8) * draws / left), _FEWEST_FILLS), _MOST_FILLS * max(draws, 1)
    )


def _with_fresh_fills(
    evaluator: Evaluator, draw: Draw, start: Tensor, advance: Advance
) -> tuple[list[int], list[Tensor]]:
    """In each step the unit whose masking changes the value most favourably, of a mean over this and earlier steps.

    Each step has fresh fills, so the order cannot fit a few fills that it sees again and again, and the effects of
    earlier steps, with a weight that decays, still reduce the noise of few fills. The values of the order come from the
    fills of the evaluator, which the search does not see.
    """
    fills, draws = evaluator.fills, evaluator.draws
    assert fills is not None
    left = units_of(evaluator.candidates.tolist())
    # Effects by the first position of a unit, and the number of fills that they rest on.
    effects = torch.zeros(evaluator.length, dtype=torch.float64)
    weights = torch.zeros_like(effects)
    level, seen = start.mean(), 0.0
    floor = start.mean() - _DIVIDED_AT * start.mean().abs()
    order: list[int] = []
    units: list[list[int]] = []
    step = 0
    while left:
        count = fills_of_step(draws, len(units) + len(left), len(left))
        evaluator.redraw(draw(step, count))
        step += 1
        masked = evaluator.masked(order)
        now = evaluator.values(masked.unsqueeze(0))[0]
        level, seen = (_MEMORY * seen * level + now.sum()) / (_MEMORY * seen + count), _MEMORY * seen + count
        values = _values_of_units(evaluator, masked, left, now)
        firsts = torch.tensor([unit[0] for unit in left])
        known = _MEMORY * weights[firsts]
        weights[firsts] = known + count
        effects[firsts] = (known * effects[firsts] + (values - now).sum(1)) / weights[firsts]
        best = _first_argmax(effects[firsts])
        if level + effects[firsts[best]] < floor and any(len(unit) > 1 for unit in left):
            # Effects of groups say nothing about their tokens.
            weights.zero_()
            left = [[place] for unit in left for place in unit]
            continue
        units.append(left.pop(best))
        order += units[-1]
        advance(len(units[-1]))
    evaluator.redraw(fills)
    ends = evaluator.values(_variants(evaluator.masked([]), units, cumulative=True))
    return order, _between(units, start, ends)


def _values_of_units(evaluator: Evaluator, masked: Tensor, units: list[list[int]], now: Tensor) -> Tensor:
    """The values with each one of the units masked too, `(U, K)`."""
    if any(len(unit) > 1 for unit in units):
        return evaluator.values(_variants(masked, units))
    return evaluator.values_if_masked(masked, [place for (place,) in units], now=now)


def _between(units: Sequence[list[int]], start: Tensor, ends: Tensor) -> list[Tensor]:
    """The values after each token, interpolated within the units, from those after each unit `(U, K)`."""
    values = []
    for unit, before, after in zip(units, [start, *ends], ends, strict=False):
        shares = torch.arange(1, len(unit) + 1, dtype=torch.float64).unsqueeze(1) / len(unit)
        values += list(torch.lerp(before, after, shares)) if len(unit) > 1 else [after]
    return values


def _variants(masked: Tensor, units: Sequence[list[int]], cumulative: bool = False) -> Tensor:
    """Variants `(U, R)` with each one of the units masked, or with each one and all before it."""
    rows = masked.repeat(len(units), 1)
    for number, unit in enumerate(units):
        rows[number : None if cumulative else number + 1, unit] = True
    return rows


def _shortlist(
    evaluator: Evaluator, settings: SearchSettings, start: Tensor, advance: Advance
) -> tuple[list[int], list[Tensor]]:
    """The exact search with one token restricted, in each step, to the units with the highest scores.

    Scores are the changes of the value the last time that the unit was evaluated; all units are evaluated at the start,
    and again whenever a quarter of them is masked. In long sequences, the runners-up of a step are masked one after the
    other for as long as the value holds.
    """
    order: list[int] = []
    units: list[list[int]] = []
    ends: list[Tensor] = []
    now, tolerance = start, _TOLERANCE * start.mean().abs()
    floor = start.mean() - _DIVIDED_AT * start.mean().abs()
    left = units_of(evaluator.candidates.tolist())
    # By the first position of a unit.
    effects, due = torch.zeros(evaluator.length, dtype=torch.float64), len(left)
    while left:
        masked, tried, due_now = evaluator.masked(order), left, due
        if len(left) <= due:
            due_now = int(RESCORE_SHARE * len(left))
        else:
            tried = sorted(_ranked(effects[[unit[0] for unit in left]], left)[: settings.candidates])
        values = _values_of_units(evaluator, masked, tried, now)
        means = values.mean(1)
        effects[[unit[0] for unit in tried]] = means - now.mean()
        best, due = _first_argmax(means), due_now
        if means[best] < floor and any(len(unit) > 1 for unit in left):
            left = [[place] for unit in left for place in unit]
            due = len(left)
            continue
        runners_up = [unit for unit in _ranked(means, tried) if unit != tried[best]]
        taken, after = [tried[best]], [values[best]]
        chain = runners_up[: max(int(settings.masks_per_step * len(left)) - 1, 0)]
        if chain:
            along = evaluator.values(_variants(evaluator.masked([*order, *tried[best]]), chain, cumulative=True))
            means = torch.cat([after[0].unsqueeze(0), along]).mean(1)
            fallen = (means[1:] < means[:-1] - tolerance).nonzero()
            count = int(fallen[0]) if len(fallen) else len(chain)
            taken += chain[:count]
            after += list(along[:count])
        left = [unit for unit in left if unit not in taken]
        order += [place for unit in taken for place in unit]
        units, ends, now = units + taken, ends + after, after[-1]
        advance(sum(map(len, taken)))
    return order, _between(units, start, torch.stack(ends))
