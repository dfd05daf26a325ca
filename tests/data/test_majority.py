"""Sparse majority: even counts of ones, labels before the flips, flips in the training rows alone."""

import numpy as np
import pytest
from scipy.stats import kstest

from hf_ssm.data import load_sequences, sparse_majority


def bits(split) -> np.ndarray:
    return np.array([[int(bit) for bit in row] for row in split["sequence"]])


@pytest.fixture(scope="module")
def default():
    return sparse_majority()


@pytest.mark.parametrize("length", [1, 10, 25])
def test_the_label_is_the_majority_and_a_tie_is_none(length):
    data = sparse_majority(length=length, flip_rate=0.0, num_train=600)
    for split in data.values():
        for row in split:
            assert row["label"] == (row["sequence"].count("1") > row["sequence"].count("0"))
    ones = bits(data["train"]).sum(axis=1)
    assert set(ones) == set(range(length + 1))
    if length % 2 == 0:
        assert {label for label, count in zip(data["train"]["label"], ones, strict=True) if 2 * count == length} == {0}


def test_the_number_of_ones_is_even_from_none_to_all(default):
    ones = bits(default["test"]).sum(axis=1)
    # 201 counts in 1,000 rows: 4.98 each, and stratified never further away than 2.
    share = np.bincount(ones, minlength=201)
    assert share.min() >= 3
    assert share.max() <= 7
    assert set(np.bincount(bits(sparse_majority(length=399, num_test=100)["test"]).sum(axis=1) // 4)) == {1}


def test_the_places_are_drawn_by_chance(default):
    # By columns, the number of ones is 500 of 1,000; the standard deviation of a random place is about 13.
    columns = bits(default["test"]).sum(axis=0)
    assert abs(columns - 500).max() < 70
    assert len({tuple(row) for row in bits(default["test"])}) > 980


def test_flips_turn_ones_to_zeros_in_the_training_rows_alone(default):
    clean = sparse_majority(flip_rate=0.0)
    for name, split in default.items():
        before, after = bits(clean[name]), bits(split)
        assert split["label"][:] == clean[name]["label"][:]
        if name == "train":
            assert (after <= before).all()
            # 100,000 ones: the standard error of the rate is 0.001.
            assert 1 - after.sum() / before.sum() == pytest.approx(0.1, abs=0.005)
        else:
            assert (after == before).all()
    lost = (bits(clean["train"]) - bits(default["train"])).sum(axis=0)
    assert kstest(np.repeat(np.arange(200), lost) / 200, "uniform").pvalue > 1e-3


def test_the_seed_decides_everything_and_sizes_do_not_matter():
    small = {"num_train": 20, "num_validation": 10, "num_test": 10, "length": 40}
    first, second = sparse_majority(**small), sparse_majority(**small)
    larger = sparse_majority(**small | {"num_train": 50, "num_validation": 0})
    for name in first:
        assert first[name].to_dict() == second[name].to_dict()
    assert list(larger) == ["train", "test"]
    assert larger["test"].to_dict() == first["test"].to_dict()
    assert sparse_majority(**small, seed=1)["test"].to_dict() != first["test"].to_dict()


def test_by_name():
    data = load_sequences("majority", length=9, num_train=12, num_validation=0, num_test=4, seed=3)
    assert data["train"].to_dict() == sparse_majority(12, 0, 4, length=9, seed=3)["train"].to_dict()
    assert data["train"].features["label"].names == ["no majority", "majority"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_train": 0}, "num_train=0"), ({"length": 0}, "length=0"), ({"flip_rate": 1.0}, r"flip_rate=1\.0")],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sparse_majority(**options)
