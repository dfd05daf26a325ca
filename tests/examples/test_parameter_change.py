"""The change of parameters in training: a tiny run."""

import json
import math
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.slow
def test_tiny_run(script: ModuleType, shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, images = tmp_path / "result.json", shared_data / "mnist_t10k-images-idx3-ubyte.gz"
    words = ["--tiny", "--seeds", "1", "--dataset", str(images), "--runs", str(tmp_path / "runs")]
    script.main([*words, "--output", str(output), "--measure", str(tmp_path / "runs" / "seed0")])
    found = json.loads(output.read_text())
    (run,) = found["runs"]
    assert found["others"] == {"seed0": run}
    log = json.loads((tmp_path / "runs" / "seed0" / "training_log.json").read_text())
    logged = next(entry for entry in reversed(log) if "relative_change_A_imag" in entry)
    for group in script.GROUPS:
        assert math.isfinite(run["elements"][group])
        # The norms are those that the run logs itself.
        assert run["norms"][group] == pytest.approx(logged[f"relative_change_{group}"], rel=1e-5)
    assert "| paper | 1002.71 | 0.0143 | 1.1801 | 0.8913 |" in capsys.readouterr().out
