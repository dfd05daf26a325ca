"""Six runs, a comparison with fresh seeds, and the settings that remain."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_ssm.training.folder import SETTINGS_NAME
from hf_ssm.training.settings import RunSettings
from hf_ssm.tuning.decision import Decision
from hf_ssm.tuning.diagnosis import Diagnosis, Recommendation, diagnose
from hf_ssm.tuning.plan import (
    DEFAULT,
    Candidate,
    best,
    combined,
    joined,
    penalised,
    single_changes,
    with_changes,
)
from hf_ssm.tuning.runs import Outcome, Runner, Runs, decide_outcomes, known_chance, run_in_process
from hf_ssm.utils.files import write_text_atomically

__all__ = ["Trial", "TuningResult", "tune"]

RUNS_NAME = "runs"


@dataclass(frozen=True)
class Trial:
    """A candidate and what came of it.

    Attributes:
        candidate: The settings that were tried, or the reason why they were not.
        outcome: That of the seed of the settings; None if there is no such run.
        fresh: Those of the fresh seeds; empty but for the default and the chosen candidate.
    """

    candidate: Candidate
    outcome: Outcome | None = None
    fresh: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class TuningResult:
    """The result of `tune`.

    Attributes:
        settings: The settings that remain: those of the winner with the seed of the default.
        winner: Name of the winner; "default" if the default stays.
        trials: The default first, then the other candidates in the order of the runs.
        decision: The comparison of the best candidate with the default; None if no candidate was better.
        compared: Name of that candidate; "default" if there was none.
        diagnosis: What was known before the first run.
        metric: Metric of the validation split by which runs were compared.
        chance: That of the best constant prediction; None if unknown.
    """

    settings: RunSettings
    winner: str
    trials: tuple[Trial, ...]
    decision: Decision | None
    compared: str
    diagnosis: Diagnosis
    metric: str
    chance: float | None

    @property
    def outcomes(self) -> list[Outcome]:
        """Those of all runs."""
        return [run for trial in self.trials for run in (trial.outcome, *trial.fresh) if run is not None]

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.outcomes)

    @property
    def seconds(self) -> float:
        """Time of all runs, also of those side by side, in seconds."""
        return sum(outcome.seconds for outcome in self.outcomes)

    @property
    def reason(self) -> str:
        """The decision in one sentence."""
        if self.decision is None:
            return "no candidate is better than the default: the default stays"
        return f"{self.compared}: {self.decision.reason}"

    def trial(self, name: str) -> Trial:
        """The trial of a name."""
        return next(trial for trial in self.trials if trial.candidate.name == name)


def tune(
    settings: RunSettings,
    folder: Path,
    *,
    run: Runner = run_in_process,
    seeds: int = 3,
    jobs: int = 1,
    diagnosis: Diagnosis | None = None,
    report: Callable[[str, Outcome], None] | None = None,
) -> TuningResult:
    """Try six settings at full length, and keep the default unless another one is clearly better.

    1. Six runs with the seed of the settings: the default, the rescaled initialisation, step sizes from the data, three
       times the learning rate, all changes that helped (`hf_ssm.tuning.plan.joined`), and the best run with a
       regulariser of about 1 % of the loss (`hf_ssm.tuning.plan.penalised`).
    2. The best of them and the default, with fresh seeds: the seed of step 1 would favour the best.
    3. The default stays unless the mean gain exceeds two paired standard errors (`hf_ssm.tuning.decision.decide`). It
       also stays, without step 2, if nothing was better in step 1.

    Runs are compared by the metric of the validation split that selects their checkpoints; nothing here reads the
    results of the test split. A call that was interrupted continues: finished runs are not repeated.

    Args:
        settings: The default settings of a run, as of `hf_ssm.training.settings.resolve`.
        folder: Gets `runs/NAME-seedS` for each run, `runs/outcomes.json`, and `train_config.yaml` with the settings
            that remain.
        run: What trains; default: a run as of `hf-ssm train` in this process.
        seeds: Number of fresh seeds, at least 2: those after the seed of the settings.
        jobs: Runs side by side, in processes of their own; `run` must then be a function of a module.
        diagnosis: Result of `hf_ssm.tuning.diagnosis.diagnose`, which is called by default.
        report: Is called with the name and the outcome of each run.

    Raises:
        ValueError: `seeds` is below 2, `jobs` below 1, or the settings or the data do not fit; there is no validation
            split.
        OSError: A file cannot be read or written.
    """
    if seeds < 2:
        raise ValueError(f"`seeds` must be at least 2, got {seeds}: one seed gives no standard error.")
    if diagnosis is None:
        diagnosis = diagnose(settings)
    first = int(settings.training["seed"])
    fresh: dict[str, tuple[Outcome, ...]] = {}
    decision = None
    with Runs(folder / RUNS_NAME, run, jobs, report) as runs:
        candidates, outcomes = _six_runs(settings, diagnosis.recommendations, runs, first)
        chosen = best(candidates, outcomes)
        if chosen.name != DEFAULT:
            fresh = _run(settings, (candidates[0], chosen), runs, range(first + 1, first + 1 + seeds))
            decision = decide_outcomes(fresh[DEFAULT], fresh[chosen.name])
    adopted = chosen if decision is not None and decision.adopt else candidates[0]
    kept = with_changes(settings, adopted.changes)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(folder / SETTINGS_NAME, kept.to_yaml())
    return TuningResult(
        settings=kept,
        winner=adopted.name,
        trials=tuple(Trial(each, outcomes.get(each.name), fresh.get(each.name, ())) for each in candidates),
        decision=decision,
        compared=chosen.name,
        diagnosis=diagnosis,
        metric=outcomes[DEFAULT].metric,
        chance=known_chance(outcomes.values()),
    )


def _six_runs(
    settings: RunSettings, recommendations: Sequence[Recommendation], runs: Runs, seed: int
) -> tuple[list[Candidate], dict[str, Outcome]]:
    """All candidates, and the outcomes of those that were run, by their names."""
    outcomes: dict[str, Outcome] = {}

    def run(candidates: Sequence[Candidate]) -> None:
        outcomes.update({name: seeded[0] for name, seeded in _run(settings, candidates, runs, [seed]).items()})

    candidates = single_changes(settings, recommendations)
    run(candidates)
    candidates.append(joined(settings, candidates, outcomes))
    run(candidates[-1:])
    leader = best(candidates, outcomes)
    candidates.append(penalised(settings, leader, outcomes[leader.name]))
    run(candidates[-1:])
    return candidates, outcomes


def _run(
    settings: RunSettings, candidates: Sequence[Candidate], runs: Runs, seeds: Sequence[int]
) -> dict[str, tuple[Outcome, ...]]:
    """The outcomes of candidates by their names, with each of the seeds; without those that cannot be run."""
    present = [candidate for candidate in candidates if not candidate.missing]
    done = runs.outcomes(
        {
            f"{each.name}-seed{seed}": with_changes(settings, combined(each.changes, {"training": {"seed": seed}}))
            for each in present
            for seed in seeds
        }
    )
    return {each.name: tuple(done[f"{each.name}-seed{seed}"] for seed in seeds) for each in present}
