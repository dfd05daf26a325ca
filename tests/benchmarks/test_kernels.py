"""The check of `make test-kernels` can fail, and the table of predictions is current."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kernels.py"
RESULTS = SCRIPT.parent / "results"

pytest.importorskip("triton", reason="triton is not installed")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
def test_another_stored_table_is_an_error(tmp_path):
    stored = json.loads((RESULTS / "kernel_resources.json").read_text())
    for row in stored["rows"]:
        row["registers"] += row["kernel"] == "ssd.decay_sums"
    (tmp_path / "table.json").write_text(json.dumps(stored))
    arguments = "resources", "--gpus", "sm_90", "--kernel", "ssd.decay_sums", "--processes", "1"
    done = run(*arguments, "--check", "--table", str(tmp_path / "table.json"))
    assert done.returncode in (1, 3)
    assert "differs from the stored table" in done.stderr or "is of Triton" in done.stderr


@pytest.mark.slow
def test_predictions_are_those_in_the_table(tmp_path):
    done = run("predictions", "--output", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr
    found, stored = (json.loads(p.read_text()) for p in (tmp_path / "found.json", RESULTS / "kernel_predictions.json"))
    assert (found["rates"], found["rows"]) == (stored["rates"], stored["rows"])


@pytest.mark.slow
def test_the_interpreter_compiles_nothing():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, "resources"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert "unset it" in done.stderr
