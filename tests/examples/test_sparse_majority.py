"""The sparse majority experiment: a tiny run and the ramp loss."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.mark.slow
def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    script.main(["--tiny", "--seeds", "1", "--output", str(result)])
    content = json.loads(result.read_text())
    printed = capsys.readouterr().out
    runs = content["runs"]
    assert [(run["kind"], run["length"]) for run in runs] == [
        *[("stable", length) for length in (5, 8, 11)],
        *[("raw", length) for length in (5, 8, 11)],
    ]
    for run in runs:
        assert run["gap"] == pytest.approx(run["train_accuracy"] - run["test_accuracy"])
        assert (run["theory"]["bound"] is None) == bool(run["failed"]) == (run["theory"]["norms"]["s_A"] <= 0)
    stable = [run for run in runs if run["kind"] == "stable"]
    assert all(run["theory"]["bound"] > 1 and run["theory"]["gap"]["is_vacuous"] for run in stable)
    assert "The bound is vacuous for 3 of 3 models" in printed
    assert content["trends"].keys() == {"stable", "raw"}
    assert f"{content['trends']['stable']['pooled']['slope']:+.4f}" in printed


def test_ramp_loss(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    model = script.build_model("stable")
    scores = torch.tensor([[2.0], [0.25], [-0.5], [-3.0]])

    class Output:
        logits = scores

    monkeypatch.setattr(model, "forward", lambda *given: Output)
    data = {"input_ids": torch.zeros(4, 2), "labels": torch.tensor([1.0, 1.0, 1.0, 0.0])}
    accuracy, ramp = script.accuracy_and_ramp(model, data)
    assert accuracy == 0.75
    assert ramp == pytest.approx((0 + 0.75 + 1 + 0) / 4)
