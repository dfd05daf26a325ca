"""The trend over λ: a tiny run, which does not repeat stored runs."""

import gzip
import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def write_small_data(folder: Path) -> None:
    """Forty images and forty expressions in the formats of the real files."""
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (40, 28, 28), dtype=np.uint8), np.arange(40, dtype=np.uint8) % 10
    with gzip.open(folder / "mnist_t10k-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 2051, 40, 28, 28) + images.tobytes())
    with gzip.open(folder / "mnist_t10k-labels-idx1-ubyte.gz", "wb") as file:
        file.write(struct.pack(">II", 2049, 40) + labels.tobytes())
    lines = [f"( ( ( [MAX {row % 10} ) 0 ) ] )\t{row % 10}" for row in range(40)]
    for split in ("train", "test"):
        with gzip.open(folder / f"listops_len95-105_{split}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(["Source\tTarget", *lines]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["images", "listops"])
def test_tiny_run_continues(script: ModuleType, frozen_garbage, tmp_path: Path, monkeypatch, capsys, task: str) -> None:
    write_small_data(tmp_path)
    arms = {"λ = 0": {}, "λ = 0.1, rescaled": {"model": {"tau_weight": 0.1, "rescale_init": True}}}
    monkeypatch.setattr(script, "arms_of", lambda kernel_type: arms)
    result = tmp_path / "result.json"
    options = [task, "--tiny", "--data", str(tmp_path), "--output", str(result)]
    script.main([*options, "--seeds", "1"])
    first = json.loads(result.read_text())
    assert set(first["runs"]) == {"λ = 0 (seed 0)", "λ = 0.1, rescaled (seed 0)"}
    for run in first["runs"].values():
        assert 0 <= run["test"] <= 1 and 0 <= run["train"] <= 1 and run["seconds"] > 0
    assert "after rescaling" in first["runs"]["λ = 0.1, rescaled (seed 0)"]["tau"]
    assert "after rescaling" not in first["runs"]["λ = 0 (seed 0)"]["tau"]
    assert first["overhead"] > 0 and len(first["baselines"]) == 2
    printed = capsys.readouterr().out
    assert f"| λ = 0 | {first['runs']['λ = 0 (seed 0)']['test']:.3f} |" in printed
    script.main([*options, "--seeds", "2"])
    second = json.loads(result.read_text())
    assert len(second["runs"]) == 4
    assert {name: second["runs"][name] for name in first["runs"]} == first["runs"]
    assert str(tmp_path) not in result.read_text()
