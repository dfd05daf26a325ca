"""The benchmark of weights in fewer bits runs."""

import importlib
from pathlib import Path

import pytest


@pytest.mark.slow
def test_tiny(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    importlib.import_module("stored_weights").main(["--tiny"])
    printed = capsys.readouterr().out
    for name in ("Mamba", "Mamba-2"):
        assert f"| {name}, hidden 64, 2 layers, 4 tokens | float32 / bfloat16 |" in printed
        assert f"| {name}, hidden 64, 2 layers, 4 tokens | largest error of a logit, bfloat16 |" in printed
