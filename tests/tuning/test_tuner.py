"""The six runs, the comparison with fresh seeds and the files of a tuning, with simulated runs."""

import csv
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hf_ssm.training.settings import RunSettings, read_settings_file, resolve
from hf_ssm.tuning import Baseline, Outcome, Recommendation, TuningResult, tune
from hf_ssm.tuning.plan import with_changes
from hf_ssm.tuning.report import rows_of, table_lines, write_report

BASE = resolve({"data": {"dataset": "planted-motifs"}, "model": {"family": "s4"}, "training": {"seed": 5}})


STEPS = Recommendation("time_steps", {"model": {"time_step_min": 0.02, "time_step_max": 1.0}}, "simulated")


@dataclass
class Known:
    """A diagnosis."""

    recommendations: tuple[Recommendation, ...] = (STEPS,)
    baseline = Baseline("validation", "accuracy", True, 0.5, 0.55, "ridge regression")

    def to_dict(self) -> dict[str, Any]:
        return {"simulated": True}

    def lines(self) -> list[str]:
        return ["simulated"]


@dataclass
class Simulation:
    """Accuracies with additive effects of the changes, and noise by seed that all settings share, or a part of it.

    Attributes:
        effects: Effects of "rescale", "time_steps", "x3" (learning rate), "x10", "x1/3" and "penalty".
        own_noise: By how much the accuracy of settings other than the default varies with the seed.
        diverging: Names of the effects with which training diverges.
        needed: The effect without which training diverges.
    """

    effects: dict[str, float] = field(default_factory=dict)
    own_noise: float = 0.0
    diverging: tuple[str, ...] = ()
    needed: str = ""
    calls: list[tuple[RunSettings, Path]] = field(default_factory=list)

    def __call__(self, settings: RunSettings, folder: Path) -> Outcome:
        self.calls.append((settings, folder))
        seed, model = settings.training["seed"], settings.model
        rate = round(settings.training["learning_rate"] / BASE.training["learning_rate"], 2)
        present = {
            "rescale": model.get("rescale_init", False),
            "time_steps": "time_step_max" in model,
            "x3": rate == 3,
            "x10": rate == 10,
            "x1/3": rate == 0.33,
            "penalty": model.get("tau_weight", 0) > 0,
        }
        active = [name for name, is_on in present.items() if is_on]
        if set(active) & set(self.diverging) or (self.needed and self.needed not in active):
            return Outcome(math.nan, "accuracy", True, failed=True, seconds=1.0, problem="training diverged")
        score = 0.7 + 0.02 * math.sin(seed) + sum(self.effects.get(name, 0.0) for name in active)
        score += self.own_noise * math.cos(3 * seed) if active else 0.0
        return Outcome(score, "accuracy", True, score <= 0.5, 2.0, (4.0, 6.0), (2.0, 3.0), 0.0, 0.5, 0.5)


def tuned(simulation: Simulation, folder: Path, settings: RunSettings = BASE, **options: Any) -> TuningResult:
    return tune(settings, folder, run=simulation, diagnosis=options.pop("diagnosis", Known()), **options)


def names(simulation: Simulation) -> list[str]:
    return [folder.name for _, folder in simulation.calls]


def test_changes_that_help_are_joined_and_adopted(tmp_path):
    simulation = Simulation({"rescale": 0.05, "time_steps": 0.1, "x3": -0.1, "penalty": 0.01})
    result = tuned(simulation, tmp_path)
    six = ["default", "rescale", "time_steps", "learning_rate_x3", "joined", "penalty"]
    assert [trial.candidate.name for trial in result.trials] == six
    fresh = [f"{name}-seed{seed}" for name in ("default", "penalty") for seed in (6, 7, 8)]
    assert names(simulation) == [*(f"{name}-seed5" for name in six), *fresh]
    assert result.winner == "penalty" and result.decision is not None
    assert result.decision.gain == pytest.approx(0.16) and result.decision.seeds == 3 and result.runs == 12
    expected = {"rescale_init": True, "time_step_min": 0.02, "time_step_max": 1.0, "tau_weight": 0.0005}
    # λ = 0.01 · loss 0.5 / Σ τ 10, at its largest.
    assert {name: result.settings.model[name] for name in expected} == expected
    assert result.settings.training == BASE.training
    assert resolve(read_settings_file(tmp_path / "train_config.yaml")) == result.settings


