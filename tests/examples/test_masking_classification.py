"""The masking experiment on classified sequences: a tiny run and its helpers."""

import csv
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

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


@pytest.mark.usefixtures("frozen_garbage")
def test_a_table_of_real_sequences(script: ModuleType, tmp_path: Path) -> None:
    letters = random.Random(0)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sequence", "label", "split"])
        for row in range(40):
            writer.writerow(["".join(letters.choices("ACGT", k=20)), row % 2, "test" if row < 10 else "train"])
    output = tmp_path / "result.json"
    data = ["--data", "human_enhancers_cohn", "--path", str(tmp_path / "table.csv")]
    script.main(["--tiny", *data, "--family", "s4", "--folder", str(tmp_path / "run"), "--output", str(output)])
    content = json.loads(output.read_text())
    assert "precision" not in content
    assert content["sequences_of_class"] == 5
    assert content["cost_of_a_sequence"]["screened"]["sequences"] == 3


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_training_is_continued(
    script: ModuleType, masking: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            if state.epoch >= 1:
                raise KeyboardInterrupt

    resumed: list[str | None] = []
    build = masking._trainer

    def watched(*arguments):
        trainer = build(*arguments)
        train = trainer.train
        monkeypatch.setattr(trainer, "train", lambda **named: (resumed.append(*named.values()), train(**named)))
        if len(resumed) == 0:
            trainer.add_callback(Interrupted())
        return trainer

    monkeypatch.setattr(masking, "_trainer", watched)
    words = ["--tiny", "--family", "s4", "--folder", str(tmp_path / "run"), "--set", "training.num_train_epochs=2"]
    with pytest.raises(KeyboardInterrupt):
        script.main(words)
    record = tmp_path / "run" / "model" / "experiment.json"
    interrupted = json.loads(record.read_text())
    assert "test" not in interrupted and interrupted["training_seconds"] > 0
    with pytest.raises(SystemExit, match="other settings"):
        script.main([*words, "model.hidden_dropout=0.5"])
    script.main(words)
    assert resumed[0] is None and Path(resumed[1]).name == "checkpoint-1"
    content = json.loads(record.read_text())
    assert content["test"]["epochs"] == 2
    assert content["test"]["training_seconds"] > interrupted["training_seconds"]


def test_either_strand_or_masks(script: ModuleType, tmp_path: Path) -> None:
    words = ["--tiny", "--folder", str(tmp_path / "run"), "--set", "data.reverse_complement=true"]
    with pytest.raises(SystemExit, match="both change rows when they are read"):
        script.main([*words, "--mask-share", "1"])
    args = script.parse(["--data", "human_or_worm", "--set", "model.hidden_dropout=0.2", "data.seed=3"])
    found = script.settings(args)
    assert (found["model"]["hidden_dropout"], found["data"]["seed"]) == (0.2, 3)
    assert found["data"]["dataset"] == "data/human_or_worm_mini.csv.gz"


def test_random_masks(masking: ModuleType) -> None:
    torch.manual_seed(0)
    special, mask, motif = 0, 9, [1, 2, 3, 4]
    rows = [[special, 5, 6, *motif, 7, 8] for _ in range(400)]
    tokens = Dataset.from_dict({"input_ids": rows, "labels": [1] * 400})
    plain = masking.with_random_masks(tokens, mask, [special], 0.5)[:]
    ids = torch.tensor(plain["input_ids"])
    assert plain["labels"] == [1] * 400
    assert (ids[:, 0] == special).all()
    assert ((ids == mask) | (ids == torch.tensor(rows))).all()
    assert (ids[:, 1:] == mask).double().mean().item() == pytest.approx(0.25, abs=0.03)

    taught = masking.with_random_masks(tokens, mask, [special], 0.5, motif)[:]
    ids, labels = torch.tensor(taught["input_ids"]), torch.tensor(taught["labels"])
    lost = (ids[:, 3:7] == mask).sum(1)
    assert ((lost > 0) == (labels == 0)).all()
    assert labels.double().mean().item() == pytest.approx(0.5, abs=0.1)
    assert set(lost.tolist()) == {0, 1, 2, 3, 4}
    decoys = Dataset.from_dict({"input_ids": [[5, 6, 7, 8, 5, 6]] * 50, "labels": [0] * 50})
    assert masking.with_random_masks(decoys, mask, [special], 1.0, motif)[:]["labels"] == [0] * 50


def test_precision(script: ModuleType) -> None:
    results = [result_of([0, 5, 1, 2, 4, 3]), result_of([2, 3, 4, 0, 1, 5])]
    assert script.precision(results, [{2, 3, 4}, {3, 4, 5}]) == [1.0, pytest.approx(1 / 3)]


def test_choose(script: ModuleType) -> None:
    found = torch.tensor([0.96, 0.4, 0.99, 0.7, 0.97, 0.8])
    assert script.choose(found, 2, 0.95, False) == [0, 2]
    assert script.choose(found, 5, 0.95, False) == [0, 2, 4, 5, 3]
    assert script.choose(found, 6, 0.95, True)[-1] == 1
    with pytest.raises(SystemExit, match="only 5 sequences"):
        script.choose(found, 6, 0.95, False)


def test_others_are_masked_in_the_order_of_the_chosen(script: ModuleType) -> None:
    calls = []

    class Probe:
        def evaluate(self, ids: str, order: torch.Tensor, target: int) -> None:
            calls.append((ids, order.tolist(), target))

    results = [result_of([0, 1]), result_of([1, 0]), result_of([0, 1])]
    script.curves_of_others(Probe(), ["a", "b", "c"], results, 2)
    order = [[0, 1], [0, 1], [1, 0], [1, 0], [0, 1], [0, 1]]
    assert calls == list(zip("bccaab", order, [1] * 6, strict=True))


def test_summary(masking: ModuleType) -> None:
    low, high = torch.tensor([0.8, 0.8, 0.3, 0.0, 0.0]).double(), torch.tensor([1.0, 1.0, 1.0, 0.6, 0.0]).double()
    found = masking.summary([low, high])
    assert found["masked_until"]["0.9"]["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert found["masked_until"]["0.5"]["mean"] == pytest.approx((0.25 + 0.75) / 2)
    assert found["area"]["mean"] == pytest.approx((1.5 / 4 + 3.1 / 4) / 2)
    assert found["mean"][::5] == [0.9, 0.9, 0.65, 0.3, 0.0]
    assert found["deviation"][10] == pytest.approx(0.7 / 2**0.5, abs=1e-4)
