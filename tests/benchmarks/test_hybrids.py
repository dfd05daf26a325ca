"""The benchmark of hybrids: a tiny run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hybrids.py"


@pytest.mark.slow
def test_tiny() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--tiny"], capture_output=True, text=True, check=True)
    *_, sizes, _, header, rule, row = done.stdout.strip().splitlines()
    assert re.search(r"parameters: Hyena2 [\d,]+, Lfm2 [\d,]+$", sizes)
    assert (header, rule) == ("| prompt | Lfm2 / Hyena2 | range |", "|---|---|---|")
    assert re.fullmatch(r"\| 4 \| \d+\.\d\d \| \d+\.\d\d to \d+\.\d\d \|", row)