def test_the_default_stays_where_nothing_helps(tmp_path):
    simulation = Simulation(dict.fromkeys(("rescale", "time_steps", "x3", "x1/3", "penalty"), -0.01))
    result = tuned(simulation, tmp_path)
    assert (result.winner, result.decision, result.runs) == ("default", None, 6)
    assert names(simulation)[4:] == ["learning_rate_x0.33-seed5", "penalty-seed5"] and result.settings == BASE
    assert "the default stays" in table_lines(result)[-1]


def test_a_lucky_seed_is_not_adopted(tmp_path):
    """With seed 5, cos(15) = -0.76; the noise makes other settings better there and worse elsewhere."""
    simulation = Simulation(own_noise=-0.1)
    result = tuned(simulation, tmp_path)
    assert result.compared != "default" and result.trial(result.compared).outcome.score > 0.7
    assert result.decision is not None and not result.decision.adopt
    assert result.winner == "default" and result.settings == BASE


@pytest.mark.parametrize(
    ("effects", "fifth", "rate"),
    [({"x3": 0.1, "x10": 0.15}, "learning_rate_x10", 0.03), ({"rescale": 0.1}, "learning_rate_x0.33", 0.001)],
)
def test_with_one_change_that_helps_the_learning_rate_is_explored(tmp_path, effects, fifth, rate):
    simulation = Simulation(effects)
    tuned(simulation, tmp_path)
    settings, folder = simulation.calls[4]
    assert folder.name == f"{fifth}-seed5" and settings.training["learning_rate"] == rate
    assert settings.model.get("rescale_init", False) is ("rescale" in effects)


def test_runs_that_cannot_exist_are_named(tmp_path):
    settings = resolve(
        {"data": {"dataset": "planted-motifs"}, "model": {"family": "s4", "rescale_init": True, "tau_weight": 1e-4}}
    )
    result = tuned(Simulation(), tmp_path, settings, diagnosis=Known(recommendations=()))
    missing = {trial.candidate.name: trial.candidate.missing for trial in result.trials if trial.candidate.missing}
    assert missing == {
        "rescale": "the settings already have rescale_init",
        "time_steps": "the diagnosis does not propose other step sizes",
        "penalty": "the settings have model.tau_weight=0.0001",
    }
    text = "\n".join(table_lines(result))
    assert all(reason in text for reason in missing.values()) and result.runs == 3


def test_changes_replace_other_names_of_their_fields():
    settings = resolve(
        {"data": {"dataset": "planted-motifs"}, "model": {"family": "s4", "dt_min": 1e-3, "dt_max": 0.1, "d_model": 8}}
    )
    fields = with_changes(settings, STEPS.changes).config_fields
    assert fields == {"d_model": 8, "time_step_min": 0.02, "time_step_max": 1.0}
    assert with_changes(settings, {"training": {"learning_rate": 0.1}}).config_fields == settings.config_fields


def test_the_weights_of_a_checkpoint_are_not_initialised(tmp_path):
    settings = resolve({"data": {"dataset": "planted-motifs"}, "model": {"checkpoint": "me/mine"}})
    result = tuned(Simulation(), tmp_path, settings)
    missing = [trial.candidate.name for trial in result.trials if trial.candidate.missing]
    assert missing == ["rescale", "time_steps"]


def test_runs_that_diverge_are_counted(tmp_path):
    simulation = Simulation({"rescale": 0.1, "time_steps": 0.1}, diverging=("x3", "penalty"))
    result = tuned(simulation, tmp_path)
    assert result.winner == "joined" and result.chance == 0.5
    rows = {row["candidate"]: row for row in rows_of(result)}
    assert rows["learning_rate_x3"]["accuracy"] is None and rows["learning_rate_x3"]["failed"] == 1
    assert (rows["joined"]["failed"], rows["joined"]["runs"]) == (0, 4)
    assert "diverged" in "\n".join(table_lines(result))


