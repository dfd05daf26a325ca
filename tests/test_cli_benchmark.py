"""`hf-ssm benchmark`: a checkpoint, a settings file and fine-tuning on a table of a lab."""

import json
from pathlib import Path
from typing import Any

import pytest

from hf_ssm import build_dna_tokenizer, cli

SUITE = "tasks: [{name: coding, dataset: rows.csv, metric: mcc}]\n"
SETTINGS = "model: {family: s4, hidden_size: 4, num_hidden_layers: 1, state_size: 4}\ntraining: {num_train_epochs: 1}\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_model: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = ["sequence,label,split"]
    for row in range(90):
        split = "train" if row < 60 else "test"
        lines.append(
            f"{'ACGT'[row % 4] * 3}{'GATTACA' if row % 2 else 'CCCTGGG'}{'ACGT'[row // 4 % 4] * 4},{row % 2},{split}"
        )
    Path("rows.csv").write_text("\n".join(lines) + "\n")
    Path("lab.yaml").write_text(SUITE)
    Path("small.yaml").write_text(SETTINGS)
    make_model("S4", "ForCausalLM", vocab_size=16).save_pretrained("lm")
    build_dna_tokenizer().save_pretrained("lm")
    return tmp_path


def test_models_of_all_kinds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["benchmark", "lab.yaml", "lm", "small.yaml", "--seeds", "1", "--output", "out"]
    assert cli.main(words) == 0
    table = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[:4] for row in rows] == [
        ["coding", "k-mers", "words", "mcc"],
        ["coding", "lm", "linear probe", "mcc"],
        ["coding", "lm (random weights)", "linear probe", "mcc"],
        ["coding", "small.yaml", "trained", "mcc"],
        ["coding", "small.yaml (random weights)", "linear probe", "mcc"],
    ]
    assert rows[0][4] == "1.0000"
    assert Path("out", "results.md").read_text() == f"# lab\n\n{table}"
    # Again: nothing is measured; with fine-tuning: one more.
    cells = {path: path.stat().st_mtime_ns for path in Path("out", "cells").rglob("*.json")}
    assert cli.main(words) == 0 and capsys.readouterr().out == table
    fine_tune = ["--fine-tune", "--set", "training.num_train_epochs=1", "--without-random"]
    assert cli.main([*words[:3], *fine_tune, *words[4:]]) == 0
    run = json.loads(Path("out", "results.json").read_text())["runs"][-1]
    assert run["how"] == "fine-tuned" and run["results"][0]["parameters"] > 100
    assert all(path.stat().st_mtime_ns == time for path, time in cells.items())
    # With another default, these would be other measurements.
    facts = [json.loads(path.read_text())["facts"] for path in Path("out", "cells").rglob("*.json")]
    runs = {each["how"]: each["facts"]["settings"] for each in facts if "settings" in each["facts"]}
    rates = {how: settings["training"]["learning_rate"] for how, settings in runs.items()}
    assert rates == {"trained": 3e-3, "fine-tuned": 1e-3}


def test_list_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["benchmark", "nucleotide-transformer", "--list", "--tasks", "H3K27ac"]) == 0
    out = capsys.readouterr().out
    assert "H3K27ac  mcc" in out and "task=H3K27ac" in out and "Source: Dalla-Torre" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab.yaml", "lm"], "--output is missing"),
        (["lab.yaml", "nowhere/model.yaml", "--output", "out"], "nowhere/model.yaml"),
        (["lab.yaml", "missing", "--output", "out"], "missing"),
        (["lab.yml", "lm", "--output", "out"], "there is no such file"),
        (["lab.yaml", "lm", "--seeds", "0", "--output", "out"], "--seeds must be positive, got 0"),
        (["lab.yaml", "lm", "--genome", "g.fa", "--output", "out"], "--genome 'g.fa': there is no such path"),
        (["lab.yaml", "lm", "--set", "training.seed=1", "--output", "out"], "--set changes the settings"),
        (
            ["lab.yaml", "small.yaml", "--set", "data.dataset=x.csv", "--output", "out"],
            "the tasks define the data",
        ),
        (["lab.yaml", "small.yaml", "--set", "model.hiden_size=1", "--output", "out"], "hidden_size"),
        (["traitgym", "lm", "--output", "out"], "--genome FASTA"),
        (["lab.yaml", "lm", "--output", "."], "--output"),
    ],
)
def test_errors_before_anything_is_written(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["benchmark", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not Path("out").exists()
