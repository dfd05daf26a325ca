"""The baseline of token counts learns what counts tell, and nothing else."""

import numpy as np
from datasets import Dataset

from hf_ssm.training.baselines import count_baseline


def rows(count: int, seed: int, label) -> Dataset:
    ids = np.random.default_rng(seed).integers(7, 11, (count, 40))
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": [label(row) for row in ids]})


def test_classes_that_counts_tell():
    """The pair 7, 8 is more frequent than 8, 7."""

    def more(row) -> int:
        return int(((row[:-1] == 7) & (row[1:] == 8)).sum() > ((row[:-1] == 8) & (row[1:] == 7)).sum())

    found = count_baseline(rows(1000, 0, more), rows(400, 1, more))
    assert found["accuracy"] > 0.9 and found["mcc"] > 0.8


def test_classes_that_only_the_order_tells():
    found = count_baseline(
        rows(1000, 0, lambda row: int(row[0] < row[-1])), rows(400, 1, lambda row: int(row[0] < row[-1]))
    )
    assert found["accuracy"] < 0.75


def test_numbers():
    found = count_baseline(
        rows(1000, 0, lambda row: float((row == 7).mean())), rows(300, 1, lambda row: float((row == 7).mean()))
    )
    assert found["r2"] > 0.9 and set(found) == {"mse", "mae", "r2", "pearson", "spearman"}


def test_one_class_has_no_baseline():
    assert count_baseline(rows(50, 0, lambda row: 1), rows(50, 1, lambda row: 1)) == {}
