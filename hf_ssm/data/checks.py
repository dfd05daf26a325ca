"""What must hold of a table before a model is trained on it; every message names the rows."""

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

RowName = Callable[[int], str]
"""Gives the name under which a user finds a row, such as "17" or "17 of 'test'", from its index."""

_SHOWN = 5


def nearest(name: str, choices: Iterable[str]) -> str:
    """A hint such as ` (did you mean "label"?)`, or nothing when no choice is near."""
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f" (did you mean {folded[found[0]]!r}?)" if found else ""


def check_column(argument: str, column: str, columns: Sequence[str], source: str) -> None:
    """Refuse a column that is not there.

    Raises:
        ValueError: naming the argument, the columns there are, and the nearest of them.
    """
    if column not in columns:
        raise ValueError(
            f"{argument}={column!r}: {source} has no such column{nearest(column, columns)}; its columns are "
            f"{list(columns)}."
        )


def check_sequences(
    column: str, values: Sequence[Any], source: str, row_name: RowName, argument: str = "sequence_column"
) -> None:
    """Refuse sequences that are not text, or hold nothing but white space.

    Raises:
        ValueError: naming the argument, the column and the rows.
    """
    wrong = [row for row, value in enumerate(values) if value is not None and not isinstance(value, str)]
    if wrong:
        kind = type(values[wrong[0]]).__name__
        raise ValueError(
            f"{argument}={column!r}: {source} holds {kind} there, not text ({_rows(wrong, row_name)}); "
            "name the column of the sequences."
        )
    empty = [row for row, value in enumerate(values) if not value or not value.strip()]
    if empty:
        raise ValueError(
            f"{argument}={column!r}: {source} has empty sequences ({_rows(empty, row_name)}); fill "
            "them, or take the rows out."
        )


def clean_labels(
    column: str, values: Sequence[Any], source: str, row_name: RowName
) -> tuple[list[int], list[str] | None]:
    """Check labels and turn them into class ids.

    Whole numbers (also booleans, and floats such as 1.0) stay what they are; strings become ids in the order
    of the sorted names.

    Returns:
        The ids, and the names where the labels were strings.

    Raises:
        ValueError: a label is missing, neither a whole number nor a string, or of another kind than the
            others; there is one class only; the ids are not 0, 1, 2, ... without a gap.
    """
    check_no_missing(column, values, source, row_name)
    names = None
    if all(isinstance(value, str) for value in values):
        names = sorted(set(values))
        index = {name: number for number, name in enumerate(names)}
        ids = [index[value] for value in values]
    else:
        ids = [_whole_number(column, value, source, row_name(row)) for row, value in enumerate(values)]
    classes = sorted(set(ids))
    if len(classes) < 2:
        raise ValueError(
            f"label_column={column!r}: {source} has one class only ({values[0]!r}); give data of two or more."
        )
    if classes != list(range(len(classes))):
        shown = classes if len(classes) <= 20 else [*classes[:20], "..."]
        raise ValueError(
            f"label_column={column!r}: the classes of {source} are {shown}; number them 0 to "
            f"{len(classes) - 1} without a gap, or give names."
        )
    return ids, names


def check_no_missing(column: str, values: Sequence[Any], source: str, row_name: RowName) -> None:
    """Refuse labels that are None, NaN or blank.

    Raises:
        ValueError: naming the column and the rows.
    """
    missing = [row for row, value in enumerate(values) if _is_missing(value)]
    if missing:
        raise ValueError(
            f"label_column={column!r}: {source} has rows without a label ({_rows(missing, row_name)}); fill "
            "them, or take the rows out."
        )


def _whole_number(column: str, value: Any, source: str, row: str) -> int:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(
        f"label_column={column!r}: {source} has the label {value!r} in row {row}; give every row a whole "
        "number (classes 0, 1, ...), or every row a name."
    )


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in ("", "nan")
    return value is None or (isinstance(value, float) and math.isnan(value))


def _rows(rows: list[int], row_name: RowName) -> str:
    shown = ", ".join(row_name(row) for row in rows[:_SHOWN])
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"
