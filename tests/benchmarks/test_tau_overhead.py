"""The benchmark of the regulariser: tiny run, training step and ratios."""

import importlib.util
import re
import statistics
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tau_overhead.py"


@pytest.fixture
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tau_overhead_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tiny(benchmark, capsys) -> None:
    benchmark.main(["--tiny"])
    _, _, header, rule, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| model | length | wall time | CPU time | repetitions |"
    assert rule == "|---|---|---|---|---|"
    cell = r"\d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)"
    names = ["S4D", "Hyena", "Hyena, S4D filter"]
    for row, (length, name) in zip(rows, [(length, name) for length in (16, 32) for name in names], strict=True):
        assert re.fullmatch(rf"\| {name} \| {length} \| {cell} \| {cell} \| 4 \|", row)


def test_a_step_adds_tau_to_the_loss_if_it_has_a_weight(benchmark, make_model) -> None:
    """Gradients are cleared after the step."""
    batch = {"input_ids": torch.randint(0, 12, (4, 9)), "labels": torch.randint(0, 2, (4,))}
    moved = []
    for weight in (0.0, 1e-4, 1e6):
        torch.manual_seed(0)
        model = make_model("S4", "ForSequenceClassification").train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        taken = benchmark.step(model, optimizer, batch, weight)
        assert all(seconds > 0 for seconds in taken)
        assert all(parameter.grad is None for parameter in model.parameters())
        moved.append(model.model.layers[0].mixer.long_conv.filter.C.detach().clone())
    assert not torch.equal(moved[0], moved[1])
    assert (moved[2] - moved[0]).abs().max() > 1


def test_ratio_is_the_time_with_tau_to_the_time_without(benchmark, monkeypatch) -> None:
    monkeypatch.setattr(benchmark, "step", lambda model, optimizer, batch, weight: (3.0, 5.0) if weight else (2.0, 4.0))
    wall, processor = benchmark.compare(torch.nn.Linear(1, 1), {}, 3)
    assert wall == [1.5] * 3 and processor == [1.25] * 3


def test_cell_shows_median_and_quartiles(benchmark) -> None:
    ratios = [1.0, 1.1, 1.2, 1.3, 9.0]
    assert benchmark.cell(ratios) == "1.200 (1.100 to 1.300)"
    assert statistics.median(ratios) == 1.2
