"""Tables as splits: the rows of one file parted by a column, further files that are a split each, or both."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features

from hf_ssm.data.checks import check_column, check_sequences
from hf_ssm.data.labels import read_labels
from hf_ssm.data.signals import check_signals
from hf_ssm.data.splits import rows_of_splits
from hf_ssm.data.tables import Columns, read_table

SPLIT_COLUMN = "split"  # may be absent; a column named otherwise was asked for and must be there


def load_tables(
    path: Path,
    split_files: Mapping[str, Path],
    text_columns: Mapping[str, str],
    label_column: str | None,
    split_column: str | None,
    column_names: Sequence[str] | None,
    quoted: bool,
    targets: bool = False,
) -> dict[str, Dataset]:
    """Read one table or several, check their rows, and give the splits.

    Args:
        path: The table of the training rows; its split column, where there is one, may part off other splits.
        split_files: Split name to a further table, all of whose rows are that split.
        text_columns: Argument of the caller to the column of texts that it names, such as `sequence_column` to
            "text"; each must be there and hold text in every row; that of `sequence_column` may hold numbers instead.
        label_column: Column of the labels, or None.
        split_column: Column that says the split, or None.
        column_names: Names of the columns of files without a header line.
        quoted: Whether cells of csv and tsv files may be quoted.
        targets: Whether the labels are numbers to predict; see `read_labels`.

    Returns:
        "train" and the other splits there are. Several files keep the columns that all of them have.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file cannot be read, lacks a column, or its rows are not fit to train on; a split stands in
            `path` and in `split_files`.
    """
    needed = dict(text_columns)
    if label_column is not None:
        needed["label_column"] = label_column
    if split_column is not None and split_column != SPLIT_COLUMN:
        needed["split_column"] = split_column
    columns = _read(path, needed, text_columns, column_names, quoted)
    rows = {"train": np.arange(_count(columns))}
    if split_column is not None and split_column in columns:
        rows = rows_of_splits(columns.pop(split_column), path.name)
    used = np.sort(np.concatenate(list(rows.values())))
    columns = {name: [values[row] for row in used] for name, values in columns.items()}
    rows = {name: np.searchsorted(used, indices) for name, indices in rows.items()}
    # Where a row stands, counted from 1, the header not included.
    places = [str(row + 1) for row in used]
    if split_files:
        places = [f"{place} of {path.name}" for place in places]
        needed.pop("split_column", None)
    for name, file in split_files.items():
        if name in rows:
            raise ValueError(
                f"{name}_file={str(file)!r}: the column {split_column!r} of {path.name} marks {name} rows already; "
                "give split_column=None, or leave the file out."
            )
        more = _read(file, needed, text_columns, column_names, quoted)
        more.pop(split_column or "", None)
        rows[name] = len(places) + np.arange(_count(more))
        places += [f"{row} of {file.name}" for row in range(1, _count(more) + 1)]
        columns = {column: values + more[column] for column, values in columns.items() if column in more}
    source = " and ".join(file.name for file in (path, *split_files.values()))
    table = _checked(columns, text_columns, label_column, source, places, targets)
    return {name: table.select(indices) for name, indices in rows.items()}


def _read(
    path: Path,
    needed: Mapping[str, str],
    text_columns: Mapping[str, str],
    column_names: Sequence[str] | None,
    quoted: bool,
) -> Columns:
    columns = read_table(path, text_columns.values(), column_names, quoted)
    for argument, column in needed.items():
        check_column(argument, column, list(columns), path.name)
    return columns


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _checked(
    columns: Columns,
    text_columns: Mapping[str, str],
    label_column: str | None,
    source: str,
    places: list[str],
    targets: bool,
) -> Dataset:
    """The rows as one data set, once sequences and labels have been found in order."""
    kinds: dict[str, Any] = {}
    for argument, column in text_columns.items():
        if argument == "sequence_column" and any(isinstance(value, list) for value in columns[column]):
            kinds[column] = check_signals(column, columns[column], source, places.__getitem__)
        else:
            check_sequences(column, columns[column], source, places.__getitem__, argument)
    if label_column is not None:
        labels, kinds[label_column] = read_labels(
            label_column, columns[label_column], source, places.__getitem__, targets
        )
        columns = {**columns, label_column: labels}
    try:
        table = Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError) as error:  # Arrow's errors are of these kinds
        raise ValueError(
            f"source={source!r}: {_mixed(columns)} ({error}); give each column one kind, or leave it out."
        ) from error
    return table.cast(Features({**table.features, **kinds})) if kinds else table


def _mixed(columns: Columns) -> str:
    """Says which column Arrow cannot hold."""
    for name, values in columns.items():
        try:
            Dataset.from_dict({name: values})
        except (ValueError, TypeError, OverflowError):
            return f"the column {name!r} mixes kinds of values"
    return "a column mixes kinds of values"
