"""The masking experiment on the next base: a tiny run and its helpers."""

import csv
import json
import random
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Sequences of two species; the human ones hold no G, so that they can be told."""
    letters = random.Random(0)
    with (tmp_path / "both.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "label", "split"])
        for row in range(80):
            text = "".join(letters.choices("ACT" if row % 2 == 0 else "G", k=32))
            writer.writerow([text, row % 2, "test" if row < 40 else "train"])
    return tmp_path / "both.csv"


def test_human_rows(script: ModuleType, table: Path, tmp_path: Path) -> None:
    with Path(script.human_rows(str(table), tmp_path / "new" / "human.csv")).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert not any("G" in row["sequence"] for row in rows)
    assert [row["split"] for row in rows] == ["test"] * 20 + ["train"] * 20


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
@pytest.mark.parametrize("family", ["hyena", "selective"])
def test_tiny(script: ModuleType, table: Path, tmp_path: Path, family: str) -> None:
    folder, output = tmp_path / "run", tmp_path / "result.json"
    script.main(["--tiny", "--family", family, "--path", str(table), "--folder", str(folder), "--output", str(output)])
    content = json.loads(output.read_text())
    assert content["cost_of_a_sequence"]["exact"]["sequences"] == 2
    assert content["chosen"]["curves"] == content["others"]["curves"] == 3
    assert 0 < content["chosen"]["area"]["mean"] < 1
    # What stands before a target of the last eighth, 28 to 31.
    assert 28 * 29 // 2 <= content["cost_of_a_sequence"]["plain loop"]["evaluations"] <= 31 * 32 // 2
    for name in ("curves.png", "strip.png"):
        assert (folder / name).stat().st_size > 1000
    assert str(tmp_path) not in json.dumps(content["settings"])


def test_case(script: ModuleType) -> None:
    """Of 16 tokens, 9 and 13 to 15 are predicted with 0.9; of the last two 15 with more."""
    ids = torch.arange(16) % 4
    wanted = {9: 3.0, 13: 3.0, 14: 3.0, 15: 4.0}
    logits = torch.zeros(1, 16, 4)
    for place, value in wanted.items():
        logits[0, place - 1, ids[place]] = value

    def model(input_ids: torch.Tensor) -> SimpleNamespace:
        assert input_ids.shape == (1, 16)
        return SimpleNamespace(logits=logits)

    model.device = "cpu"
    case = script.case_of(model, ids, 0.5, 3)
    assert (case.target, case.others, case.predicted) == (15, [9, 13, 14], 4)
    assert script.case_of(model, ids, 0.5, 4) is None
    logits[0, 13, ids[14]] = 5.0  # now of 14 with more: 15 follows the target, and is not read with it
    case = script.case_of(model, ids, 0.5, 3)
    assert (case.target, case.others, case.predicted) == (14, [9, 13], 4)
    logits[0, 14] = logits[0, 13] = 0  # nothing is left in the last eighth
    assert script.case_of(model, ids, 0.5, 1) is None


def test_mean_of_others(script: ModuleType) -> None:
    torch.manual_seed(0)
    ids, logits = torch.tensor([2, 0, 1, 2, 1]), torch.randn(3, 5, 3)
    found = script.mean_of([1, 4], ids)(logits)
    probabilities = logits.double().softmax(-1)
    torch.testing.assert_close(found, (probabilities[:, 0, 0] + probabilities[:, 3, 1]) / 2)
