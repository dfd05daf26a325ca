"""The benchmark of costs: tiny run, and its numbers against a count."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hf_ssm

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cost.py"


@pytest.fixture
def benchmark(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("cost_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("_measure", None)


def test_tiny(benchmark, capsys) -> None:
    benchmark.main(["--tiny"])
    _, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert len(rows) == 3 * len(benchmark.FAMILIES)
    assert [float(row.split("|")[3]) > 0 for row in rows] == [True] * len(rows)
    assert [row.split("|")[3].strip() for row in rows if "| S4D | CPU time" in row] == ["1"]


def test_parameters_of_a_layer(benchmark) -> None:
    model = hf_ssm.SelectiveSSMModel(hf_ssm.SelectiveSSMConfig(hidden_size=32, num_hidden_layers=1))
    expected = sum(parameter.numel() for parameter in model.layers[0].parameters()) / 32**2
    assert benchmark.parameters_of_layer("Mamba", 32, 16) == expected


def test_what_a_layer_keeps_is_counted_once_and_without_weights(benchmark) -> None:
    # A linear S4D layer keeps a few arrays of the size of its input, not dozens.
    assert 3 < benchmark.kept_of_layer("S4D", 64, 512) < 40
