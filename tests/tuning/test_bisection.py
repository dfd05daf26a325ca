"""Bisection of the frequency scale by runs: a made-up runner, bad input, and real runs of a tiny model."""

import math
from pathlib import Path

import pytest

from hf_ssm.theory.frequency import alpha_max
from hf_ssm.training.settings import RunSettings, resolve
from hf_ssm.tuning.bisection import bisect_frequency_scale, largest_frequency_scale
from hf_ssm.tuning.runs import Outcome


def settings_of(**model: object) -> RunSettings:
    return resolve(
        {
            "model": {
                "family": "s4",
                "hidden_size": 4,
                "num_hidden_layers": 1,
                "state_size": 16,
                "init": "lin",
                **model,
            },
            "data": {"dataset": "planted-motifs", "num_train": 32, "num_validation": 16, "num_test": 8, "length": 40},
            "training": {"num_train_epochs": 1, "seed": 5},
        }
    )


class Valley:
    """A runner whose error has its minimum at `optimum`, and diverges above `limit`."""

    def __init__(self, optimum: float, limit: float = math.inf, noise: float = 0.0):
        self.optimum, self.limit, self.noise = optimum, limit, noise
        self.calls: list[tuple[float, int]] = []

    def __call__(self, settings: RunSettings, folder: Path) -> Outcome:
        scale, seed = float(settings.model.get("frequency_scale", 1.0)), int(settings.training["seed"])
        self.calls.append((scale, seed))
        if scale > self.limit:
            return Outcome(math.nan, "mse", False, failed=True, problem="diverged")
        error = abs(math.log(scale / self.optimum)) + self.noise * (-1) ** seed * scale
        return Outcome(error, "mse", False, chance=10.0)


def test_the_best_scale_is_found_and_kept(tmp_path: Path) -> None:
    runner = Valley(4.0, limit=20.0)
    settings = settings_of()
    found = bisect_frequency_scale(settings, tmp_path, run=runner, high=40.0)
    assert found.interval[0] <= 4.0 <= found.interval[1] <= 2 * found.interval[0] * (1 + 1e-9)
    assert found.adopted == found.best == found.settings.model["frequency_scale"]
    assert found.settings.training == settings.training
    assert found.is_unimodal
    # The default and the upper end first, with the seed of the settings; then both with fresh seeds.
    assert runner.calls[:2] == [(1.0, 5), (40.0, 5)]
    assert set(runner.calls[len(found.trials) :]) == {
        (scale, seed) for scale in (1.0, found.best) for seed in (6, 7, 8)
    }
    assert len(found.trials) <= 3 + 2 * math.ceil(math.log2(math.log2(400)))
    text = "\n".join(found.lines())
    assert "diverged" in text
    assert "these settings replace the default" in text
    again = Valley(4.0, limit=20.0)
    assert bisect_frequency_scale(settings, tmp_path, run=again, high=40.0).to_dict() == found.to_dict()
    assert again.calls == []


def test_the_default_stays_without_a_clear_gain(tmp_path: Path) -> None:
    same = bisect_frequency_scale(settings_of(), tmp_path / "best", run=Valley(1.0), high=40.0)
    assert same.decision is None
    assert same.settings == settings_of()
    assert same.reason == "no trial is better than the default α = 1, so the default stays"
    noisy = bisect_frequency_scale(settings_of(), tmp_path / "noisy", run=Valley(1.6, noise=2.0), high=40.0)
    assert noisy.decision is not None
    assert not noisy.decision.adopt
    assert noisy.adopted == 1.0


def test_the_upper_end_is_that_of_the_mean_step() -> None:
    settings = settings_of(time_step_min=1e-3, time_step_max=1e-1)
    assert largest_frequency_scale(settings) == pytest.approx(alpha_max(16, 1e-2, discretization="zoh"))


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`seeds` must be at least 2, got 1"):
        bisect_frequency_scale(settings_of(), tmp_path, run=Valley(1.0), seeds=1)
    with pytest.raises(ValueError, match=r"`low`=50 is not below the upper end 40 of α: give `high` above `low`"):
        bisect_frequency_scale(settings_of(), tmp_path, run=Valley(1.0), low=50.0, high=40.0)
    with pytest.raises(ValueError, match=r"checkpoint='x': α scales the initialisation"):
        largest_frequency_scale(resolve({"model": {"checkpoint": "x"}, "data": {"dataset": "planted-motifs"}}))
    with pytest.raises(ValueError, match="frequenc"):
        bisect_frequency_scale(settings_of(init="real"), tmp_path, run=Valley(1.0))


@pytest.mark.slow
def test_runs_of_a_tiny_model(tmp_path: Path) -> None:
    found = bisect_frequency_scale(settings_of(), tmp_path, low=1.0, high=4.0, factor=2.0, seeds=2)
    assert list(found.trials)[:2] == [1.0, 4.0]
    assert len(found.trials) >= 3
    assert all(outcome.metric == "accuracy" for outcome in found.trials.values())
    assert (tmp_path / "alpha4-seed5" / "training_log.json").is_file()
