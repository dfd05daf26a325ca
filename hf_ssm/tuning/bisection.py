"""Bisection of the frequency scale α by ordinary training runs (Yu et al. 2025, Appendix G)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_ssm.analysis.frequency import alpha_recommendation
from hf_ssm.theory.bisection import Bisection, bisect_minimum
from hf_ssm.training.settings import RunSettings, config_class
from hf_ssm.tuning.decision import Decision
from hf_ssm.tuning.plan import with_changes
from hf_ssm.tuning.runs import Outcome, Runner, Runs, decide_outcomes, run_in_process

__all__ = ["FrequencyScaleSearch", "bisect_frequency_scale", "largest_frequency_scale"]

LOWEST = 0.1
"""The smallest α of Yu et al. 2025, Table 2."""


@dataclass(frozen=True)
class FrequencyScaleSearch:
    """The trials of a bisection of α, and the comparison of the best one with the α of the settings.

    Attributes:
        settings: The settings that remain, with the α that remains.
        default: α of the settings that were given.
        best: α of the best trial, which may be `default`.
        trials: α to the outcome with the seed of the settings, in the order of the runs.
        interval: Ends of the last interval of the bisection.
        is_unimodal: Whether the scores of the trials have a single optimum, which the bisection takes for granted.
        decision: The comparison of `best` with `default` by fresh seeds; None where `default` is best.
    """

    settings: RunSettings
    default: float
    best: float
    trials: dict[float, Outcome]
    interval: tuple[float, float]
    is_unimodal: bool
    decision: Decision | None

    @property
    def adopted(self) -> float:
        """α that remains."""
        return self.best if self.decision is not None and self.decision.adopt else self.default

    @property
    def reason(self) -> str:
        """The decision in one sentence."""
        if self.decision is None:
            return f"no trial is better than the default α = {self.default:g}, so the default stays"
        return f"α = {self.best:.4g} against {self.default:g}: {self.decision.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {
            "adopted": self.adopted,
            "reason": self.reason,
            "interval": list(self.interval),
            "is_unimodal": self.is_unimodal,
            "trials": [{"frequency_scale": scale, **outcome.to_dict()} for scale, outcome in self.trials.items()],
        }

    def lines(self) -> list[str]:
        """A table of the trials by α, and the decision."""
        first = next(iter(self.trials.values()))
        rows = [f"{'α':>10}  {first.metric:>10}"]
        for scale in sorted(self.trials):
            outcome = self.trials[scale]
            note = "  diverged" if not math.isfinite(outcome.score) else "  no better than a constant" * outcome.failed
            rows.append(f"{scale:10.4g}  {outcome.score:10.4g}{note}")
        rows.append(f"The bisection ended with α in [{self.interval[0]:.3g}, {self.interval[1]:.3g}].")
        if not self.is_unimodal:
            rows.append("The scores have several optima, or are noisy: the bisection may have missed the best α.")
        return [*rows, f"{self.reason[0].upper()}{self.reason[1:]}."]


def largest_frequency_scale(settings: RunSettings) -> float:
    """α_max without data at the geometric mean of the step sizes of the settings, the upper end of a bisection.

    Yu et al. have one Δ; the Δ of a layer are spread over [time_step_min, time_step_max]. The geometric mean is our
    choice: at the largest Δ, α_max is below the values that the paper uses (3 to 5, with Δ up to 0.1 and 64 states).

    Raises:
        ValueError: The family has no frequencies or no range of step sizes, or the model is a checkpoint.

    Source: Yu et al. 2025, Appendix G; `hf_ssm.theory.frequency.alpha_max`.
    """
    if settings.model["checkpoint"] is not None:
        raise ValueError(
            f"model.checkpoint={settings.model['checkpoint']!r}: α scales the initialisation, but the weights of a "
            "checkpoint are already trained: leave the checkpoint out"
        )
    config = config_class(str(settings.model["family"]))(**settings.config_fields)
    return math.sqrt(math.prod(alpha_recommendation(config).data_free))


def bisect_frequency_scale(
    settings: RunSettings,
    folder: Path,
    *,
    run: Runner = run_in_process,
    low: float = LOWEST,
    high: float | None = None,
    factor: float = 2.0,
    seeds: int = 3,
    jobs: int = 1,
    report: Callable[[str, Outcome], None] | None = None,
) -> FrequencyScaleSearch:
    """Choose `model.frequency_scale` (α) by bisection, once the other settings are chosen.

    The trials are full runs with the seed of the settings: α of the settings, the upper end, then the points of
    `hf_ssm.theory.bisection.bisect_minimum`, on a logarithmic scale. The best trial and α of the settings then run with
    fresh seeds, as the seed of the trials would favour the best of them; α of the settings stays unless the mean gain
    exceeds two paired standard errors (`hf_ssm.tuning.decision.decide`). From 0.1 to 25, that is at most 8 trials and
    twice `seeds` runs more. Runs are compared on the validation split.

    A call that was interrupted continues: finished runs are not repeated.

    Args:
        settings: The settings of a run, as of `hf_ssm.training.settings.resolve`.
        folder: Gets a folder for each run, and `outcomes.json`.
        run: What trains; default: a run as of `hf-ssm train` in this process.
        low: Lower end of α; default 0.1.
        high: Upper end; default `largest_frequency_scale(settings)`.
        factor: Ratio of the ends at which the bisection stops; default 2.
        seeds: Number of fresh seeds, at least 2: those after the seed of the settings.
        jobs: Runs with fresh seeds side by side; the trials follow one another.
        report: Is called with the name and the outcome of each run.

    Raises:
        ValueError: An argument out of range, or settings, family and data do not fit together.
        OSError: A file cannot be read or written.

    Source: Yu et al. 2025, Appendix G.
    """
    if seeds < 2:
        raise ValueError(f"`seeds` must be at least 2, got {seeds}: one seed gives no standard error.")
    ceiling = largest_frequency_scale(settings)
    upper = ceiling if high is None else high
    if not low < upper:
        remedy = "lower `low`" if high is None else "give `high` above `low`"
        raise ValueError(f"`low`={low:g} is not below the upper end {upper:.4g} of α: {remedy}.")
    default = float(settings.model.get("frequency_scale", 1.0))
    seed = int(settings.training["seed"])
    trials: dict[float, Outcome] = {}
    with Runs(folder, run, jobs, report) as runs:

        def loss(scale: float) -> float:
            name = f"alpha{scale:.6g}-seed{seed}"
            trials[scale] = runs.outcomes({name: _with_scale(settings, scale, seed)})[name]
            return -trials[scale].benefit

        loss(default)
        found = bisect_minimum(loss, low, upper, factor=factor)
        best = min(trials, key=lambda scale: (trials[scale].failed, -trials[scale].benefit))
        decision = None
        if best != default:
            fresh = range(seed + 1, seed + 1 + seeds)
            names = {(scale, other): f"alpha{scale:.6g}-seed{other}" for scale in (default, best) for other in fresh}
            outcomes = runs.outcomes({name: _with_scale(settings, *key) for key, name in names.items()})
            of_default, of_best = ([outcomes[names[scale, other]] for other in fresh] for scale in (default, best))
            decision = decide_outcomes(of_default, of_best)
    kept = best if decision is not None and decision.adopt else default
    return FrequencyScaleSearch(
        settings=settings if kept == default else _with_scale(settings, kept, seed),
        default=default,
        best=best,
        trials=trials,
        interval=(found.low, found.high),
        is_unimodal=Bisection({scale: -outcome.benefit for scale, outcome in trials.items()}, low, upper).is_unimodal,
        decision=decision,
    )


def _with_scale(settings: RunSettings, scale: float, seed: int) -> RunSettings:
    return with_changes(settings, {"model": {"frequency_scale": scale}, "training": {"seed": seed}})
