"""The masking experiment on classified sequences: a tiny run and its helpers."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from hf_ssm.probes import MaskingResult


def result_of(order: list[int]) -> MaskingResult:
    count = len(order)
    curve = torch.linspace(1, 0, count + 1, dtype=torch.float64)
    ids = torch.arange(count) % 4
    return MaskingResult(ids, torch.tensor(order), curve, {"kind": "class", "label": 1}, "exact", "mask", count, count)


@pytest.fixture(scope="module")
def masking(script: ModuleType) -> ModuleType:
    return sys.modules["_masking"]


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    arguments = ["--tiny", "--mask-share", "1", "--folder", str(tmp_path / "run"), "--output", str(output)]
    script.main(arguments)
    content = json.loads(output.read_text())
    assert content["cost_of_a_sequence"]["exact"]["sequences"] == 2
    assert content["cost_of_a_sequence"]["plain loop"]["evaluations"] == 24 * 25 // 2
    assert [len(content["precision"][name]) for name in ("exact", "screened", "one_shot")] == [2, 3, 3]
    assert len(content["chosen"]["mean"]) == 21
    assert content["chosen"]["curves"] == content["others"]["curves"] == 3
    assert content["agreement_with_exact"]["screened"]["sequences"] == 2
    assert (tmp_path / "run" / "curves.png").stat().st_size > 1000
    assert (tmp_path / "run" / "strip.png").stat().st_size > 1000
    assert "| exact | " in capsys.readouterr().out

    # A second call finds the model and the probes, and says the same.
    (tmp_path / "run" / "curves.png").unlink()
    weights = (tmp_path / "run" / "model" / "model.safetensors").stat().st_mtime_ns
    script.main(arguments)
    assert (tmp_path / "run" / "model" / "model.safetensors").stat().st_mtime_ns == weights
    again = json.loads(output.read_text())
    for name in ("test", "chosen", "others", "areas", "precision"):
        assert again[name] == content[name]
    with pytest.raises(SystemExit, match="other settings"):
        script.main([*arguments, "--seed", "1"])


def test_precision(script: ModuleType) -> None:
    results = [result_of([0, 5, 1, 2, 4, 3]), result_of([2, 3, 4, 0, 1, 5])]
    assert script.precision(results, [{2, 3, 4}, {3, 4, 5}]) == [1.0, pytest.approx(1 / 3)]


def test_summary(masking: ModuleType) -> None:
    low, high = torch.tensor([0.8, 0.8, 0.3, 0.0, 0.0]).double(), torch.tensor([1.0, 1.0, 1.0, 0.6, 0.0]).double()
    found = masking.summary([low, high])
    assert found["masked_until"]["0.9"]["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["masked_until"]["0.5"]["mean"] == pytest.approx((0.25 + 0.75) / 2)
    assert found["area"]["mean"] == pytest.approx((1.5 / 4 + 3.1 / 4) / 2)
    assert found["mean"][::5] == [0.9, 0.9, 0.65, 0.3, 0.0]
    assert found["deviation"][10] == pytest.approx(0.7 / 2**0.5, abs=1e-4)
