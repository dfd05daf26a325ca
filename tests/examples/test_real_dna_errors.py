"""Errors of the models of a suite: a table that words separate, and a model's predictions row by row."""

import json
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from hf_ssm import S4ForSequenceClassification, build_dna_tokenizer, cli

SETTINGS = """
model: {family: s4, hidden_size: 4, num_hidden_layers: 1, state_size: 4, rc_conjoin: eval}
training: {num_train_epochs: 1, per_device_train_batch_size: 16}
"""


def test_shares_by_hand(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    rng, lines, test_rows = random.Random(0), ["sequence,label,split"], []
    for row in range(104):
        # Soft-masked letters, and N; the word of the class is in every row.
        random_part = "".join(rng.choices("ACGTacgtN", weights=[rng.randint(1, 9) for _ in range(9)], k=24))
        text, split = f"{'GATTACA' if row % 2 else 'CATTAGA'}{random_part}", "train" if row < 60 else "test"
        lines.append(f"{text},{row % 2},{split}")
        if split == "test":
            test_rows.append((text.upper(), row % 2))
    Path("rows.csv").write_text("\n".join(lines) + "\n")
    Path("lab.yml").write_text("tasks: [{name: coding, dataset: rows.csv}]\n")
    Path("small.yaml").write_text(SETTINGS)
    words = ["benchmark", "lab.yml", "small.yaml", "--seeds", "2", "--without-random", "--output", "runs/coding"]
    assert cli.main(words) == 0
    script.main(["--folder", "runs", "--tasks", "coding", "missing", "--output", "out.json"])
    found = json.loads(Path("out.json").read_text())["errors"]["coding"]

    right = np.zeros((2, len(test_rows)))
    for seed, folder in enumerate(sorted(Path("runs/coding/runs/coding").iterdir())):
        model, tokenizer = S4ForSequenceClassification.from_pretrained(folder).eval(), build_dna_tokenizer()
        for row, (text, label) in enumerate(test_rows):
            with torch.no_grad():
                logits = model(torch.tensor([tokenizer.convert_tokens_to_ids(list(text))])).logits[0]
            right[seed, row] = logits.argmax().item() == label
    assert 0 < right.mean() < 1
    share = [sum(letter in "CG" for letter in text) / len(text) for text, _ in test_rows]
    by_share = sorted(range(len(test_rows)), key=lambda row: (share[row], row))
    parts = {"low": by_share[:15], "middle": by_share[15:30], "high": by_share[30:], "all": by_share}
    assert found["seeds"] == 2 and list(found["parts"]) == list(parts)
    for name, rows in parts.items():
        values = found["parts"][name]
        accuracy = right[:, rows].mean()
        # The words have all rows right.
        assert values["words"] == 1.0 and values["only model"] == 0.0 and values["rows"] == len(rows)
        assert values["model"] == pytest.approx(accuracy) and values["only words"] == pytest.approx(1 - accuracy)
        assert values["CG"] == pytest.approx(sum(share[row] for row in rows) / len(rows))
    difference = right.mean(0) - 1
    assert found["difference"] == pytest.approx(difference.mean())
    variance = ((difference - difference.mean()) ** 2).sum() / (len(test_rows) - 1)
    assert found["standard error"] == pytest.approx((variance / len(test_rows)) ** 0.5)
    assert f"coding: model - words = {difference.mean():+.4f} ±" in capsys.readouterr().out
