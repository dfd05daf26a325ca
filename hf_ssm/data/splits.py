"""Train, validation and test rows: generated ones, by a column of the data, or by a random split."""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features

from hf_ssm.data.checks import check_integer

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
_SPELLINGS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}


def generated(
    sizes: tuple[int, int, int],
    streams: Sequence[np.random.SeedSequence],
    columns_of: Callable[[str, int, np.random.Generator], dict[str, Any]],
    features: Features,
    description: str,
    least: int = 1,
) -> DatasetDict:
    """Splits of `sizes` rows, made by `columns_of` from the name, the number of rows and the random stream of a split.

    The test rows come first, so that they do not depend on the number of training rows, which is at least `least`; 0
    omits another split. `description` is for the model card.
    """
    for split, size in zip(SPLITS, sizes, strict=True):
        check_integer(f"num_{split}", size, least if split == "train" else 0)
    splits: dict[str, Dataset] = {}
    for split, size, stream in reversed(list(zip(SPLITS, sizes, streams, strict=True))):
        if size:
            splits[split] = Dataset.from_dict(columns_of(split, size, np.random.default_rng(stream)), features=features)
            splits[split].info.description = description
    return DatasetDict({split: splits[split] for split in SPLITS if split in splits})


def split_name(value: object) -> str | None:
    """The standard name of a split such as "dev", or None if it is unknown."""
    return _SPELLINGS.get(str(value).strip().lower())


def rows_of_splits(values: Sequence[object], source: str) -> dict[str, np.ndarray]:
    """Row indices of each split by the values of a split column, which must mark some rows "train".

    Rows of other values are dropped with a warning.
    """
    names = np.array([split_name(value) or "" for value in values])
    others = Counter(str(value) for value in values if split_name(value) is None)
    for value, count in sorted(others.items()):
        logger.warning("%s: dropped %d rows of split %r.", source, count, value)
    rows = {name: np.flatnonzero(names == name) for name in SPLITS if (names == name).any()}
    if "train" not in rows:
        raise ValueError(
            f"split_column: {source} has no rows of split 'train' (found "
            f"{sorted({str(v)[:40] for v in values})[:10]}); mark the training rows, or pass split_column=None "
            "for a random split."
        )
    return rows


def cut(
    sequences: Sequence[Hashable], labels: Sequence[int] | None, fractions: dict[str, float], seed: int
) -> dict[str, np.ndarray]:
    """Split rows randomly into "train" and the splits of `fractions`, stratified by label.

    Rows with equal sequences (or pairs of texts) are in the same split, so that no test sequence is trained on. The
    shares are exact to one row per label if no sequence occurs twice.

    Args:
        sequences, labels: Of each row; `labels` may be None.
        fractions: Split name to its share of the rows, in [0, 1); splits with a share of 0 are omitted.
        seed: Seed of the random split.

    Returns:
        Split name to ascending row indices.

    Raises:
        ValueError: There are too few rows for one in each split.
    """
    first: dict[Hashable, int] = {}
    group = np.array([first.setdefault(sequence, len(first)) for sequence in sequences])
    _, leader = np.unique(group, return_index=True)
    kinds = np.zeros(len(leader), dtype=int) if labels is None else np.asarray(labels)[leader]
    rng = np.random.default_rng(seed)
    place = np.zeros(len(leader), dtype=int)
    names = ["train", *(name for name, share in fractions.items() if share > 0.0)]
    for kind in np.unique(kinds):
        members = rng.permutation(np.flatnonzero(kinds == kind))
        done = 0
        for index, name in enumerate(names[1:], start=1):
            count = round(fractions[name] * len(members))
            place[members[done : done + count]] = index
            done += count
    rows = {name: np.flatnonzero(place[group] == index) for index, name in enumerate(names)}
    for name, indices in rows.items():
        if not len(indices):
            shares = ", ".join(f"{split}_fraction={share}" for split, share in fractions.items())
            raise ValueError(
                f"{shares}: {len(sequences)} rows leave none for {name!r}; set the fraction to 0 or give more data."
            )
    return rows


def check_fractions(validation_fraction: float, test_fraction: float) -> None:
    """Raise a `ValueError` unless both fractions are in [0, 1) and leave rows for training."""
    for name, value in (("validation_fraction", validation_fraction), ("test_fraction", test_fraction)):
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{name}={value!r}: give a share of the rows in [0, 1).")
    if validation_fraction + test_fraction >= 1.0:
        raise ValueError(
            f"validation_fraction={validation_fraction!r} and test_fraction={test_fraction!r} leave no rows "
            "to train on; make their sum less than 1."
        )
