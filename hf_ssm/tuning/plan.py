"""The six runs of `hf-ssm tune`: which settings they change, and which of them cannot exist."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_ssm.training.settings import SECTIONS, RunSettings, config_class, resolve
from hf_ssm.tuning.diagnosis import Recommendation
from hf_ssm.tuning.runs import Outcome

__all__ = ["Candidate", "combined", "joined", "learning_rate", "penalised", "single_changes", "with_changes"]

Changes = Mapping[str, Mapping[str, Any]]

DEFAULT = "default"
RATE_FACTOR, LOWER_FACTOR = 3.0, 1 / 3
PENALTY_SHARE = 0.01
"""λ Σ τ as a share of the task loss, fixed before any benchmark."""


@dataclass(frozen=True)
class Candidate:
    """Settings that are tried.

    Attributes:
        name: Its name, that of its folder.
        changes: What differs from the default settings, by section and field.
        missing: Why there is no such run; empty if there is one.
    """

    name: str
    changes: Changes
    missing: str = ""

    def describe(self) -> str:
        """The changes as `section.field=value`, or the reason why there are none."""
        if self.missing:
            return self.missing
        fields = [
            f"{section}.{name}={_short(value)}"
            for section in self.changes
            for name, value in self.changes[section].items()
        ]
        return " ".join(fields) or "the settings without changes"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def with_changes(settings: RunSettings, changes: Changes) -> RunSettings:
    """The settings with other values, which are checked. A value replaces that of another name of its field, too.

    Raises:
        ValueError: A value is of another type or out of range.
    """
    layers = {section: {**getattr(settings, section), **changes.get(section, {})} for section in SECTIONS}
    if settings.model["checkpoint"] is None:
        names = config_class(str(settings.model["family"])).attribute_map
        changed = changes.get("model", {})
        layers["model"] = {name: value for name, value in layers["model"].items() if names.get(name) not in changed}
    return resolve(layers)


def single_changes(settings: RunSettings, recommendations: Sequence[Recommendation]) -> list[Candidate]:
    """The first four runs: default, rescaled initialisation, step sizes from the data, three times the learning rate.

    Args:
        settings: The default.
        recommendations: Those of the diagnosis, of which "time_steps" has the step sizes.
    """
    loaded = settings.model["checkpoint"] is not None
    proposed = {recommendation.name: recommendation.changes for recommendation in recommendations}
    if loaded:
        rescale = Candidate("rescale", {}, "the weights of a checkpoint are not initialised")
        steps = Candidate("time_steps", {}, "the weights of a checkpoint are not initialised")
    else:
        is_set = settings.model.get("rescale_init", False)
        rescale = Candidate(
            "rescale", {"model": {"rescale_init": True}}, "the settings already have rescale_init" if is_set else ""
        )
        is_proposed = "time_steps" in proposed
        steps = Candidate(
            "time_steps",
            proposed.get("time_steps", {}),
            "" if is_proposed else "the diagnosis does not propose other step sizes",
        )
    rate = learning_rate(settings, RATE_FACTOR)
    return [Candidate(DEFAULT, {}), rescale, steps, rate]


def learning_rate(settings: RunSettings, factor: float, changes: Changes | None = None) -> Candidate:
    """A multiple of the learning rate of the settings, beside other changes."""
    rate = {"training": {"learning_rate": float(f"{settings.training['learning_rate'] * factor:.6g}")}}
    return Candidate(f"learning_rate_x{factor:.2g}", combined(changes or {}, rate))


def combined(*changes: Changes) -> dict[str, dict[str, Any]]:
    """All changes, later ones winning."""
    merged: dict[str, dict[str, Any]] = {}
    for sections in changes:
        for section, fields in sections.items():
            merged.setdefault(section, {}).update(fields)
    return merged


def best(candidates: Sequence[Candidate], outcomes: Mapping[str, Outcome]) -> Candidate:
    """The candidate with the best score, those that failed last; the earlier one of equal scores."""
    tried = [candidate for candidate in candidates if candidate.name in outcomes]
    return max(tried, key=lambda candidate: _rank(outcomes[candidate.name]))


def _rank(outcome: Outcome) -> tuple[bool, float]:
    return not outcome.failed, outcome.benefit


def joined(settings: RunSettings, candidates: Sequence[Candidate], outcomes: Mapping[str, Outcome]) -> Candidate:
    """The fifth run: all changes that helped.

    If fewer than two of them helped: the best run so far with another learning rate, ten times that of the default if
    the threefold one is the best, and a third of it otherwise.

    Args:
        settings: The default.
        candidates: The first four.
        outcomes: Of those that were run.
    """
    level = _rank(outcomes[DEFAULT])
    helped = [each for each in candidates if each.name in outcomes and _rank(outcomes[each.name]) > level]
    if len(helped) > 1:
        return Candidate("joined", combined(*(each.changes for each in helped)))
    leader = best(candidates, outcomes)
    factor = RATE_FACTOR * 10 / 3 if "training" in leader.changes else LOWER_FACTOR
    return learning_rate(settings, factor, leader.changes)


def penalised(settings: RunSettings, leader: Candidate, outcome: Outcome) -> Candidate:
    """The sixth run: the best one with the regulariser, λ Σ τ being about 1 % of the loss.

    λ = 0.01 · mean task loss of the run / the larger Σ τ of its start and its end, so that the penalty is no more than
    that at either end.

    Args:
        settings: The default.
        leader: The best candidate so far.
        outcome: Its outcome.
    """
    present = with_changes(settings, leader.changes).model.get("tau_weight", 0.0)
    if present:
        return Candidate("penalty", {}, f"the settings have model.tau_weight={present:g}")
    total = max(sum(outcome.tau_before), sum(outcome.tau_after))
    if outcome.train_loss is None or not 0 < outcome.train_loss < math.inf or not 0 < total < math.inf:
        return Candidate("penalty", {}, f"no λ follows from a loss of {outcome.train_loss} and a Σ τ of {total:g}")
    weight = float(f"{PENALTY_SHARE * outcome.train_loss / total:.3g}")
    return Candidate("penalty", combined(leader.changes, {"model": {"tau_weight": weight}}))
