"""The masking experiment on the next base: the rows, and a tiny run."""

import csv
import json
import random
from pathlib import Path
from types import ModuleType

import pytest


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
