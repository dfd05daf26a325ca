"""Labels of any kind a task has: a class for each row or each position, or numbers to predict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, Value

from hf_ssm.data.checks import RowName, check_no_missing, clean_labels

IGNORED_LABEL = -100
"""A position without a label; PyTorch's own convention."""


def read_labels(
    column: str, values: Sequence[Any], source: str, row_name: RowName, targets: bool = False
) -> tuple[list[Any], Any]:
    """Check labels and give them one kind.

    Classes are whole numbers, or strings, which become ids in the order of the sorted names; where every row holds a
    list, its entries are the classes of the positions, and -100 marks one without a class.

    Args:
        column: Column of the labels.
        values: The label of every row.
        source: What the data is called.
        row_name: Names a row for people.
        targets: Whether the labels are numbers to predict (a number, a list of numbers, or a list of equally long
            lists for each row), not classes.

    Returns:
        The labels, and the feature that a data set should give them.

    Raises:
        ValueError: A label is missing, or of another kind than the others; the classes are not 0, 1, ... without a
            gap, or one only; a number is not finite.
    """
    if targets:
        return _read_targets(column, values, source, row_name)
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        ids, names = clean_labels(column, values, source, row_name)
        return list(ids), Value("int64") if names is None else ClassLabel(names=names)
    rows = [_as_list(column, value, source, row_name(row)) for row, value in enumerate(values)]
    flat = [entry for row in rows for entry in row]
    owners = [index for index, row in enumerate(rows) for _ in row]
    counted = [index for index, entry in enumerate(flat) if not _is_ignored(entry)]
    if not counted:
        raise ValueError(f"label_column={column!r}: {source} has no position with a class; label some.")
    ids, names = clean_labels(
        column, [flat[index] for index in counted], source, lambda index: row_name(owners[counted[index]])
    )
    found = np.full(len(flat), IGNORED_LABEL)
    found[counted] = ids
    ends = np.cumsum([len(row) for row in rows])[:-1]
    kind = Value("int64") if names is None else ClassLabel(names=names)
    return [part.tolist() for part in np.split(found, ends)], List(kind)


def label_kind(split: Dataset, column: str) -> str:
    """What a column of labels holds: "class", "classes" (for each position), "number" or "numbers"."""
    feature, plural = split.features[column], False
    while isinstance(feature, List):
        feature, plural = feature.feature, True
    is_class = isinstance(feature, ClassLabel) or not str(getattr(feature, "dtype", "")).startswith("float")
    return ("class" if is_class else "number") + ("es" if is_class and plural else "s" if plural else "")


def classes_in(split: Dataset, column: str) -> set[int]:
    """The classes that occur in a split; none where the labels are numbers to predict."""
    kind = label_kind(split, column)
    if kind == "class":
        return {int(label) for label in split[column]}
    if kind == "classes":
        return {int(label) for row in split[column] for label in row if label != IGNORED_LABEL}
    return set()


def _is_ignored(entry: Any) -> bool:
    return isinstance(entry, int) and entry == IGNORED_LABEL


def _as_list(column: str, value: Any, source: str, row: str) -> list[Any]:
    if isinstance(value, list | tuple | np.ndarray) and len(value):
        return list(value)
    raise ValueError(
        f"label_column={column!r}: {source} has lists of labels, but {value!r} in row {row}; give every row a list of "
        "one class for each position."
    )


def _read_targets(column: str, values: Sequence[Any], source: str, row_name: RowName) -> tuple[list[Any], Any]:
    check_no_missing(column, values, source, row_name)
    shape: tuple[int, ...] | None = None
    found = []
    for row, value in enumerate(values):
        try:
            numbers = np.asarray(value)
        except ValueError:  # lists of unequal length
            numbers = np.asarray(None)
        if numbers.dtype.kind not in "iuf" or numbers.ndim > 2 or not numbers.size or not np.isfinite(numbers).all():
            raise ValueError(
                f"label_column={column!r}: {source} has {_short(value)} in row {row_name(row)}, where a regression "
                "needs a finite number, a list of them, or a list of equally long lists."
            )
        # Rows may be of different lengths, not of different depths or widths.
        if shape is not None and (numbers.ndim != len(shape) or numbers.shape[1:] != shape[1:]):
            raise ValueError(
                f"label_column={column!r}: {source} has {_short(value)} in row {row_name(row)}, of another shape than "
                f"{_short(values[0])} in row {row_name(0)}; give every row a label of one kind."
            )
        shape = numbers.shape
        found.append(numbers.astype(np.float32).tolist())
    feature: Any = Value("float32")
    for _ in range(len(shape or ())):
        feature = List(feature)
    return found, feature


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
