"""Models with and without RC equivariance have equal size, and equivariant ones agree on both strands."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
def test_tiny(
    script: ModuleType, frozen_garbage: None, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    script.main(["--tiny", "--path", str(shared_data / "human_or_worm_mini.csv.gz"), "--output", str(result)])
    (run,) = json.loads(result.read_text())["runs"]
    assert set(run) == set(script.COLUMNS)
    assert len({found["parameters"] for found in run.values()}) == 1
    for name in ("equivariant", "plain, conjoined", "augmented, conjoined"):
        assert run[name]["inconsistent"] == 0
    assert f"| equivariant | {run['equivariant']['accuracy']:.4f} |" in capsys.readouterr().out
