"""The benchmark of packed rows: both ways train on the same documents, and the script runs."""

import re

import pytest
import torch


@pytest.mark.slow
def test_tiny(script, capsys) -> None:
    script.main(["--tiny"])
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \d", capsys.readouterr().out, flags=re.MULTILINE)
    named = [name for name, quantity in rows if quantity == "tokens per second"]
    assert named == ["S4D", "S4", "Hyena", "Mamba blocks", "plain selective blocks"]


def test_both_batches_hold_the_same_documents(script) -> None:
    padded, packed = script.batches_of([3, 1, 5])
    assert padded["input_ids"].shape == (3, 5)
    assert torch.equal(padded["input_ids"][padded["attention_mask"].bool()], packed["input_ids"][0])
    assert packed["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2, 2, 2, 2]]


def test_lengths_of_a_table(script, tmp_path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("sequence,label\nACGT,0\nAC,1\nACGTACGTACGT,1\n")
    assert script.lengths_of_tables([str(table)], "sequence", 10) == [4, 2, 10]
