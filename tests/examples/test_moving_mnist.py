"""The experiment on moving digits: measures, and a tiny run."""

import gzip
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Ten random images in MNIST's format."""
    images = np.random.default_rng(0).integers(0, 256, size=(10, 28, 28), dtype=np.uint8)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + np.array(images.shape, ">u4").tobytes() + images.tobytes()))
    return path


def test_errors_by_channel_and_frame(script: ModuleType) -> None:
    frames, predicted = torch.zeros(2, 3, 4, 4, 3), torch.zeros(2, 3, 4, 4, 3)
    predicted[:, 1, ..., 0] = 0.5
    predicted[0, 2, ..., 2] = 1
    errors = script.channel_errors(predicted, frames)
    assert errors == {"fast": [0.0, 250.0, 0.0], "slow": [0.0, 0.0, 500.0]}


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output, picture = tmp_path / "moving.json", tmp_path / "moving.png"
    script.main(["--tiny", "--source", str(source), "--output", str(output), "--picture", str(picture)])
    results = json.loads(output.read_text())
    assert list(results["settings"]) == ["α = 1, shift = 0", "α = 1, shift = 200"]
    for (run,) in results["settings"].values():
        for kind in ("next", "generated"):
            assert all(len(run[kind][digit]) == 2 and min(run[kind][digit]) > 0 for digit in ("fast", "slow"))
    still = results["baselines"]["still"]
    assert np.mean(still["next"]["slow"]) < np.mean(still["next"]["fast"])
    assert still["generated"]["fast"][0] == still["next"]["fast"][0]
    assert results["arguments"]["source"] == source.name
    assert picture.stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "| α = 1, shift = 200 |" in printed and "| still |" in printed
