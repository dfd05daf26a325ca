"""`hf-ssm compress`: the checkpoint, its files and table, and errors for bad input."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_ssm
from hf_ssm import cli


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "table.csv"
    draw = random.Random(0)
    rows = [f"{''.join(draw.choices('ACGT', k=draw.randint(10, 24)))},{row % 2}" for row in range(30)]
    path.write_text("\n".join(["sequence,label", *rows]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An S4-LegS classifier with a tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    torch.manual_seed(0)
    config = hf_ssm.S4Config(hidden_size=8, num_hidden_layers=2, state_size=16, kernel_type="s4")
    hf_ssm.S4ForSequenceClassification(config).save_pretrained(folder)
    hf_ssm.build_dna_tokenizer().save_pretrained(folder)
    return folder


def test_compressed_checkpoint(checkpoint, table, tmp_path, capsys):
    output = tmp_path / "small"
    words = ["--dataset", table, "--split", "train", "--rows", "20", "--batch-size", "7"]
    assert run("compress", checkpoint, "--state-size", "8", "--output", output, *words) == 0
    printed = capsys.readouterr().out
    assert "16 → 8" in printed and "Measured on 20 sequences" in printed and "The accuracy is " in printed
    result = json.loads((output / "compression.json").read_text(encoding="utf-8"))
    assert (result["state_size"], result["checkpoint"], result["measured"]["rows"]) == (8, "model", 20)
    for layer, measured in zip(result["layers"], result["measured"]["layers"], strict=True):
        assert 0 < measured["gain"] <= layer["bound"]["largest"]
    model = AutoModelForSequenceClassification.from_pretrained(output)
    assert (model.config.kernel_type, model.config.state_size) == ("s4d", 8)
    original = AutoModelForSequenceClassification.from_pretrained(checkpoint)
    expected = hf_ssm.compress(original, state_size=8).model
    tokens = AutoTokenizer.from_pretrained(output)(["ACGTTGAC"], return_tensors="pt")
    assert torch.equal(model(**tokens).logits, expected.eval()(**tokens).logits)
    assert run("verify", output) == 0
    assert run("report", output, "--dataset", table) == 0
    assert "Hankel singular values" in capsys.readouterr().out


def test_without_data_nothing_is_measured(checkpoint, tmp_path, capsys):
    assert run("compress", checkpoint, "--tolerance", "0.2", "--output", tmp_path / "small") == 0
    assert "The error was not measured" in capsys.readouterr().out
    assert json.loads((tmp_path / "small/compression.json").read_text())["measured"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--state-size", "64"],
            "`state_size` must be even and between 2 and 16, the `state_size` of the model, got 64.",
        ),
        (["--tolerance", "2"], "`tolerance` must be a share of at least 0 and below 1, got 2.0."),
        (["--state-size", "8", "--rows", "0"], "--rows must be positive, got 0"),
    ],
)
def test_bad_options(checkpoint, tmp_path, capsys, words, message):
    assert run("compress", checkpoint, "--output", tmp_path / "small", *words) == 2
    assert capsys.readouterr().err.strip().endswith(message)
    assert not (tmp_path / "small").exists()


def test_other_families_and_full_folders(checkpoint, tmp_path, capsys):
    hf_ssm.SelectiveSSMForCausalLM(hf_ssm.SelectiveSSMConfig(hidden_size=8)).save_pretrained(tmp_path / "mamba")
    assert run("compress", tmp_path / "mamba", "--state-size", "8", "--output", tmp_path / "small") == 2
    assert "layer 0 cannot be compressed: the system of SelectiveScan depends on" in capsys.readouterr().err
    assert run("compress", checkpoint, "--state-size", "8", "--output", tmp_path / "mamba") == 2
    assert "is not empty" in capsys.readouterr().err
    assert run("compress", checkpoint, "--state-size", "8", "--output", checkpoint) == 2
    assert "is the input" in capsys.readouterr().err
