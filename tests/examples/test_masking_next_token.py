"""The masking experiment on the next base: its cases, and a tiny run."""

import csv
import json
import random
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch


def constant(input_ids: torch.Tensor) -> SimpleNamespace:
    """A model that gives the letter 3 after any letter with probability 0.5."""
    return SimpleNamespace(logits=torch.tensor([0.1, 0.2, 0.2, 0.5]).log().expand(1, input_ids.shape[1], 4))


def test_cases(script: ModuleType) -> None:
    ids = torch.tensor([0, 3] * 16)
    probable, chosen = script.cases_of(constant, ids, 0.35, 5, random.Random(0))
    assert probable.target == 29 and chosen.target in (29, 31)
    # The mean over tokens that are all predicted with 0.5.
    assert probable.other_target(constant(ids.unsqueeze(0)).logits).tolist() == pytest.approx([0.5])
    assert script.cases_of(constant, ids, 0.35, 16, random.Random(0)) is None
    assert script.cases_of(constant, ids, 0.6, 0, random.Random(0)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
@pytest.mark.parametrize("family", ["hyena", "selective"])
def test_tiny(script: ModuleType, tmp_path: Path, family: str) -> None:
    letters = random.Random(0)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "label", "split"])
        for row in range(80):
            text = "".join(letters.choices("ACT" if row % 2 == 0 else "G", k=32))
            writer.writerow([text, row % 2, "test" if row < 40 else "train"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(script.TABLES, "worm", "rows.csv")
        folder, output = tmp_path / "run", tmp_path / "result.json"
        arguments = ["--tiny", "--families", family, "--data", str(tmp_path), "--folder", str(folder)]
        script.main([*arguments, "--output", str(output)])
    experiments = json.loads(output.read_text())["experiments"]
    assert list(experiments) == [f"{family}, most probable", f"{family}, random"]
    for number, content in enumerate(experiments.values()):
        for found in content["masked_by"].values():
            assert found["curves"]["chosen"]["curves"] == 2 and 0 < found["curves"]["others"]["area"][0] < 1
        assert (folder / f"next_token_{family}" / f"curves_{number}.png").stat().st_size > 1000
