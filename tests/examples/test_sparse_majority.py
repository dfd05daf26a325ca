"""The sparse majority experiment: a tiny run and its formulas."""

import json
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch


@pytest.mark.slow
def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, picture = tmp_path / "result.json", tmp_path / "picture.png"
    script.main(["--tiny", "--seeds", "1", "--output", str(result), "--picture", str(picture)])
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
    assert picture.stat().st_size > 1000


def test_trend_is_least_squares(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    lengths = np.repeat(np.arange(25, 401, 25), 3).astype(float)
    gaps = 0.02 + 3e-5 * lengths + 0.01 * rng.normal(size=len(lengths))
    found = script.trend(lengths.tolist(), gaps.tolist())
    design = np.stack([np.ones_like(lengths), lengths], axis=1)
    (_, slope), (squares,), *_ = np.linalg.lstsq(design, gaps, rcond=None)
    error = math.sqrt(squares / (len(gaps) - 2) / ((lengths - lengths.mean()) ** 2).sum())
    # The 0.975 quantile of Student's t with 46 degrees of freedom, from a table.
    expected = [100 * value for value in (slope, slope - 2.0129 * error, slope + 2.0129 * error)]
    assert [found["slope"], found["low"], found["high"]] == pytest.approx(expected, rel=1e-4)
    assert found["p_value"] < 0.05


def test_the_interval_holds_the_truth_as_often_as_it_says(script: ModuleType) -> None:
    rng = np.random.default_rng(1)
    lengths = list(range(25, 401, 25))
    lines = [script.trend(lengths, rng.normal(size=16)) for _ in range(400)]
    inside = np.mean([line["low"] <= 0 <= line["high"] for line in lines])
    assert abs(inside - 0.95) < 0.04  # the standard error is 0.011


def test_penalty(script: ModuleType) -> None:
    labels = torch.tensor([0.0, 1.0, 1.0])
    alike = script.loss_with_penalty(torch.zeros(3), labels)
    assert alike.item() == pytest.approx(math.log(2) + 1.0)  # 10 (0.1 - 0)
    scores = torch.tensor([0.0, 0.2, 0.1])
    probabilities = [1 / (1 + math.exp(-score)) for score in scores.tolist()]
    entropy = -(math.log(1 - probabilities[0]) + math.log(probabilities[1]) + math.log(probabilities[2])) / 3
    expected = entropy + 10 * (0.1 - np.std(probabilities, ddof=1))
    assert script.loss_with_penalty(scores, labels).item() == pytest.approx(expected, rel=1e-5)
    apart = torch.tensor([-3.0, 3.0, 3.0])
    assert script.loss_with_penalty(apart, labels).item() == pytest.approx(math.log1p(math.exp(-3)), rel=1e-5)


@pytest.mark.parametrize(("kind", "largest"), [("stable", -0.1), ("raw", 0.0)])
def test_initial_weights(script: ModuleType, kind: str, largest: float) -> None:
    model = script.build_model(kind)
    A = model.model.layers[0].mixer.scan.state_matrix()
    assert A.shape == (16, 4)
    torch.testing.assert_close(A[:, 0], torch.full((16,), largest))
    assert (A[:, 1:] > -10).all() and (A[:, 1:] < 0).all()
    assert model.model.layers[0].mixer.scan.x_proj.weight.std().item() == pytest.approx(1.0, abs=0.2)


def test_the_rate_falls_with_the_plateau_of_the_training_loss(script: ModuleType, tmp_path: Path) -> None:
    """With patience 0 in place of 5 and losses that cannot fall by 90 %, each further epoch takes off a tenth."""
    rows = [{"input_ids": torch.randint(0, 2, (6,)), "labels": torch.tensor(float(i % 2))} for i in range(8)]
    model = script.build_model("stable")
    adam = torch.optim.Adam(model.parameters(), lr=1e-6)
    arguments = script.quiet_training(
        str(tmp_path),
        num_train_epochs=4,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"factor": 0.9, "patience": 0, "threshold": 0.9},
        eval_strategy="epoch",
    )
    trainer = script.MajorityTrainer(model, arguments, train_dataset=rows, eval_dataset=rows, optimizers=(adam, None))
    trainer.train()
    assert adam.param_groups[0]["lr"] == pytest.approx(1e-6 * 0.9**3)
    assert not trainer.losses


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
