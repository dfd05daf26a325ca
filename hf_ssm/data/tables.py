"""Tables from csv, tsv, json and jsonl files, split by a column or by file.

`datasets.load_dataset("csv")` is not used: it reads the sequences "NA", "NAN" and "null" as missing values and caches
the table.
"""

import csv
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from datasets import Dataset

from hf_ssm.data.columns import check_columns, usual_columns
from hf_ssm.data.files import bare_suffix, opened
from hf_ssm.data.splits import rows_of_splits

logger = logging.getLogger(__name__)

Columns = dict[str, list[Any]]
"""Column name to its values, all of one length."""

SPLIT_COLUMN = "split"
"""The default split column, which a table may lack; a split column of any other name is required."""

# Of a csv file in memory, which is read row by row.
_ROWS = 128

_JSON_SUFFIXES = (".json", ".jsonl")
TABLE_SUFFIXES = (".csv", ".tsv", *_JSON_SUFFIXES)

_MISSING = {"", "na", "n/a", "nan", "none", "null", "<na>"}
# int() and float() also accept "1_000"; a number of more than 18 digits may exceed the int64 of an Arrow column. The
# parts of a form begin with different characters, so that the time to match is linear in the length of a cell.
_NUMBERS = (
    (int, re.compile(r"[+-]?[0-9]{1,18}")),
    (float, re.compile(r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?")),
)


def load_tables(
    path: Path,
    split_files: Mapping[str, Path],
    needed: Mapping[str, str],
    text_columns: Iterable[str],
    split_column: str | None,
    column_names: Sequence[str] | None,
    quoted: bool,
) -> tuple[dict[str, Dataset], dict[str, list[str]]]:
    """Read one or several tables as splits.

    Args:
        path: The table of the training rows, and of other splits if it has a split column.
        split_files: Split name to a further table with the rows of that split.
        needed: Argument name to the required column it names, such as `sequence_column` to "text".
        text_columns: Columns that are read as text.
        split_column, column_names, quoted: As in `load_sequences`.

    Returns:
        Split name to rows with the columns that all files share, and split name to the name of each row in messages:
        its 1-based number in its file, not counting the header.

    Raises:
        FileNotFoundError: A file does not exist.
        ValueError: A file cannot be read or lacks a column, or a split is in both `path` and `split_files`.
    """
    needed, texts = dict(needed), set(text_columns)
    if split_column is not None and split_column != SPLIT_COLUMN:
        needed["split_column"] = split_column
    columns = _read(path, needed, texts, column_names, quoted)
    rows = {"train": np.arange(_count(columns))}
    if split_column is not None and split_column in columns:
        rows = rows_of_splits(columns.pop(split_column), path.name)
    needed.pop("split_column", None)
    split_columns = {
        name: {column: [values[row] for row in at] for column, values in columns.items()} for name, at in rows.items()
    }
    places = {name: [str(row + 1) for row in at] for name, at in rows.items()}
    if split_files:
        places = {name: [f"{place} of {path.name}" for place in numbers] for name, numbers in places.items()}
    for name, file in split_files.items():
        if name in split_columns:
            raise ValueError(
                f"{name}_file={str(file)!r}: the column {split_column!r} of {path.name} already marks {name} rows; set "
                f"split_column=None or omit {name}_file."
            )
        split_columns[name] = _read(file, needed, texts, column_names, quoted)
        places[name] = [f"{row} of {file.name}" for row in range(1, _count(split_columns[name]) + 1)]
    shared = [column for column in columns if all(column in other for other in split_columns.values())]
    table = _dataset(
        {column: [value for other in split_columns.values() for value in other[column]] for column in shared},
        " and ".join(file.name for file in (path, *split_files.values())),
    )
    ends = np.cumsum([len(numbers) for numbers in places.values()])
    splits = {
        name: table.select(range(end - len(places[name]), end)) for name, end in zip(places, ends.tolist(), strict=True)
    }
    return splits, places


def read_table(
    path: Path, text_columns: Iterable[str], column_names: Sequence[str] | None = None, quoted: bool = True
) -> Columns:
    """Read a csv, tsv, json or jsonl file, optionally gzipped; the suffix determines the format.

    The columns of csv and tsv files are converted by `typed`. A json file holds a list of row objects, an object of
    columns, or one object per line. `column_names` and `quoted` are as in `load_sequences`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read or has no rows.
    """
    return typed(read_cells(path, column_names, quoted), text_columns, path)


def typed(cells: Columns, text_columns: Iterable[str], path: Path) -> Columns:
    """The columns of `read_cells` with the types of their values.

    Columns of a csv or tsv file that hold only whole numbers become `int`, only numbers `float`, with None for cells
    such as "" or "NaN"; `text_columns` are kept as text.
    """
    texts = cells.keys() if bare_suffix(path) in _JSON_SUFFIXES else set(text_columns)
    return {name: values if name in texts else _parse(values) for name, values in cells.items()}


def read_cells(path: Path, column_names: Sequence[str] | None = None, quoted: bool = True) -> Columns:
    """The columns of a file as for `read_table`; the cells of csv and tsv files are texts."""
    suffix = bare_suffix(path)
    is_json = suffix in _JSON_SUFFIXES
    if column_names is not None and (is_json or isinstance(column_names, str) or not column_names):
        raise ValueError(
            f"column_names={column_names!r}: give the list of columns of a csv or tsv file without a header line; "
            f"source={str(path)!r}."
        )
    with opened(path) as file:
        if is_json:
            columns = _read_json(file.read(), by_line=suffix == ".jsonl")
        else:
            delimiter = "," if suffix == ".csv" else "\t"
            if column_names is None:
                _check_delimiter(file, delimiter)
            columns = _read_csv(file, delimiter, column_names, quoted)
        if not columns or not _count(columns):
            raise ValueError("the file has no rows of data.")
    return columns


def table_rows(columns: Columns, source: str) -> Iterator[dict[str, Any]]:
    """The rows of a table, one after the other.

    Raises:
        ValueError: The values of a column differ in type, so that the table of results could not hold them.
    """
    for name, values in columns.items():
        _check_values(name, values, f"{source}: ")
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def csv_rows(
    file: IO[str], delimiter: str, column_names: Sequence[str] | None, quoted: bool
) -> Iterator[dict[str, str]]:
    """The rows of a csv or tsv file, of which a part is in memory; the cells are texts."""
    if column_names is None:
        _check_delimiter(file, delimiter)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    names = column_names
    # header=None, as in `_read_csv`.
    parts = pd.read_csv(
        file, sep=delimiter, header=None, dtype=object, keep_default_na=False, quoting=quoting, chunksize=_ROWS
    )
    for part in parts:
        for cells in part.itertuples(index=False, name=None):
            if names is None:
                names = cells
                if len(set(names)) < len(names):
                    raise ValueError(f"the column names {list(names)} are not unique.")
            elif len(cells) != len(names):
                raise ValueError(f"column_names={list(names)} names {len(names)} columns, but a row has {len(cells)}.")
            else:
                yield dict(zip(names, cells, strict=True))


def json_rows(file: IO[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file with one json object per line, of which one is in memory."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not json: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f'line {number} is not a json object such as {{"sequence": "ACGT", "label": 0}}.')
        yield row


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, read bit by bit.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, or has two columns of one name.
    """
    with opened(path, "rb") as file:
        table = pyarrow.parquet.ParquetFile(file)
        schema = table.schema_arrow
        if len(set(schema.names)) < len(schema.names):
            raise ValueError(f"the column names {schema.names} are not unique.")
        for batch in table.iter_batches(1024):
            yield from batch.to_pylist()


def _check_values(name: str, values: list[Any], where: str = "") -> None:
    """Raise `ValueError` unless Arrow has one type for all values of a column, as a table of results has to."""
    try:
        pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(
            f"{where}values of the column {name!r} differ in type ({_line(error)}): give all of its values one type, "
            "or remove the column."
        ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read(
    path: Path, needed: Mapping[str, str], texts: set[str], column_names: Sequence[str] | None, quoted: bool
) -> Columns:
    """The columns of a table; those of a usual name get the default name that is missing."""
    cells = read_cells(path, column_names, quoted)
    renamed = usual_columns(needed, cells)
    for column, name in renamed.items():
        logger.warning("%s: the column %r is read as %r.", path.name, column, name)
    columns = typed({renamed.get(column, column): values for column, values in cells.items()}, texts, path)
    check_columns(needed, columns, path.name)
    return columns


def _count(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _check_delimiter(file: IO[str], delimiter: str) -> None:
    """Refuse a file whose first line is separated by another character."""
    # What is peeked at is read again by pandas.
    line = file.buffer.peek().decode("utf-8", "replace").split("\n")[0]  # type: ignore[attr-defined]
    separator = next((other for other in ";\t,|" if other in line), None)
    if delimiter not in line and separator is not None:
        remedy = {
            "\t": "rename the file to .tsv",
            ",": "rename the file to .csv",
        }.get(
            separator,
            f"convert the file, for example by pandas.read_csv(FILE, sep={separator!r}).to_csv(NEW, index=False)",
        )
        raise ValueError(f"the columns of the file are separated by {separator!r}, not by {delimiter!r}; {remedy}.")


def _read_csv(file: IO[str], delimiter: str, column_names: Sequence[str] | None, quoted: bool) -> Columns:
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    # header=None: with a header, pandas renames repeated columns and takes surplus cells for an index.
    try:
        cells = pd.read_csv(file, sep=delimiter, header=None, dtype=object, keep_default_na=False, quoting=quoting)
    except pd.errors.ParserError as error:
        raise ValueError(
            f"{error}; set quoted=False (command: --set data.quoted=false) if quotes are ordinary characters."
        ) from error
    rows = {number: cells[number].tolist() for number in cells.columns}
    names = [values.pop(0) for values in rows.values()] if column_names is None else list(column_names)
    if len(names) != len(rows):
        raise ValueError(f"column_names={names} names {len(names)} columns, but the file has {len(rows)}.")
    if len(set(names)) < len(names):
        raise ValueError(f"the column names {names} are not unique.")
    return dict(zip(names, rows.values(), strict=True))


def _parse(cells: list[str]) -> list[Any]:
    """Cells as whole numbers, else as numbers, else as text, with None for missing values."""
    missing = [cell.strip().lower() in _MISSING for cell in cells]
    if all(missing):
        return [None] * len(cells)
    for kind, form in _NUMBERS:
        if all(gone or form.fullmatch(cell.strip()) for cell, gone in zip(cells, missing, strict=True)):
            return [None if gone else kind(cell) for cell, gone in zip(cells, missing, strict=True)]
    return [cell if cell.strip() else None for cell in cells]


def _read_json(text: str, by_line: bool) -> Columns:
    content: Any = []
    try:
        if not by_line:
            content = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        by_line = True  # ".json" files of one object per line are common
    if by_line:
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                content += [json.loads(line)] if line.strip() else []
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} is not json: {error}") from error
    if isinstance(content, dict):
        if not all(isinstance(column, list) for column in content.values()) or len({*map(len, content.values())}) > 1:
            raise ValueError(
                "a json object must have one list for each column, and all lists must have the same length."
            )
        return content
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise ValueError('every row must be a json object such as {"sequence": "ACGT", "label": 0}.')
    names = dict.fromkeys(name for row in content for name in row)
    return {name: [row.get(name) for row in content] for name in names}


def _dataset(columns: Columns, source: str) -> Dataset:
    for name, values in columns.items():
        try:
            Dataset.from_dict({name: values})
        except (ValueError, TypeError, OverflowError) as error:  # Arrow's conversion errors
            raise ValueError(
                f"source={source!r}: the column {name!r} has values of different types ({_line(error)}); give all of "
                "its values one type, or remove the column."
            ) from error
    return Dataset.from_dict(columns)
