"""The synthetic tasks run in their tiny setting, on models of equal size."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
def test_one_task_of_each_kind(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    tasks = ["associative recall", "selective copying", "piecewise smooth function"]
    script.main(["--tiny", "--tasks", *tasks, "--output", str(result)])
    runs = json.loads(result.read_text())["runs"]
    printed = capsys.readouterr().out
    assert list(runs) == [f"{task}, seed 0" for task in tasks]
    for task, seed in zip(tasks, runs.values(), strict=True):
        assert set(seed) == {"Hyena", "S4D", "selective", "attention"}
        assert all(found["score"] <= 1 for found in seed.values())
        assert f"| {task} | {seed['Hyena']['score']:.3f} (" in printed


@pytest.mark.parametrize("kind", ["class", "tokens", "number"])
def test_models_have_equal_size(script: ModuleType, kind: str) -> None:
    shape = kind, 20, 8, False
    ours = [script.count(script.build_ours(name, *shape)) for name in script.FAMILIES]
    attention = script.count(script.build_attention(*shape, max(ours)))
    assert max(*ours, attention) < 1.1 * min(*ours, attention)
