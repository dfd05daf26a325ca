"""A search with optuna, a comparison with fresh seeds, and the settings that remain."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_ssm.training.folder import SETTINGS_NAME
from hf_ssm.training.settings import RunSettings
from hf_ssm.tuning.decision import Decision, decide
from hf_ssm.tuning.diagnosis import Diagnosis, diagnose
from hf_ssm.tuning.runs import Outcome, Runner, Runs, run_in_process
from hf_ssm.tuning.space import SearchSpace, check_optuna
from hf_ssm.utils.files import write_text_atomically

__all__ = ["DEFAULT", "Trial", "TuningResult", "tune"]

DEFAULT = "default"


@dataclass(frozen=True)
class Trial:
    """Settings that were tried.

    Attributes:
        name: "default", or "trial0", "trial1" and so on.
        changes: The values that differ from the default settings, by section and field.
        outcome: The outcome with the seed of the settings.
        fresh: The outcomes with the fresh seeds; empty but for the default and the best trial.
    """

    name: str
    changes: Mapping[str, Mapping[str, Any]]
    outcome: Outcome
    fresh: tuple[Outcome, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all runs."""
        return self.outcome, *self.fresh


@dataclass(frozen=True)
class TuningResult:
    """The result of `tune`.

    Attributes:
        settings: The settings that remain: those of the winner with the seed of the default.
        winner: Name of the winner; "default" if the default stays.
        trials: The default first, then the trials in the order of the runs.
        decision: The comparison of the best trial with the default; None if no trial was better.
        compared: Name of that trial; "default" if there was none.
        diagnosis: The diagnosis before the first run.
    """

    settings: RunSettings
    winner: str
    trials: tuple[Trial, ...]
    decision: Decision | None
    compared: str
    diagnosis: Diagnosis

    @property
    def reason(self) -> str:
        """The decision in one sentence."""
        if self.decision is None:
            return "no trial is better than the default: the default stays"
        return f"{self.compared}: {self.decision.reason}"


def tune(
    settings: RunSettings,
    folder: Path,
    *,
    run: Runner = run_in_process,
    trials: int = 5,
    seeds: int = 3,
    space: SearchSpace | None = None,
    diagnosis: Diagnosis | None = None,
    report: Callable[[str, Outcome], None] | None = None,
) -> TuningResult:
    """Search for better settings with optuna, and keep the default unless they are clearly better.

    1. The default and each trial are trained with the seed of the settings. If the diagnosis recommends changes, the
       first trial is the default with these changes. optuna chooses the others (`TPESampler`: ten are random).
    2. The best trial and the default are trained with fresh seeds: the seed of step 1 would favour the best trial.
    3. The default stays unless the mean gain exceeds two paired standard errors (`hf_ssm.tuning.decision.decide`). It
       also stays, without step 2, if no trial was better in step 1.

    Runs are compared by the metric of the validation split that selects their checkpoints; the test split has no part.
    A call that was interrupted continues: the search repeats its steps, but no finished run, and an interrupted run
    continues from its last checkpoint.

    Args:
        settings: The default settings of a run, as of `hf_ssm.training.settings.resolve`.
        folder: Gets `runs/NAME-seedS`, `runs/outcomes.json`, and `train_config.yaml` with the settings that remain.
        run: The function that trains; default: a run as of `hf-ssm train` in this process.
        trials: Number of trials besides the default.
        seeds: Number of fresh seeds, at least 2: those after the seed of the settings.
        space: The search space; default: learning rate, step sizes, rescaling and regulariser.
        diagnosis: Result of `hf_ssm.tuning.diagnosis.diagnose`, which is called by default.
        report: Is called with the name and the outcome of each run.

    Raises:
        ValueError: `seeds` is below 2, `trials` below 1, settings and data do not fit, or no validation split.
        ImportError: optuna is not installed.
    """
    check_optuna()
    import optuna

    if seeds < 2:
        raise ValueError(f"`seeds` must be at least 2, got {seeds}: one seed gives no standard error.")
    if trials < 1:
        raise ValueError(f"`trials` must be a positive number, got {trials}.")
    space, diagnosis = space or SearchSpace.of_run(settings), diagnosis or diagnose(settings)
    first = int(settings.training["seed"])
    runs = Runs(folder / "runs", run, report)
    changes: dict[str, dict[str, dict[str, Any]]] = {DEFAULT: {}}

    def trained(name: str, seed: int) -> Outcome:
        seeded = settings.with_changes(changes[name]).with_changes({"training": {"seed": seed}})
        return runs.outcome(f"{name}-seed{seed}", seeded)

    outcomes = {DEFAULT: trained(DEFAULT, first)}
    # With its seed, the sampler of an interrupted search draws the same trials again; their outcomes are stored.
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=first))
    recommended = {name: value for each in diagnosis.recommendations for name, value in each.changes["model"].items()}
    if recommended:
        study.enqueue_trial(space.hyperparameters(recommended))
    for name in (f"trial{number}" for number in range(trials)):
        trial = study.ask()
        space(trial)
        changes[name] = space.settings(trial.params)
        outcomes[name] = trained(name, first)
        if math.isfinite(outcomes[name].score):
            study.tell(trial, outcomes[name].benefit)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    # The earlier one of equal outcomes, which is the default if no trial is better.
    compared = max(outcomes, key=lambda name: (not outcomes[name].failed, outcomes[name].benefit))
    fresh: dict[str, tuple[Outcome, ...]] = {}
    decision = None
    if compared != DEFAULT:
        others = range(first + 1, first + 1 + seeds)
        fresh = {name: tuple(trained(name, seed) for seed in others) for name in (DEFAULT, compared)}
        decision = decide(
            *([outcome.score for outcome in each] for each in fresh.values()),
            greater_is_better=outcomes[DEFAULT].greater_is_better,
            failed_default=[outcome.failed for outcome in fresh[DEFAULT]],
            failed_candidate=[outcome.failed for outcome in fresh[compared]],
            baseline=next((run.chance for each in fresh.values() for run in each if run.chance is not None), None),
        )
    winner = compared if decision is not None and decision.adopt else DEFAULT
    kept = settings.with_changes(changes[winner])
    write_text_atomically(folder / SETTINGS_NAME, kept.to_yaml())
    tried = tuple(Trial(name, changes[name], outcome, fresh.get(name, ())) for name, outcome in outcomes.items())
    return TuningResult(kept, winner, tried, decision, compared, diagnosis)
