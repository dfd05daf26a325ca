"""The benchmark of long sequences runs, and its routes agree."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def long(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("long")


@pytest.mark.slow
def test_tiny(long, capsys) -> None:
    long.main(["--tiny", "--families", "S4D", "--routes", "usual", "layers", "shared"])
    lines = re.findall(r"^\| S4D \| 512 \| (\w+) \| (.*) \|$", capsys.readouterr().out, flags=re.MULTILINE)
    assert [route for route, _ in lines] == ["usual", "layers", "shared"]
    cells = lines[1][1].split(" | ")
    assert cells[0].endswith("KiB") == long.can_measure("cpu") and float(cells[3]) > 0


@pytest.mark.parametrize("family", ["S5", "Mamba, two-sided"])
def test_routes_take_the_same_step(long, family) -> None:
    sizes = {"hidden_size": 8, "layers": 1, "device": "cpu"}
    expected, found = (long.build(family, route, 130, sizes)() for route in long.ROUTES[:2])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
