"""The ablation over α and β: a tiny run, and what it reads from a table of accuracies."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
def test_tiny_run(script: ModuleType, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, images = tmp_path / "result.json", shared_data / "mnist_t10k-images-idx3-ubyte.gz"
    script.main(["--tiny", "--dataset", str(images), "--output", str(result), "--seeds", "1"])
    content = json.loads(result.read_text())
    assert [(row["alpha"], row["beta"]) for row in content["accuracy"]] == [(1, -1), (1, 0), (4, -1), (4, 0)]
    assert all(0 <= accuracy <= 1 for row in content["accuracy"] for accuracy in row["accuracy"])
    assert content["arguments"]["dataset"] == "mnist_t10k-images-idx3-ubyte.gz"
    printed = capsys.readouterr().out
    assert "| α \\ β | -1 | 0 |" in printed and "(paper: 4)" in printed
    assert str(shared_data) not in result.read_text()


def test_what_the_table_says(script: ModuleType) -> None:
    grid = {(1.0, -0.5): [0.5, 0.7], (1.0, 0.0): [0.4, 0.4], (4.0, -0.5): [0.9, 0.7], (4.0, 0.0): [0.1, 0.3]}
    assert script.best(grid) == (4.0, -0.5)
    assert script.best(grid, beta=0.0) == (1.0, 0.0)
    assert script.best(grid, alpha=1.0) == (1.0, -0.5)
    assert script.best(grid, alpha=2.0) is None
    # Variances 0.02 and 0 at α = 1, 0.02 twice at α = 4.
    assert (script.spread(grid, 1.0), script.spread(grid, 4.0)) == (pytest.approx(0.1), pytest.approx(0.02**0.5))
    assert f"The best pair is α = 4, β = -0.5: 0.8000, +0.4000 ± {0.015**0.5:.4f}" in " ".join(script.compare(grid, 2))
