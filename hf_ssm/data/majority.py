"""Sparse majority: whether a string of bits has more ones than zeros.

The number of ones is stratified over 0 ... `length`, and their positions are random. A tie is no majority. After
labelling, each one of a training row becomes a zero with probability `flip_rate`; validation and test rows are
noise-free.

Source: Honarpisheh et al. 2025, Section 5 and Appendix A.1 (after Trauger & Tewari 2024).
"""

from typing import Any

import numpy as np
from datasets import ClassLabel, DatasetDict, Features, Value

from hf_ssm.data.checks import check_integer
from hf_ssm.data.splits import generated

_FEATURES = Features({"sequence": Value("string"), "label": ClassLabel(names=["no majority", "majority"])})


def sparse_majority(
    num_train: int = 1000,
    num_validation: int = 500,
    num_test: int = 1000,
    length: int = 200,
    flip_rate: float = 0.1,
    seed: int = 0,
) -> DatasetDict:
    """Generate bit strings for the majority task; the module docstring describes them.

    Short strings with few or many ones may repeat, also across splits.

    Args:
        num_train, num_validation, num_test: Rows per split; 0 omits a validation or test split. The rows of a split do
            not depend on the sizes of the others.
        length: Bits per row, T.
        flip_rate: Probability that a one of a training row becomes a zero, in [0, 1).
        seed: Random seed.

    Returns:
        `train`, `validation`, `test`, each with the columns `sequence` (such as "0110") and `label` (`ClassLabel`: 1
        where more than half of the bits, before the flips, are ones). The description of the data set has the
            parameters.

    Raises:
        ValueError: A number is out of its range.
    """
    check_integer("length", length, 1)
    if not 0.0 <= flip_rate < 1.0:
        raise ValueError(f"flip_rate={flip_rate!r}: give a probability in [0, 1).")

    def columns_of(split: str, size: int, rng: np.random.Generator) -> dict[str, Any]:
        bits, labels = _rows(size, length, flip_rate if split == "train" else 0.0, rng)
        return {"sequence": [(row + ord("0")).tobytes().decode() for row in bits], "label": labels.tolist()}

    description = (
        f"Sparse majority: the rows are strings of {length} bits, with the number of ones spread evenly over 0 to "
        f"{length}. The label is 1 where more than half of the bits are ones. {flip_rate:.0%} of the ones of the "
        f"training rows were then turned into zeros. Seed {seed}."
    )
    streams = np.random.SeedSequence(seed).spawn(3)
    return generated((num_train, num_validation, num_test), streams, columns_of, _FEATURES, description)


def _rows(size: int, length: int, flip_rate: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Bits `(size, length)`, uint8, and labels `(size,)`."""
    # Stratified: one draw from each of `size` equal parts of the range.
    ones = ((np.arange(size) + rng.random(size)) * (length + 1) / size).astype(np.int64)
    # Rounding may exceed the range by one.
    ones = rng.permutation(np.minimum(ones, length))
    bits = (np.arange(length) < ones[:, None]).astype(np.uint8)
    bits = rng.permuted(bits, axis=1)
    kept = rng.random(bits.shape) >= flip_rate
    return bits * kept, (2 * ones > length).astype(np.int64)