def test_a_default_that_diverges_is_replaced(tmp_path):
    result = tuned(Simulation(needed="x1/3"), tmp_path)
    assert result.winner == "learning_rate_x0.33" and result.decision is not None
    assert (result.decision.failed_default, result.decision.failed_candidate) == (3, 0)
    # Its score counts as the trivial baseline, 0.5.
    assert result.decision.gain == pytest.approx(0.2, abs=0.02)
    missing = result.trial("penalty").candidate
    assert not missing.missing and result.trial("default").outcome.problem == "training diverged"


def test_nothing_but_divergence(tmp_path):
    result = tuned(Simulation(needed="nothing"), tmp_path)
    assert (result.winner, result.decision) == ("default", None)
    assert result.trial("penalty").candidate.missing == "no λ follows from a loss of None and a Σ τ of 0"


def test_a_tuning_that_was_killed_continues(tmp_path):
    whole = Simulation({"rescale": 0.05, "time_steps": 0.1})
    expected = tuned(whole, tmp_path / "whole")
    killed = Simulation(whole.effects)

    def until_the_fourth(settings: RunSettings, folder: Path) -> Outcome:
        if len(killed.calls) == 3:
            raise KeyboardInterrupt
        return killed(settings, folder)

    with pytest.raises(KeyboardInterrupt):
        tune(BASE, tmp_path / "killed", run=until_the_fourth, diagnosis=Known())
    rest, reported = Simulation(whole.effects), []
    result = tuned(rest, tmp_path / "killed", report=lambda name, outcome: reported.append(name))
    assert names(killed) + names(rest) == names(whole) == reported
    assert [trial.outcome for trial in result.trials] == [trial.outcome for trial in expected.trials]
    # Again: no run at all, and with another seed all of them.
    again = Simulation(whole.effects)
    assert tuned(again, tmp_path / "killed").decision == expected.decision and not again.calls


def test_runs_with_other_settings_are_repeated_from_the_start(tmp_path):
    tuned(Simulation(), tmp_path)
    left = tmp_path / "runs" / "default-seed5"
    left.mkdir(parents=True)
    (left / "train_config.yaml").write_text("of the earlier settings")
    other = resolve(
        {"data": {"dataset": "planted-motifs", "length": 50}, "model": {"family": "s4"}}, {"training": {"seed": 5}}
    )
    simulation = Simulation()
    tuned(simulation, tmp_path, other)
    assert len(simulation.calls) >= 6 and not (left / "train_config.yaml").exists()


def test_files_of_a_tuning(tmp_path):
    result = tuned(Simulation({"rescale": 0.05, "time_steps": 0.1}, diverging=("x3",)), tmp_path)
    write_report(result, tmp_path)
    content = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)  # no NaN
    assert (
        content["winner"] == result.winner and content["runs"] == result.runs and content["seconds"] == result.seconds
    )
    assert content["diagnosis"] == {"simulated": True}
    assert content["outcomes"]["learning_rate_x3"]["seed_of_the_settings"]["score"] is None
    with (tmp_path / "table.csv").open() as file:
        rows = {row["candidate"]: row for row in csv.DictReader(file)}
    assert float(rows["joined"]["gain"]) == pytest.approx(0.15) and rows["default"]["gain"] == ""
    assert (rows["rescale"]["tau_before"], rows["rescale"]["tau_after"]) == ("10.0", "5.0")
    assert rows["learning_rate_x3"]["accuracy"] == "" and rows["learning_rate_x3"]["failed"] == "1"
    line = next(line for line in table_lines(result) if line.startswith("joined"))
    assert "a constant prediction 0.5; a linear model 0.55." in "\n".join(table_lines(result))
    assert "+0.15 ±" in line and "10 → 5" in line and "0/4" in line


@pytest.mark.parametrize(
    ("options", "message"), [({"seeds": 1}, "`seeds` must be at least 2"), ({"jobs": 0}, "`jobs` must")]
)
def test_bad_arguments(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tuned(Simulation(), tmp_path, **options)


def test_a_damaged_file_of_outcomes(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "outcomes.json").write_text('{"default-seed5": {"settings": "x", "outcome": {"score": 1}}}')
    with pytest.raises(ValueError, match=r"outcomes\.json' is damaged"):
        tuned(Simulation(), tmp_path)
