"""Length generalisation: means over positions, and a tiny run of one family."""

import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch


def test_means_over_octaves(script: ModuleType) -> None:
    losses = torch.arange(31.0)
    assert script.by_octave(losses, 2) == [0.5, 2.5, 5.5, 11.5, 23.0]
    assert script.binned(losses, 16) == [7.5, 23.0]


def test_frequencies_are_those_of_the_training_text(script: ModuleType) -> None:
    train, test = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1])
    assert script.by_frequency(train, test) == pytest.approx(-(torch.tensor([4.0, 2.0]) / 6).log().mean().item())


@pytest.mark.slow
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f'{part},{label},"{"A film to see. " * 30}"' for part in ("train", "test") for label in range(9)]
    with gzip.open(tmp_path / "reviews.csv.gz", "wt", encoding="utf-8") as file:
        file.write("split,label,text\n" + "\n".join(rows) + "\n")
    options = ["--dataset", str(tmp_path / "reviews.csv.gz"), "--tiny", "--families", "S4D"]
    script.main([*options, "--output", str(tmp_path / "result.json")])
    found = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))["families"]["S4D"]
    assert {len(run["octaves"]) for name, run in found.items() if name != "seconds"} == {5}
    # Four models that differ.
    assert len({run["octaves"][0] for name, run in found.items() if name != "seconds"}) == 4
    assert f"{found['before']['octaves'][-1]:.3f}" in capsys.readouterr().out
