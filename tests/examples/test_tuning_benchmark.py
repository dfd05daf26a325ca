"""The benchmark of the tuner: frozen file, methods on a made-up response, arithmetic of the summary, a tiny run."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("optuna", reason="the searches need the extra tuning")

METHODS = ("default", "tune", "random", "TPE", "learning rate", "grid")
RATES = {"default": 1e-3, "best": 1e-2}


@pytest.fixture
def frozen(script: ModuleType) -> dict[str, Any]:
    return script.read_frozen()


@pytest.fixture
def response(script: ModuleType) -> Callable[..., Any]:
    """Runs that train nothing: the error is least at a learning rate of 0.01 and step sizes up to 1."""

    class Response(script.Runs):
        def _run(self, settings: Any) -> dict[str, Any]:
            rate, largest = settings.training["learning_rate"], settings.model.get("time_step_max", 0.1)
            error = 0.1 + 0.1 * abs(math.log10(rate / RATES["best"])) + 0.1 * abs(math.log10(largest))
            diverges = rate > 0.15
            outcome = script.Outcome(
                math.nan if diverges else 1 - error, "accuracy", True, failed=diverges, seconds=2.0, train_loss=0.5
            )
            chance = None if diverges else {"validation": 0.5, "test": 0.5}
            return {"outcome": outcome.to_dict(), "test": None if diverges else 1 - error, "chance": chance}

    return Response


def test_frozen_file(script: ModuleType, frozen: dict[str, Any], tmp_path: Path) -> None:
    """What the issue asks for, and settings that resolve."""
    assert len(frozen["tasks"]) == 8
    assert sum(not task["pilot"] for task in frozen["tasks"].values()) >= 4
    families = {task["model"]["family"] for task in frozen["tasks"].values()}
    assert {"s4", "hyena", "selective", "s5"} == families
    assert len(frozen["splits"]) == 3 and len(frozen["evaluation_seeds"]) == 5
    assert min(frozen["rows"]["validation"], frozen["rows"]["test"]) >= 500
    # The seeds of the tuner are the choice seed and the three after it.
    assert not {frozen["choice_seed"] + step for step in range(4)} & set(frozen["evaluation_seeds"])
    for name in frozen["tasks"]:
        default = script.base_settings(frozen, name, tmp_path / "x.jsonl", 1e-3, 0)
        grid = list(script.over_grid(frozen, name, default))
        assert len(grid) == 25
        assert len({json.dumps([run.model, run.training], sort_keys=True) for run in grid}) == 25
        assert any(run.model | {"x": 0} == default.model | {"x": 0} or _is_default(run.model) for run in grid)
    assert len(list(script.over_rates(frozen, default))) == frozen["search"]["runs"] == 12
    assert set(frozen["grid_rates"]) <= set(frozen["rates"])


def _is_default(model: dict[str, Any]) -> bool:
    return (model.get("time_step_min"), model.get("time_step_max")) == (1e-3, 0.1) or model.get("frequency_scale") == 1


def test_methods(
    script: ModuleType, frozen: dict[str, Any], response: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = response(tmp_path / "runs")
    default = script.base_settings(frozen, "motifs", tmp_path / "x.jsonl", RATES["default"], 0)

    class Diagnosis:
        recommendations = ()

    kept = script.tune
    monkeypatch.setattr(script, "tune", lambda *args, **kwargs: kept(*args, diagnosis=Diagnosis(), **kwargs))
    made = script.choices(frozen, "motifs", 0, default, runs)
    assert list(made) == list(METHODS)
    best = made["grid"].settings
    assert (best.training["learning_rate"], best.model["time_step_max"]) == (1e-2, 1.0)
    assert made["learning rate"].settings.training["learning_rate"] == 1e-2
    assert "time_step_max" not in made["learning rate"].settings.model
    # Without step sizes from a diagnosis: three times the learning rate, and ten times.
    assert made["tune"].settings.training["learning_rate"] == pytest.approx(1e-2)
    counts = {method: len(choice.records) for method, choice in made.items()}
    assert counts["grid"] == 25 and counts["tune"] <= 12
    assert counts["random"] == counts["TPE"] == counts["learning rate"] == 12
    # A search is at least as good as its first trial, the default.
    errors = {
        method: min(map(script.validation_error, choice.records or [{"outcome": {}}]), default=1)
        for method, choice in made.items()
        if choice.records
    }
    level = script.validation_error(runs.record(default))
    assert max(errors.values()) < level
    # The same runs again come from the files.
    monkeypatch.setattr(response, "_run", None)
    again = script.choices(frozen, "motifs", 0, default, response(tmp_path / "runs"))
    assert {method: choice.settings for method, choice in again.items()} == {
        method: choice.settings for method, choice in made.items()
    }


def test_searches_draw_other_points_for_each_task_and_split(
    script: ModuleType, frozen: dict[str, Any], response: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "tuned", lambda default, runs: script.Choice(default, []))
    monkeypatch.setattr(script, "best_of", lambda candidates, runs: None)
    runs = response(tmp_path / "runs")
    default = script.base_settings(frozen, "motifs", tmp_path / "x.jsonl", RATES["default"], 0)
    drawn = [
        script.choices(frozen, name, split, default, runs)["random"].settings
        for name, split in (("motifs", 0), ("motifs", 1), ("coding", 0))
    ]
    assert len({json.dumps([each.model, each.training], sort_keys=True) for each in drawn}) == 3


def test_runs_that_diverge_count_as_the_constant(
    script: ModuleType, frozen: dict[str, Any], response: Any, tmp_path: Path
) -> None:
    runs = response(tmp_path / "runs")
    default = script.base_settings(frozen, "motifs", tmp_path / "x.jsonl", 1e-3, 0)
    wild = script.changed(default, learning_rate=0.178)
    choice = script.best_of([wild, default], runs)
    assert choice.settings == default  # never what diverges
    errors, constant, failures = script.evaluate(frozen, script.Choice(wild, choice.records), runs)
    assert errors == [0.5] * 5 and constant == 0.5 and failures == 5
    relative = script.relative_errors(choice.records)
    assert relative[0] == 10 and relative[1] == pytest.approx((0.1 + 0.1 + 0.1) / 0.5)


def test_errors(script: ModuleType) -> None:
    assert script.error_of("accuracy", 0.75) == 0.25
    assert script.error_of("perplexity", math.e**2) == pytest.approx(2)
    assert script.error_of("mse", 0.3) == 0.3


def unit(task: str, split: int, **errors: list[float]) -> dict[str, Any]:
    methods = {}
    for method in METHODS:
        values = errors.get(method, [0.3, 0.3])
        changes = {} if values == errors["default"] else {"training.learning_rate": 1e-2}
        methods[method] = {"errors": values, "constant": 0.5, "failed": 0, "note": "", "runs": 12, "seconds": 24.0}
        methods[method] |= {"failed while choosing": 1, "changes": changes}
    return {
        "task": task,
        "split": split,
        "methods": methods,
        "linear": 0.45,
        "grid": [0.8 + 0.1 * split, 0.7 - 0.1 * split],
    }


def test_summary(script: ModuleType) -> None:
    units = [
        unit("a", 0, default=[0.4, 0.4], tune=[0.2, 0.2], grid=[0.2, 0.2]),
        unit("a", 1, default=[0.4, 0.4], tune=[0.3, 0.3], grid=[0.2, 0.2]),
        # The default is kept: rightly in the first split, wrongly in the second.
        unit("b", 0, default=[0.2, 0.3], tune=[0.2, 0.3], grid=[0.3, 0.2]),
        unit("b", 1, default=[0.4, 0.4], tune=[0.4, 0.4], grid=[0.1, 0.1]),
    ]
    found = script.summarise(units, {"near_best": 1, "above_default": 2})
    # 0.2 and 0.3: mean 0.25, standard deviation 0.0707, divided by √2.
    assert found["tasks"]["a"]["error"]["tune"] == pytest.approx((0.25, 0.05))
    assert found["tasks"]["a"]["to grid"]["tune"] == pytest.approx((0.05, 0.05))
    assert found["tasks"]["a"]["gain"]["tune"] == pytest.approx((0.15, 0.05))
    assert found["tasks"]["b"]["gain"]["tune"] == (0.0, 0.0)
    assert (found["tasks"]["b"]["kept"], found["tasks"]["b"]["kept rightly"]) == (2, 1)
    assert found["better than default"]["tune"] == 1 and found["near grid"]["grid"] == 2
    assert found["aims"]["above_default"] == [1, 2, False]
    assert found["aims"]["abstention"] == [1, 2, False]
    # Other settings than the default without a gain are no abstention.
    worse = [unit("c", split, default=[0.2, 0.2], tune=[0.4, 0.4], grid=[0.2, 0.2]) for split in range(2)]
    aims = script.summarise([*units[:2], *worse], {"near_best": 1, "above_default": 1})["aims"]
    assert aims["above_default"] == [1, 2, True] and aims["abstention"] == [0, 2, False]
    # Nothing is left where all tasks are improved.
    assert script.summarise(units[:2], {"near_best": 1, "above_default": 1})["aims"]["abstention"] == [0, 0, True]
    assert found["cost"]["tune"] == {"runs": 48, "seconds": 96.0, "failed while choosing": 4, "failed": 0}


def test_a_changed_file_is_refused(script: ModuleType, tmp_path: Path) -> None:
    stored = tmp_path / "tiny" / "digests.json"
    stored.parent.mkdir()
    stored.write_text(json.dumps({**script.digests(), "frozen": "0"}))
    with pytest.raises(SystemExit, match=r"tuning_benchmark\.yml was changed since its first run"):
        script.main(["--tiny", "--folder", str(tmp_path)])
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"digests": {**script.digests(), "rules": "0"}}))
    with pytest.raises(SystemExit, match="the code of the rules was changed"):
        script.main(["--tiny", "--folder", str(tmp_path / "new"), "--output", str(result)])


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "begin_process", lambda: None)  # It would silence the tests that follow.
    arguments = ["--tiny", "--folder", str(tmp_path / "runs"), "--output", str(tmp_path / "result.json")]
    script.main(arguments)
    first = json.loads((tmp_path / "result.json").read_text())
    assert [(one["task"], one["split"]) for one in first["units"]] == [("motifs", 0)]
    assert set(first["units"][0]["methods"]) == set(METHODS)
    assert str(tmp_path) not in (tmp_path / "result.json").read_text()
    assert "abstention" in capsys.readouterr().out
    stored = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("tiny/runs/*/*.json")}
    assert stored and not (tmp_path / "runs" / "data").exists()  # the tables of a full benchmark have other rows
    script.main(arguments)  # trains nothing
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("tiny/runs/*/*.json")} == stored
    assert json.loads((tmp_path / "result.json").read_text()) == first


@pytest.mark.parametrize("name", ["coding", "reviews", "images"])
def test_tables_of_real_data(script: ModuleType, frozen: dict[str, Any], shared_data: Path, name: str) -> None:
    task, rows = frozen["tasks"][name], {"train": 30, "validation": 10, "test": 10}
    import _tuning_tasks

    options = {**task["options"], "file": str(_tuning_tasks.find_file(task["options"]["file"], shared_data))}
    first, other = (_tuning_tasks.SOURCES[task["source"]](rows, seed, options) for seed in (0, 1))
    assert {split: len(found) for split, found in first.items()} == rows
    assert first != other
    texts = [str(row["sequence"]) for found in first.values() for row in found]
    assert len(set(texts)) == len(texts)
