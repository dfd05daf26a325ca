"""Splits by a column and random splits."""

import logging
from collections import Counter

import numpy as np
import pytest

from hf_ssm.data.splits import check_fractions, cut, rows_of_splits, sequence_keys


def test_spellings_of_the_splits_and_unknown_values(caplog):
    values = ["train", "Test", "dev", "valid ", "val", "validation", "training", "seen", "seen", None]
    with caplog.at_level(logging.WARNING):
        rows = rows_of_splits(values, "file")
    assert {name: list(indices) for name, indices in rows.items()} == {
        "train": [0, 6],
        "validation": [2, 3, 4, 5],
        "test": [1],
    }
    assert "dropped 2 rows of split 'seen'" in caplog.text
    assert "dropped 1 rows of split 'None'" in caplog.text


def test_no_training_rows_are_an_error():
    with pytest.raises(ValueError, match=r"no rows of split 'train'.*\['a', 'test'\]"):
        rows_of_splits(["test", "a"], "file")


def test_cut_is_a_stratified_partition():
    labels = [0] * 600 + [1] * 300 + [2] * 100
    rows = cut([str(row) for row in range(1000)], labels, {"validation": 0.1, "test": 0.2}, seed=0)
    assert sorted(np.concatenate(list(rows.values()))) == list(range(1000))
    counts = {name: Counter(labels[row] for row in indices) for name, indices in rows.items()}
    assert counts == {
        "train": {0: 420, 1: 210, 2: 70},
        "validation": {0: 60, 1: 30, 2: 10},
        "test": {0: 120, 1: 60, 2: 20},
    }
    assert all(list(indices) == sorted(indices) for indices in rows.values())


def test_cut_follows_the_seed():
    sequences = [str(row) for row in range(100)]
    first, again, other = (cut(sequences, None, {"test": 0.5}, seed)["test"] for seed in (0, 0, 1))
    assert list(first) == list(again)
    assert list(first) != list(other)


def test_equal_sequences_stay_together():
    sequences = [str(row % 40) for row in range(200)]
    rows = cut(sequences, [row % 2 for row in range(200)], {"validation": 0.25, "test": 0.25}, seed=0)
    sides = [{sequences[row] for row in indices} for indices in rows.values()]
    assert sorted(len(side) for side in sides) == [10, 10, 20]
    assert sum(len(indices) for indices in rows.values()) == 200


def test_too_few_rows_are_an_error_and_a_share_of_zero_gives_no_split():
    assert list(cut(["A", "C"], None, {"validation": 0.0, "test": 0.0}, seed=0)) == ["train"]
    with pytest.raises(ValueError, match=r"validation_fraction=0.1: 2 rows are too few to give 'validation' a row"):
        cut(["A", "C"], None, {"validation": 0.1}, seed=0)


@pytest.mark.parametrize(
    ("fractions", "message"),
    [
        ((-0.1, 0.1), "validation_fraction=-0.1"),
        ((0.1, float("nan")), "test_fraction=nan"),
        ((0.6, 0.4), "leave no rows to train on"),
    ],
)
def test_bad_fractions_are_refused(fractions, message):
    with pytest.raises(ValueError, match=message):
        check_fractions(*fractions)


def test_copies_of_dna_have_one_key():
    first, *copies, other, lower, text, protein = sequence_keys(
        ["ACCGTR", "accgtn", "ACCGUN", "ACC GTN", "NACGGT", "ACCGTA", "tacggt", "hello", "HELLO"]
    )
    assert set(copies) == {first} and other == lower != first
    assert text != protein
