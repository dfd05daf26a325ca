"""Irregularly sampled oscillations: the rows, and a tiny run that is continued."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch


def test_rows_are_sinusoids_of_their_class(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "NOISE", 0.0)
    rows = script.draw(40, torch.Generator().manual_seed(0))
    times = rows["time_deltas"].double().cumsum(1)
    assert rows["time_deltas"].min() >= 0.05 and rows["time_deltas"].mean().item() == pytest.approx(1.05, abs=0.05)
    for signal, time, label in zip(rows["input_values"].double(), times, rows["labels"].tolist(), strict=True):
        waves = torch.stack([(script.FREQUENCIES[label] * time).sin(), (script.FREQUENCIES[label] * time).cos()], dim=1)
        residual = signal - waves @ torch.linalg.lstsq(waves, signal).solution
        assert residual.abs().max() < 1e-4


def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tiny", "--output", str(tmp_path / "result.json"), "--models"]
    script.main([*options, "S5 with the times"])
    first = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["runs"]
    capsys.readouterr()
    script.main([*options, "S5 with the times", "D-LinOSS, exact steps, with the times"])
    runs = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 2 and first.items() < runs.items()
    printed = capsys.readouterr().out
    assert "| D-LinOSS, exact steps, with the times |" in printed and "S5 with the times, seed 0:" not in printed
    assert all(0 <= run["accuracy"] <= 1 for run in runs.values())
