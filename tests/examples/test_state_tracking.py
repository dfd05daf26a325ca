"""State tracking: the labels, and a tiny run that is continued."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch


def test_labels_are_sums_so_far(script: ModuleType) -> None:
    ids, labels = script.digits(5, 3, 7, torch.Generator().manual_seed(0))
    for row, sums in zip(ids.tolist(), labels.tolist(), strict=True):
        assert sums == [sum(row[: position + 1]) % 5 for position in range(7)]


def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tiny", "--tasks", "parity", "--output", str(tmp_path / "result.json")]
    script.main([*options, "--models", "Mamba-3"])
    first = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["runs"]
    capsys.readouterr()
    script.main([*options, "--models", "Mamba-3", "Mamba-2"])
    runs = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == 2 and first.items() < runs.items()
    printed = capsys.readouterr().out
    assert "| parity | Mamba-3 |" in printed and "parity, Mamba-3, seed 0:" not in printed
    assert all(0 <= run["within"] <= 1 and 0.4 < run["trivial"] < 0.8 for run in runs.values())
