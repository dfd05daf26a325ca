"""Tables from csv, tsv and json files, as columns of Python values."""

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hf_ssm.data.files import bare_suffix, open_text

Columns = dict[str, list[Any]]

_MISSING = {"", "na", "n/a", "nan", "none", "null", "<na>"}
# int() and float() would also read "1_000"; more digits than 18 do not fit the int64 of an Arrow column.
_NUMBERS = (
    (int, re.compile(r"[+-]?[0-9]{1,18}")),
    (float, re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")),
)


def read_table(
    path: Path, text_columns: Iterable[str], column_names: Sequence[str] | None = None, quoted: bool = True
) -> Columns:
    """Read a csv, tsv, json or jsonl file, gzipped or not.

    A csv or tsv file has a header line, unless `column_names` takes its place. Its cells are text; a column of
    whole numbers becomes `int`, one of numbers `float`, with None for cells such as "" or "NaN". `text_columns`
    are left as they are: "NAN" is a sequence of three bases. A json file holds a list of objects or one object of
    columns, a jsonl file one object a line; keys that a row lacks are None.

    Args:
        path: The file; its name decides the format (`.csv`, `.tsv`, `.json`, `.jsonl`, or these with `.gz`).
        text_columns: Columns that stay text.
        column_names: Names of the columns of a csv or tsv file without a header line. None: its first line is one.
        quoted: Whether a csv or tsv cell may stand in quotes. False: a quote is a letter like any other, and a cell
            ends at the next delimiter or line end.

    Returns:
        Column name to its values, all of one length, at least 1.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read (see `open_text`) or parsed, or has no rows; the message gives the
            line.
    """
    suffix = bare_suffix(path)
    delimited = suffix in (".csv", ".tsv")
    if column_names is not None and (not delimited or isinstance(column_names, str) or not column_names):
        raise ValueError(
            f"column_names={column_names!r}: give the list of the columns of a csv or tsv file without a header line "
            f"({path.name} names its own if it is json)."
        )
    with open_text(path) as handle:
        if delimited:
            delimiter = "," if suffix == ".csv" else "\t"
            columns = _read_delimited(handle, path, delimiter, set(text_columns), column_names, quoted)
        else:
            columns = _read_json(handle, path, lines=suffix == ".jsonl")
    if not columns or not next(iter(columns.values())):
        raise ValueError(f"source={str(path)!r} has no rows of data; give a file with at least one.")
    return columns


def _read_delimited(
    handle: TextIO,
    path: Path,
    delimiter: str,
    text_columns: set[str],
    column_names: Sequence[str] | None,
    quoted: bool,
) -> Columns:
    with _long_fields_allowed():
        # strict: a stray quote is an error with a line number, not a row that swallows the rest of the file.
        reader = csv.reader(
            handle, delimiter=delimiter, strict=True, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
        )
        try:
            header = next(reader, []) if column_names is None else list(column_names)
            _check_header(header, path)
            rows = []
            for row in reader:
                if not row:
                    continue  # a blank line
                if len(row) != len(header):
                    raise ValueError(
                        f"source={str(path)!r}, line {reader.line_num}: {len(row)} cells where "
                        f"{'the header' if column_names is None else 'column_names'} has {len(header)}; mend the line, "
                        "or quote the cell that holds the delimiter."
                    )
                rows.append(row)
        except csv.Error as error:
            raise ValueError(
                f"source={str(path)!r}, line {reader.line_num}: {error}; mend the line (a quote in a quoted "
                "cell is doubled), or say quoted=False where a quote is a letter like any other."
            ) from error
    cells = zip(*rows, strict=True) if rows else ([] for _ in header)
    return {
        name: list(column) if name in text_columns else _parse(list(column))
        for name, column in zip(header, cells, strict=True)
    }


def _check_header(header: list[str], path: Path) -> None:
    if any("\0" in name for name in header):
        raise ValueError(f"source={str(path)!r} is not a text table (it holds NUL bytes); give a csv or tsv file.")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(
            f"source={str(path)!r}: the header (or column_names) names {twice} more than once; rename them."
        )


@contextmanager
def _long_fields_allowed() -> Iterator[None]:
    """Lift `csv`'s limit of 131,072 characters a field, which is global; long sequences exceed it."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parse(cells: list[str]) -> list[Any]:
    """Whole numbers, else numbers, else text; cells for missing values become None in the first two."""
    missing = [cell.strip().lower() in _MISSING for cell in cells]
    if all(missing):
        return [None] * len(cells)
    for kind, form in _NUMBERS:
        if all(gone or form.fullmatch(cell.strip()) for cell, gone in zip(cells, missing, strict=True)):
            return [None if gone else kind(cell) for cell, gone in zip(cells, missing, strict=True)]
    return [None if not cell.strip() else cell for cell in cells]


def _read_json(handle: TextIO, path: Path, lines: bool) -> Columns:
    text = handle.read()
    content = None if lines else _decode_document(text, path)
    if isinstance(content, dict) and any(isinstance(value, list) for value in content.values()):
        return _check_columns(content, path)
    if content is None:
        records = [
            _decode(line, path, f", line {number}")
            for number, line in enumerate(text.splitlines(), start=1)
            if line.strip()
        ]
    else:
        records = content if isinstance(content, list) else [content]
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise ValueError(
                f"source={str(path)!r}, row {number}: {type(record).__name__} where an object such as "
                '{"sequence": "ACGT", "label": 0} belongs; write one object a row.'
            )
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: [record.get(name) for record in records] for name in names}


def _decode_document(text: str, path: Path) -> Any:
    """The one JSON value of a file, or None where a `.json` file holds one value a line, as many do."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return None
        raise _not_json(error, path, "") from error


def _decode(text: str, path: Path, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _not_json(error, path, where) from error


def _not_json(error: json.JSONDecodeError, path: Path, where: str) -> ValueError:
    return ValueError(f"source={str(path)!r}{where}: not JSON ({error}); mend the file.")


def _check_columns(content: dict[str, Any], path: Path) -> Columns:
    if not all(isinstance(column, list) for column in content.values()):
        raise ValueError(
            f"source={str(path)!r}: an object whose values are not all lists; give a list of row objects, an "
            "object of equally long columns, or one object a line in a .jsonl file."
        )
    if len({len(column) for column in content.values()}) > 1:
        lengths = {name: len(column) for name, column in content.items()}
        raise ValueError(f"source={str(path)!r}: columns of different lengths, {lengths}; make them equal.")
    return content
