"""Labels: a class or a number for each row or each position."""

import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, Value

from hf_ssm.data.checks import RowName, rows_text
from hf_ssm.data.tables import as_numbers

logger = logging.getLogger(__name__)

IGNORED_LABEL = -100
"""Label of a position without a label, PyTorch's `ignore_index`."""

_SEPARATORS = re.compile(r"[\s,;|]+")
# Several labels of a row, such as "0|1|0|1" or "[0, 1]".
_FLAGS = re.compile(r"\[?\s*[01]([.]0*)?([\s,;|]+[01]([.]0*)?)+\s*\]?")
_TO_REGRESSION = "To predict numbers: targets=True (command: --task sequence-regression)."


def read_labels(
    column: str,
    values: Sequence[Any],
    source: str,
    row_name: RowName,
    targets: bool = False,
    multi_label: bool = False,
    per_position: bool = False,
) -> tuple[list[Any], Any]:
    """Check labels and convert them to one type; return the labels and their `datasets` feature.

    Classes are whole numbers, or strings, which become ids in the order of the sorted names. Lists hold the class of
    each position, with -100 for positions without a class. With `targets`, labels are regression targets: a number, a
    list of numbers, or a list of equally long lists for each row; numbers in lists may be missing (NaN). With
    `multi_label`, equally long lists of 0 and 1 are labels of the row, each of which holds or does not. With one of
    these or `per_position`, lists may be texts, see `_as_lists`. `source` and `row_name` name the data in messages.

    Raises:
        ValueError: A label is missing or of another type than the others; the classes are not 0, 1, ... without a gap,
            or there is only one; a number is infinite.
    """
    if targets or per_position:
        values = _as_lists(values, per_position)
    if targets:
        values = as_numbers(list(values)) if all(isinstance(value, str) for value in values) else values
        return _read_targets(column, values, source, row_name)
    flags = _read_flags(column, values, source, row_name) if multi_label else None
    if flags is not None:
        return flags, List(Value("float32"), length=len(flags[0]))
    if not any(map(_is_list, values)):
        return _read_classes(column, values, source, row_name)
    for row, value in enumerate(values):
        if not _is_list(value) or not len(value):
            raise ValueError(
                f"label_column={column!r}: {source} has lists of labels, but {row_name(row)} has {value!r}; "
                "give every row a list with the class of each position."
            )
    entries = [(row, entry) for row, value in enumerate(values) for entry in value if entry != IGNORED_LABEL]
    if not entries:
        raise ValueError(f"label_column={column!r}: {source} has no position with a class; label at least two classes.")
    ids, kind = _read_classes(
        column, [entry for _, entry in entries], source, lambda index: row_name(entries[index][0])
    )
    rest = iter(ids)
    labels = [[entry if entry == IGNORED_LABEL else next(rest) for entry in value] for value in values]
    return labels, List(kind)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def label_columns(label_column: str | Sequence[str] | None) -> dict[str, str]:
    """Name of the argument, for messages, to the column of the labels, or to each of several."""
    if label_column is None or isinstance(label_column, str):
        return {} if label_column is None else {"label_column": label_column}
    return {f"label_column[{index}]": name for index, name in enumerate(label_column)}


def merged_name(label_column: str | Sequence[str]) -> str:
    """The column of the labels in the loaded data: of several columns, their names joined by ", "."""
    return label_column if isinstance(label_column, str) else ", ".join(label_column)


def label_kind(split: Dataset, column: str) -> str:
    """Type of a label column: "class", "classes" (of positions), "flags" (several of a row), "number" or "numbers"."""
    return label_kind_of(split.features[column])


def label_kind_of(feature: Any) -> str:
    """The same of the feature of a column."""
    if isinstance(feature, List) and feature.length > 0 and str(getattr(feature.feature, "dtype", "")) == "float32":
        return "flags"  # regression targets are lists of any length
    is_list = isinstance(feature, List)
    while isinstance(feature, List):
        feature = feature.feature
    if isinstance(feature, ClassLabel) or not str(getattr(feature, "dtype", "")).startswith("float"):
        return "classes" if is_list else "class"
    return "numbers" if is_list else "number"


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


