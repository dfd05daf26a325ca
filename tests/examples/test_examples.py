"""The example scripts run in their tiny setting, and the settings files resolve."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_ssm.data import GENERATORS
from hf_ssm.training.settings import read_settings_file, resolve

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param("hyena", marks=pytest.mark.grid), "selective"])
def test_planted_motifs(family: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    command = [sys.executable, EXAMPLES / "planted_motifs.py", "--family", family, "--tiny", "--seeds", "1"]
    done = subprocess.run([*command, "--output", result], capture_output=True, text=True, check=True)
    accuracy = json.loads(result.read_text())["accuracy"]
    assert set(accuracy) == {"plain", "rescaled", "regularised", "both"}
    assert all(len(values) == 1 and 0 <= values[0] <= 1 for values in accuracy.values())
    assert f"{accuracy['both'][0]:.3f}" in done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: path.name)
def test_settings_files_resolve(path: Path) -> None:
    settings = read_settings_file(path)
    source = settings["data"].get("dataset")
    resolve(settings, {"data": {"dataset": source if source in GENERATORS else "some.csv"}})
