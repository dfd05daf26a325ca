"""The masking experiment on classified sequences: a tiny run and its helpers."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="module")
def masking(script: ModuleType) -> ModuleType:
    return sys.modules["_masking"]


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, folder = tmp_path / "result.json", tmp_path / "run"
    arguments = [
        "--tiny",
        "--tasks",
        "planted",
        "--families",
        "hyena",
        "--folder",
        str(folder),
        "--output",
        str(output),
    ]
    script.main(arguments)
    content = json.loads(output.read_text())["experiments"]["planted, hyena"]
    assert list(content["masked_by"]) == ["N", "draws"]
    for found in content["masked_by"].values():
        curves = found["curves"]
        assert {curve["curves"] for curve in curves.values()} == {2} and len(curves["chosen"]["mean"]) == 21
        gains = [
            curves[name]["area"][0] - curves[other]["area"][0]
            for name, other in (("chosen", "random order"), ("untrained", "untrained, random order"))
        ]
        assert found["excess"][0] == pytest.approx(gains[0] - gains[1], abs=1e-6)
        assert 0 <= found["tests"]["sufficiency"][0] <= 1
    for name in ("curves.png", "strip.png"):
        assert (folder / "planted_hyena" / name).stat().st_size > 1000
    assert "| planted, hyena (" in capsys.readouterr().out

    # A second call finds the model, and says the same.
    weights = (folder / "planted_hyena" / "model.safetensors").stat().st_mtime_ns
    script.main(arguments)
    assert (folder / "planted_hyena" / "model.safetensors").stat().st_mtime_ns == weights
    assert json.loads(output.read_text())["experiments"]["planted, hyena"] == content
    with pytest.raises(SystemExit, match="other settings"):
        script.main([word for word in arguments if word != "--tiny"])


def test_summary(masking: ModuleType) -> None:
    low, high = torch.tensor([0.8, 0.8, 0.3, 0.0, 0.0]).double(), torch.tensor([1.0, 1.0, 1.0, 0.6, 0.0]).double()
    found = masking.summary([low, high])
    assert found["area"] == pytest.approx([(1.5 / 4 + 3.1 / 4) / 2, 0.4])
    assert found["mean"][::5] == [0.9, 0.9, 0.65, 0.3, 0.0]
    assert found["error"][10] == pytest.approx(0.7, abs=1e-4)


def test_cropped(masking: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,sequence,label,split\na,CACGTC,0,train\nb,TTAATT,1,test\nc,GGRRGG,0,test\n")
    path = masking.cropped(tmp_path / "rows.csv", tmp_path / "new" / "middle.csv", 4)
    assert Path(path).read_text().split() == ["sequence,label,split", "ACGT,0,train", "TAAT,1,test"]
    path = masking.cropped(tmp_path / "rows.csv", tmp_path / "one.csv", label="0")
    assert Path(path).read_text().split() == ["sequence,split", "CACGTC,train"]
