"""The prediction for many devices: its terms, in a tiny setting."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plan.py"


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(benchmark, capsys, *options: str) -> dict[str, list[float]]:
    benchmark.main(["--tiny", *options])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    cells = {cells[1].strip(): cells[3:-1] for cells in (line.split("|") for line in lines)}
    return {name: [float(cell) for cell in row] for name, row in cells.items()}


def test_only_long_convolutions_send_more_for_longer_rows(benchmark, capsys):
    sizes = "--context", "2", "--data", "1", "--hidden-size", "512", "--layers", "2", "--rows", "64"
    short, long = (table(benchmark, capsys, "--length", length, *sizes) for length in ("16384", "32768"))
    assert set(short) == {"S4D", "S5", "Hyena", "Mamba", "Mamba-2"}
    for name in short:
        sent = short[name][-2], long[name][-2]
        assert sent[1] > 1.9 * sent[0] if name == "Hyena" else sent[0] == sent[1]
        assert long[name][2] == pytest.approx(2 * short[name][2], rel=0.01)


def test_what_a_layer_keeps_is_counted_once_and_without_weights(benchmark):
    # A linear S4D layer keeps a few arrays of the size of its input, not dozens.
    assert 3 < benchmark.kept_per_position("S4D", 64, 512) < 40
