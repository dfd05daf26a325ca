"""Pairs of texts and tables for each split, from the settings of a run to its token ids."""

from pathlib import Path
from typing import Any

import pytest

from hf_ssm.training.inputs import load_data
from hf_ssm.training.settings import RunSettings, resolve


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """`settings(**data)`: of a run on two tables of pairs, one for each split."""
    rows = {"train": ["ACG\tAA\t0", "A\tTTT\t1"], "test": ["CC\tG\t1"]}
    for name, lines in rows.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")

    def make(**data: Any) -> RunSettings:
        columns = {"column_names": ["one", "two", "label"], "sequence_column": "one", "pair_column": "two"}
        files = {"dataset": str(tmp_path / "train.tsv"), "test_file": str(tmp_path / "test.tsv")}
        return resolve({"data": {**files, **columns, "validation_fraction": 0, "tokenizer": "dna", **data}})

    return make


def test_pairs_become_ids_with_the_separator(settings: Any) -> None:
    loaded = load_data(settings(max_length=5))
    assert loaded.splits["train"].to_dict() == {"labels": [0, 1], "input_ids": [[7, 8, 1, 7, 7], [7, 1, 10, 10, 10]]}
    assert loaded.splits["test"].to_dict() == {"labels": [1], "input_ids": [[8, 8, 1, 9]]}
    assert loaded.classes == ["0", "1"]


def test_without_the_second_column_it_is_not_read(settings: Any) -> None:
    assert load_data(settings(pair_column=None)).splits["train"]["input_ids"][:] == [[7, 8, 9], [7]]


def test_the_reverse_complement_is_refused_for_pairs(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"data.reverse_complement would move letters"):
        load_data(settings(reverse_complement=True))


def test_listops_is_a_name_of_a_tokenizer(settings: Any) -> None:
    loaded = load_data(settings(tokenizer="listops"))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.convert_tokens_to_ids("[MAX") == 18
    with pytest.raises(ValueError, match=r"data.tokenizer 'listop'.*did you mean 'listops'"):
        load_data(settings(tokenizer="listop"))
