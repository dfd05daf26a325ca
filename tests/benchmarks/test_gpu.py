"""The benchmark of the Triton kernels: it runs whole in Triton's interpreter, and refuses what it cannot do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"

pytest.importorskip("triton", reason="triton is not installed")


def run(*arguments: str, interpreted: bool) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRITON_INTERPRET": str(int(interpreted))}
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
def test_all_of_it_runs_in_the_interpreter(tmp_path: Path) -> None:
    done = run("--tiny", "--output", str(tmp_path / "gpu.json"), interpreted=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "gpu.json").read_text())["results"]
    sections = {row["section"] for row in rows}
    assert sections == {"parity", "scan", "ssd", "convolution", "short_conv", "lti", "decoding", "training"}
    errors = [row["median"] for row in rows if row["section"] == "parity"]
    assert len(errors) == 12
    assert all(0 < error < 0.03 for error in errors)


@pytest.mark.slow
def test_real_sizes_need_a_gpu() -> None:
    done = run("scan", interpreted=True)
    assert done.returncode == 2
    assert "add --tiny" in done.stderr
