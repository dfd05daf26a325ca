"""Tables from csv, tsv, json and jsonl files, split by a column or by file.

`datasets.load_dataset("csv")` is not used: it reads the sequences "NA", "NAN" and "null" as missing values and caches
the table.
"""

import csv
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
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

_ROWS = 64  # of a parquet file in memory

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
    number_columns: Sequence[str],
    split_column: str | None,
    column_names: Sequence[str] | None,
    quoted: bool,
) -> tuple[dict[str, Dataset], dict[str, list[str]]]:
    """Read one or several tables as splits.

    Args:
        path: The table of the training rows, and of other splits if it has a split column.
        split_files: Split name to a further table with the rows of that split.
        needed: Argument name to the required column it names, such as `sequence_column` to "text".
        number_columns: Columns whose cells in csv and tsv files are read by `as_numbers`, unless one begins with 0 as
            codes do; all others are texts.
        split_column, column_names, quoted: As in `load_sequences`.

    Returns:
        Split name to rows with the columns that all files share, and split name to the name of each row in messages,
        such as "line 17 of a.csv".

    Raises:
        FileNotFoundError: A file does not exist.
        ValueError: A file cannot be read or lacks a column, or a split is in both `path` and `split_files`.
    """
    needed = dict(needed)
    if split_column is not None and split_column != SPLIT_COLUMN:
        needed["split_column"] = split_column
    columns, train_places = _read(path, needed, number_columns, column_names, quoted)
    rows = {"train": np.arange(len(train_places))}
    if split_column is not None and split_column in columns:
        rows = rows_of_splits(columns.pop(split_column), path.name)
    needed.pop("split_column", None)
    split_columns = {
        name: {column: [values[row] for row in at] for column, values in columns.items()} for name, at in rows.items()
    }
    places = {name: [train_places[row] for row in at] for name, at in rows.items()}
    for name, file in split_files.items():
        if name in split_columns:
            raise ValueError(
                f"{name}_file={str(file)!r}: the column {split_column!r} of {path.name} already marks {name} rows; set "
                f"split_column=None or omit {name}_file."
            )
        split_columns[name], places[name] = _read(file, needed, number_columns, column_names, quoted)
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


def read_table(path: Path, text_columns: Iterable[str]) -> Columns:
    """The columns of a csv, tsv, json or jsonl file; those of csv and tsv files as `as_numbers`, but `text_columns`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read or has no rows.
    """
    cells = read_cells(path)[0]
    texts = cells.keys() if bare_suffix(path) in _JSON_SUFFIXES else set(text_columns)
    return {name: values if name in texts else as_numbers(values) for name, values in cells.items()}


def read_cells(path: Path, column_names: Sequence[str] | None = None, quoted: bool = True) -> tuple[Columns, list[int]]:
    """The columns of a table in memory, and the number of each row, as of `read_rows`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read or has no rows.
    """
    if column_names is not None and (
        bare_suffix(path) in _JSON_SUFFIXES or isinstance(column_names, str) or not column_names
    ):
        raise ValueError(
            f"column_names={column_names!r}: give the list of columns of a csv or tsv file without a header line; "
            f"source={str(path)!r}."
        )
    columns, numbers = Columns(), list[int]()
    for number, row in read_rows(path, column_names, quoted):
        columns |= {name: [None] * len(numbers) for name in row if name not in columns}
        for name, values in columns.items():
            values.append(row.get(name))
        numbers.append(number)
    if not numbers or not columns:
        raise ValueError(f"source={str(path)!r} has no rows of data.")
    return columns, numbers


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of `read_rows`; those of json files all have the same columns, each with values of one type."""
    if bare_suffix(path) not in _JSON_SUFFIXES:
        yield from read_rows(path)
        return
    columns, numbers = read_cells(path)
    for name, values in columns.items():
        try:
            pa.array(values)
        except (pa.ArrowException, OverflowError) as error:
            raise ValueError(
                f"{path.name}: values of the column {name!r} differ in type ({_line(error)}): give all of its values "
                "one type, or remove the column."
            ) from error
    for number, row in zip(numbers, zip(*columns.values(), strict=True), strict=True):
        yield number, dict(zip(columns, row, strict=True))


def read_rows(
    path: Path, column_names: Sequence[str] | None = None, quoted: bool = True, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table, of which few are in memory, each with its number in the file: see `row_noun`.

    Cells of csv and tsv files are texts. A json file is read at once.

    Args:
        path: A csv, tsv, json, jsonl or parquet file.
        column_names, quoted: As in `load_sequences`.
        columns: The columns that are read of a parquet file; None for all.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, two columns have one name, or a row has another number of cells.
    """
    suffix = bare_suffix(path)
    with opened(path, "rb" if suffix == ".parquet" else "rt") as file:
        if suffix == ".parquet":
            table = pyarrow.parquet.ParquetFile(file)
            _check_unique(table.schema_arrow.names)
            batches = table.iter_batches(_ROWS, columns=columns)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), start=1)
        elif suffix == ".json":
            yield from _json_rows(file.read())
        elif suffix == ".jsonl":
            yield from _rows_of_lines(file)
        else:
            yield from _csv_rows(file, "," if suffix == ".csv" else "\t", column_names, quoted)


