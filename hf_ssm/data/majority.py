"""Sparse majority: does a string of bits hold more ones than zeros?

The number of ones is spread evenly over 0 ... `length`, so that some rows are decided by one bit and others by many;
their places are drawn by chance. A tie is no majority. After the training rows got their labels, each of their ones is
turned into a zero with probability `flip_rate`; validation and test rows stay as they were drawn.

Source: Honarpisheh et al. 2025, Section 5 and Appendix A.1 (after Trauger & Tewari 2024).
"""

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

_FEATURES = Features({"sequence": Value("string"), "label": ClassLabel(names=["no majority", "majority"])})


def sparse_majority(
    num_train: int = 1000,
    num_validation: int = 500,
    num_test: int = 1000,
    length: int = 200,
    flip_rate: float = 0.1,
    seed: int = 0,
) -> DatasetDict:
    """Generate the bit strings; the module's docstring describes them.

    Short strings with few or many ones occur more than once, also in different splits.

    Args:
        num_train: Rows in "train".
        num_validation: Rows in "validation"; 0 leaves the split out.
        num_test: Rows in "test"; 0 leaves the split out. The rows of a split do not depend on the sizes of the others.
        length: Bits per row, T.
        flip_rate: Probability with which a one of a training row is turned into a zero, in [0, 1).
        seed: Seed of everything random.

    Returns:
        `train`, `validation`, `test`, each with the columns `sequence` (such as "0110") and `label` (`ClassLabel`: 1
        where more than half of the bits, before the flips, are ones). The data set's description says how it was made.

    Raises:
        ValueError: A number is out of its range.
    """
    _check(num_train, num_validation, num_test, length, flip_rate)
    sizes = {"train": num_train, "validation": num_validation, "test": num_test}
    streams = np.random.SeedSequence(seed).spawn(len(sizes))
    splits = {}
    for (name, size), stream in zip(sizes.items(), streams, strict=True):
        if not size:
            continue
        bits, labels = _rows(size, length, flip_rate if name == "train" else 0.0, np.random.default_rng(stream))
        text = [(row + ord("0")).tobytes().decode() for row in bits]
        splits[name] = Dataset.from_dict({"sequence": text, "label": labels.tolist()}, features=_FEATURES)
        splits[name].info.description = (
            f"Sparse majority: strings of {length} bits, the number of ones spread evenly over 0 to {length}; label 1 "
            f"where more than half are ones. {flip_rate:.0%} of the ones of the training rows were then turned into "
            f"zeros. Seed {seed}."
        )
    return DatasetDict(splits)


def _rows(size: int, length: int, flip_rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Bits `(size, length)`, uint8, and labels `(size,)`."""
    # One draw from each of `size` equal parts of the range of counts.
    ones = ((np.arange(size) + rng.random(size)) * (length + 1) / size).astype(np.int64)
    # The product of the largest draw may round up to the end of the range.
    ones = rng.permutation(np.minimum(ones, length))
    bits = (np.arange(length) < ones[:, None]).astype(np.uint8)
    bits = rng.permuted(bits, axis=1)
    kept = rng.random(bits.shape) >= flip_rate
    return bits * kept, (2 * ones > length).astype(np.int64)


def _check(num_train: int, num_validation: int, num_test: int, length: int, flip_rate: float) -> None:
    """Refuse numbers out of range; the message names the argument and the range."""
    for name, value, least in (
        ("num_train", num_train, 1),
        ("num_validation", num_validation, 0),
        ("num_test", num_test, 0),
        ("length", length, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, at least {least}.")
    if not 0.0 <= flip_rate < 1.0:
        raise ValueError(f"flip_rate={flip_rate!r}: give a probability in [0, 1).")
