"""Labels: a class or a number for each row or each position."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, Value

from hf_ssm.data.checks import RowName, rows_text

IGNORED_LABEL = -100
"""Label of a position without a label, PyTorch's `ignore_index`."""

_TO_REGRESSION = "To predict numbers: targets=True (command: --task sequence-regression)."


def read_labels(
    column: str, values: Sequence[Any], source: str, row_name: RowName, targets: bool = False
) -> tuple[list[Any], Any]:
    """Check labels and convert them to one type; return the labels and their `datasets` feature.

    Classes are whole numbers, or strings, which become ids in the order of the sorted names. Lists hold the class of
    each position, with -100 for positions without a class. With `targets`, labels are regression targets: a number, a
    list of numbers, or a list of equally long lists for each row. `source` and `row_name` name the data in messages.

    Raises:
        ValueError: A label is missing or of another type than the others; the classes are not 0, 1, ... without a gap,
            or there is only one; a number is not finite.
    """
    if targets:
        return _read_targets(column, values, source, row_name)
    if not any(isinstance(value, list | tuple | np.ndarray) for value in values):
        return _read_classes(column, values, source, row_name)
    for row, value in enumerate(values):
        if not isinstance(value, list | tuple | np.ndarray) or not len(value):
            raise ValueError(
                f"label_column={column!r}: {source} has lists of labels, but {row_name(row)} has {value!r}; "
                "give every row a list with the class of each position."
            )
    flat = [entry for value in values for entry in value]
    owners = [row for row, value in enumerate(values) for _ in value]
    counted = [index for index, entry in enumerate(flat) if not (isinstance(entry, int) and entry == IGNORED_LABEL)]
    if not counted:
        raise ValueError(f"label_column={column!r}: {source} has no position with a class; label at least two classes.")
    ids, kind = _read_classes(
        column, [flat[index] for index in counted], source, lambda index: row_name(owners[counted[index]])
    )
    all_ids = np.full(len(flat), IGNORED_LABEL)
    all_ids[counted] = ids
    ends = np.cumsum([len(value) for value in values])[:-1]
    return [row_ids.tolist() for row_ids in np.split(all_ids, ends)], List(kind)


def label_columns(label_column: str | Sequence[str] | None) -> dict[str, str]:
    """Name of the argument, for messages, to the column of the labels, or to each of several."""
    if label_column is None or isinstance(label_column, str):
        return {} if label_column is None else {"label_column": label_column}
    return {f"label_column[{index}]": name for index, name in enumerate(label_column)}


def merged_name(label_column: str | Sequence[str]) -> str:
    """The column of the labels in the loaded data: of several columns, their names joined by ", "."""
    return label_column if isinstance(label_column, str) else ", ".join(label_column)


def label_kind(split: Dataset, column: str) -> str:
    """Type of a label column: "class", "classes" (of each position), "number" or "numbers"."""
    feature, plural = split.features[column], False
    while isinstance(feature, List):
        feature, plural = feature.feature, True
    is_class = isinstance(feature, ClassLabel) or not str(getattr(feature, "dtype", "")).startswith("float")
    return ("class" if is_class else "number") + ("es" if is_class and plural else "s" if plural else "")


def classes_in(split: Dataset, column: str) -> set[int]:
    """The classes that occur in a split; empty for regression targets."""
    kind = label_kind(split, column)
    if kind == "class":
        return {int(label) for label in split[column]}
    if kind == "classes":
        return {int(label) for row in split[column] for label in row if label != IGNORED_LABEL}
    return set()


def check_no_missing(column: str, values: Sequence[Any], source: str, row_name: RowName) -> None:
    """Raise a `ValueError` that names the rows whose label is None, NaN or blank."""
    missing = [row for row, value in enumerate(values) if is_missing(value)]
    if missing:
        raise ValueError(
            f"label_column={column!r}: {source} has rows without a label ({rows_text(missing, row_name)}); fill them "
            "in or remove the rows."
        )


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or a text that is blank or says so."""
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _read_classes(column: str, values: Sequence[Any], source: str, row_name: RowName) -> tuple[list[int], Any]:
    check_no_missing(column, values, source, row_name)
    kind: Any = Value("int64")
    if all(isinstance(value, str) for value in values):
        kind = ClassLabel(names=sorted(set(values)))
        index = {name: number for number, name in enumerate(kind.names)}
        ids = [index[value] for value in values]
    else:
        for row, value in enumerate(values):
            if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
                raise ValueError(
                    f"label_column={column!r}: {source} has the label {value!r} in {row_name(row)}; give every row "
                    f"a whole number (classes 0, 1, ...), or every row a name. {_TO_REGRESSION}"
                )
        ids = [int(value) for value in values]
    classes = sorted(set(ids))
    if len(classes) < 2:
        raise ValueError(
            f"label_column={column!r}: {source} has only one class ({values[0]!r}); give data with two or more classes."
        )
    if classes != list(range(len(classes))):
        shown = classes if len(classes) <= 20 else [*classes[:20], "..."]
        raise ValueError(
            f"label_column={column!r}: the classes of {source} are {shown}; number them 0 to {len(classes) - 1} "
            f"without a gap, or use names. {_TO_REGRESSION}"
        )
    return ids, kind


def _read_targets(column: str, values: Sequence[Any], source: str, row_name: RowName) -> tuple[list[Any], Any]:
    check_no_missing(column, values, source, row_name)
    shape: tuple[int, ...] | None = None
    targets = []
    for row, value in enumerate(values):
        try:
            numbers = np.asarray(value)
        except ValueError:  # lists of different lengths
            numbers = np.asarray(None)
        where = f"label_column={column!r}: {source} has {_short(value)} in {row_name(row)}"
        if numbers.dtype.kind not in "iuf" or numbers.ndim > 2 or not numbers.size or not np.isfinite(numbers).all():
            raise ValueError(
                f"{where}; a regression target is a finite number, a list of numbers, or a list of equally long lists."
            )
        # The first dimension may differ between rows.
        if shape is not None and (numbers.ndim != len(shape) or numbers.shape[1:] != shape[1:]):
            raise ValueError(
                f"{where}, which has another shape than {_short(values[0])} in {row_name(0)}; give all "
                "labels the same shape."
            )
        shape = numbers.shape
        targets.append(numbers.astype(np.float32).tolist())
    feature: Any = Value("float32")
    for _ in shape or ():
        feature = List(feature)
    return targets, feature


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