def row_noun(path: Path) -> str:
    """Noun that `read_rows` counts from 1: "line", the first of a row, or "row" in json and parquet files."""
    return "row" if bare_suffix(path) in (".json", ".parquet") else "line"


def _csv_rows(
    file: Iterable[str], delimiter: str, column_names: Sequence[str] | None, quoted: bool
) -> Iterator[tuple[int, dict[str, str]]]:
    csv.field_size_limit(2**31 - 1)  # a genome may be a cell
    lines = iter(file)
    if column_names is None:
        header = next(lines, "")
        _check_delimiter(header, delimiter)
        lines = chain([header], lines)
    names = column_names
    # strict: a quote that is not closed is an error.
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    last = 0
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"line {last + 1}: {error}; set quoted=False (command: --set data.quoted=false) if quotes are ordinary "
                "characters."
            ) from error
        number, last = last + 1, reader.line_num
        if cells is None:
            return
        if len(cells) < 2 and not "".join(cells).strip() and (names is None or len(names) > 1 or not cells):
            continue
        if names is None:
            names = cells
            _check_unique(names)
        elif len(cells) != len(names):
            raise ValueError(f"line {number} has {len(cells)} cells, but the columns are {list(names)}.")
        else:
            yield number, dict(zip(names, cells, strict=True))


def _check_unique(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"the column names {list(names)} are not unique.")


def _parsed(text: str) -> Any:
    """The content of a json text; numbers that would change as an integer of 64 bits or a float stay texts."""

    def whole(digits: str) -> int | str:
        number = int(digits)
        return number if -(2**63) <= number < 2**63 else digits

    def real(digits: str) -> float | str:
        number = float(digits)
        underflows = number == 0 and any(digit in "123456789" for digit in digits.lower().partition("e")[0])
        return digits if math.isinf(number) or underflows else number

    return json.loads(text, parse_int=whole, parse_float=real)


def _rows_of_lines(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file with one json object per line."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _parsed(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not json: {error}") from error
        yield number, _checked_row(row, f"line {number}")


def _json_rows(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a json list of objects, or of an object of columns; also of one object per line, which is common."""
    try:
        content = _parsed(text)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise
        yield from _rows_of_lines(text.split("\n"))
        return
    if isinstance(content, dict):
        if not all(isinstance(column, list) for column in content.values()) or len({*map(len, content.values())}) > 1:
            raise ValueError(
                "a json object must have one list for each column, and all lists must have the same length."
            )
        content = [dict(zip(content, row, strict=True)) for row in zip(*content.values(), strict=True)]
    for number, row in enumerate(content if isinstance(content, list) else [content], start=1):
        yield number, _checked_row(row, f"row {number}")


def _checked_row(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f'{where} is not a json object such as {{"sequence": "ACGT", "label": 0}}.')
    return row


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read(
    path: Path, needed: Mapping[str, str], numbers: Iterable[str], column_names: Sequence[str] | None, quoted: bool
) -> tuple[Columns, list[str]]:
    """The columns of a table, and where each row stands; those of a usual name get the default name that is missing."""
    cells, places = read_cells(path, column_names, quoted)
    renamed = usual_columns(needed, cells)
    for column, name in renamed.items():
        logger.warning("%s: the column %r is read as %r.", path.name, column, name)
    columns = {renamed.get(column, column): values for column, values in cells.items()}
    is_text = bare_suffix(path) not in _JSON_SUFFIXES
    if not columns.keys() >= set(needed.values()):
        # Numbers are hardly sequences.
        check_columns(
            needed, {name: as_numbers(cells) if is_text else cells for name, cells in columns.items()}, path.name
        )
    # Of labels such as 00, 01 and 10.
    are_names = {name: any(re.match("0[0-9]", cell) for cell in columns[name] if is_text) for name in numbers}
    columns |= {name: as_numbers(columns[name]) for name in numbers if is_text and not are_names[name]}
    return columns, [f"{row_noun(path)} {number} of {path.name}" for number in places]


def _check_delimiter(line: str, delimiter: str) -> None:
    """Refuse a file whose first line is separated by another character."""
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


def as_numbers(cells: list[str]) -> list[Any]:
    """Cells as whole numbers, else as numbers, else as text, with None for missing values."""
    missing = [cell.strip().lower() in _MISSING for cell in cells]
    if all(missing):
        return [None] * len(cells)
    for kind, form in _NUMBERS:
        if all(gone or form.fullmatch(cell.strip()) for cell, gone in zip(cells, missing, strict=True)):
            return [None if gone else kind(cell) for cell, gone in zip(cells, missing, strict=True)]
    return [cell if cell.strip() else None for cell in cells]


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
