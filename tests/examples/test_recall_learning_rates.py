"""Learning rates of recall: the task, the window, and a tiny run."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_each_query_has_the_value_of_its_key(script: ModuleType) -> None:
    data = script.Recall(200, pairs=4, length=24, seed=0)
    distances = []
    for row in range(len(data)):
        tokens, labels = data[row]["input_ids"].tolist(), data[row]["labels"].tolist()
        pairs = dict(zip(tokens[:8:2], tokens[1:8:2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == 4
        assert all(1 <= key <= 8 < value <= 16 for key, value in pairs.items())
        asked = [place for place, label in enumerate(labels) if label != -100]
        assert {tokens[place] for place in asked} == set(pairs) and min(asked) >= 8
        assert all(labels[place] == pairs[tokens[place]] - 9 for place in asked)
        assert all(token == 0 for place, token in enumerate(tokens[8:], 8) if place not in asked)
        distances += [(place - 8) // 2 for place in asked]
    # The power law: the first place has a weight of 1, the last of eight about 1 / 8.
    assert distances.count(0) > 1.5 * distances.count(7)
    assert distances.count(0) / 200 > 0.7
    with pytest.raises(ValueError, match="pairs=4, length=14"):
        script.Recall(2, pairs=4, length=14, seed=0)


def test_window(script: ModuleType) -> None:
    rates = [1.0, 2.0, 4.0, 8.0, 16.0]
    assert script.window(rates, [0.1, 0.96, 1.0, 0.95, 0.2]) == (2.0, 8.0)
    assert script.window(rates, [0.1, 0.2, 0.9, 0.2, 0.1]) == (4.0, 4.0)
    # The widest of two runs.
    assert script.window(rates, [1.0, 0.3, 0.97, 0.96, 0.2]) == (4.0, 8.0)
    assert script.window(rates, [0.97, 0.3, 1.0, 0.96, 0.99]) == (4.0, 16.0)
    found = script.summarise(rates, {"default": [[0.2, 0.4], [1.0, 0.8], [0.9, 0.9], [0.1, 0.1], [0.0, 0.0]]})
    assert found == {"default": {"best": 0.9, "window": [2.0, 4.0], "width": 2.0}}


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tiny", "--folder", str(tmp_path / "runs"), "--output", str(tmp_path / "result.json")]
    script.main(arguments)
    first = json.loads((tmp_path / "result.json").read_text())
    curves = first["accuracy"]["Hyena, S4D filters"]
    assert [len(curves[name]) for name in script.INITIALISATIONS] == [2, 2]
    assert "| Hyena, S4D filters | rescaled |" in capsys.readouterr().out
    stored = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert len(stored) == 4
    script.main(arguments)  # trains nothing
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stored


@pytest.mark.parametrize(("default", "rescaled", "met"), [(0.9, 0.95, True), (0.9, 0.2, False), (0.13, 0.13, False)])
def test_a_wide_window_without_recall_does_not_meet_the_aim(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, default: float, rescaled: float, met: bool
) -> None:
    import _tables_of_tuning as tables

    widths = {"default": (default, [1e-3, 1e-2], 10.0), "rescaled": (rescaled, [1e-3, 1e-1], 100.0)}
    both = {name: dict(zip(("best", "window", "width"), values, strict=True)) for name, values in widths.items()}
    result = {
        "summary": {"Mamba": both},
        "failed": {"Mamba, default": 0, "Mamba, rescaled": 0},
        "constant": 0.125,
        "arguments": {"seeds": 3, "rates": [1e-3, 1e-1], "pairs": 4},
    }
    monkeypatch.setattr(tables, "is_stored", lambda name: True)
    monkeypatch.setattr(tables, "load", lambda name: result)
    shown = " ".join(tables.recall_learning_rates().split())
    assert ("met for Mamba." in shown) is met and ("met for no model." in shown) is not met