def canonical(value: Any) -> str:
    """A label as text, the same for 1, 1.0 and True, or "true"; "" for a missing one."""
    text = "" if is_missing(value) else str(value).strip()
    whole = re.fullmatch(r"([+-]?[0-9]+)[.]0*", text)
    return {"true": "1", "false": "0"}.get(text.lower(), whole[1] if whole else text)


def _as_lists(values: Sequence[Any], per_position: bool) -> list[Any]:
    """Cells such as "[0, 1]", "0|1" or "0 1" as lists; with `per_position`, of other texts those of their letters.

    Returns:
        The values themselves if one of them is no such text.
    """
    if not all(isinstance(value, str) and value.strip() for value in values):
        return list(values)
    rows = [[entry.strip("'\"") for entry in _SEPARATORS.split(text.strip("[] \n")) if entry] for text in values]
    if all(len(row) == 1 for row in rows) and not per_position:
        return list(values)
    rows = [list(row[0]) if len(row) == 1 and per_position else row for row in rows]
    entries = iter(as_numbers([entry for row in rows for entry in row]))
    return [[next(entries) for _ in row] for row in rows]


def _read_flags(column: str, values: Sequence[Any], source: str, row_name: RowName) -> list[list[float]] | None:
    """Labels of which each holds (1) or does not (0), NaN if it is unknown; None for values of another kind."""
    are_texts = [isinstance(value, str) and bool(_FLAGS.fullmatch(value.strip())) for value in values]
    if any(are_texts):
        check_no_missing(column, values, source, row_name)
        if not all(are_texts):
            row = are_texts.index(False)
            raise ValueError(
                f"label_column={column!r}: {source} has {_short(values[row])} in {row_name(row)}, but other rows have "
                "several labels, such as '0|1'; give every row as many labels."
            )
        values = _as_lists(values, per_position=False)
    elif not all(_is_list(value) and len(value) for value in values):
        return None
    texts = [list(map(canonical, value)) for value in values]
    if not {entry for row in texts for entry in row} <= {"0", "1", ""}:
        return None
    for row, entries in enumerate(texts):
        if len(entries) != len(texts[0]) or not any(entries):
            raise ValueError(
                f"label_column={column!r}: {source} has {_short(values[row])} in {row_name(row)}, but "
                f"{_short(values[0])} in {row_name(0)}; give every row as many labels, 0 or 1 (for a class of each "
                "position: --task token-classification)."
            )
    return [[float(entry or "nan") for entry in row] for row in texts]


def _read_classes(column: str, values: Sequence[Any], source: str, row_name: RowName) -> tuple[list[int], Any]:
    check_no_missing(column, values, source, row_name)
    kind: Any = Value("int64")
    if all(isinstance(value, str) for value in values):
        kind = ClassLabel(names=sorted(set(values)))
        ids = kind.str2int(values)
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
    targets = list[np.ndarray]()
    for row, value in enumerate(values):
        try:
            numbers = np.asarray(value, dtype=np.float64)  # None becomes NaN
        except (TypeError, ValueError):  # texts, or lists of different lengths
            numbers = np.array(np.nan)
        where = f"label_column={column!r}: {source} has {_short(value)} in {row_name(row)}"
        if isinstance(value, str) or numbers.ndim > 2 or np.isinf(numbers).any() or np.isnan(numbers).all():
            raise ValueError(
                f"{where}; a regression target is a finite number, a list of numbers, or a list of equally long lists."
            )
        # The first dimension may differ between rows.
        if targets and (numbers.ndim, numbers.shape[1:]) != (targets[0].ndim, targets[0].shape[1:]):
            raise ValueError(
                f"{where}, which has another shape than {_short(values[0])} in {row_name(0)}; give all "
                "labels the same shape."
            )
        targets.append(numbers)
    missing = sum(int(np.isnan(numbers).sum()) for numbers in targets)
    if missing:
        total = sum(numbers.size for numbers in targets)
        logger.warning("%s: %d of the %d numbers of %r are missing; they do not count.", source, missing, total, column)
    feature: Any = Value("float32")
    for _ in targets[0].shape:
        feature = List(feature)
    return [numbers.astype(np.float32).tolist() for numbers in targets], feature


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
