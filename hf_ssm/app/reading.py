"""From the input field and uploaded files to sequences and signals, with plain messages for what cannot be read."""

import gzip
import io
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from textwrap import shorten

import numpy as np

from hf_ssm.data.columns import check_columns, usual_column
from hf_ssm.data.fasta import FASTA_SUFFIXES, read_fasta
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import Record, is_dna, read_records
from hf_ssm.data.tables import Columns, read_cells

__all__ = ["MOST_BYTES", "MOST_LETTERS", "MOST_SEQUENCES", "UPLOADS", "read_numbers", "read_sequences", "read_upload"]

MOST_SEQUENCES, MOST_LETTERS = 100, 200_000
"""Limits of the input: number of sequences, and letters of all together."""

MOST_BYTES = 2_000_000
"""Limit of an uploaded file, decompressed, and of the letters of the input field."""

_MOST_REASON = 300

UPLOADS = (*FASTA_SUFFIXES, ".csv", ".tsv", ".txt", ".gz")
"""Suffixes of files that can be uploaded."""

# Columns that hold the name of a sequence, the most usual first.
_NAME_COLUMNS = ("name", "id", "sequence_name", "sequence_id", "seq_name", "seq_id", "identifier", "accession")
_SEPARATORS = re.compile(r"[,;\s]+")
# Models compute in single precision.
_LARGEST = float(np.finfo(np.float32).max)


def read_sequences(text: str, is_of_bases: bool) -> list[Record]:
    """The sequences of the input field: one sequence, or FASTA records.

    Args:
        text: Contents of the field.
        is_of_bases: Whether the model reads DNA: white space is dropped then, and other letters are refused.

    Raises:
        ValueError: The field is empty or has too many letters, the FASTA is malformed, or a letter is none of DNA.
    """
    _check_size(text)
    text = (text or "").strip()
    if not text:
        raise ValueError("There is no sequence: paste one, upload a file, or click an example.")
    if text.startswith(">"):
        named = _fasta(text) if is_of_bases else _texts(text)
        records = [Record(sequence, f"Record {name!r}", {"name": name}) for name, sequence in named]
    else:
        sequence = "".join(text.split()) if is_of_bases else text
        records = [Record(sequence, "The sequence")]
    if sum(len(record.sequence) for record in records) > MOST_LETTERS:
        raise ValueError(f"The input has more than {MOST_LETTERS:,} letters: give a part of it.")
    if is_of_bases:
        for record in records:
            _check_letters(record)
    return records


def _check_size(text: str) -> None:
    if len(text or "") > MOST_BYTES:
        raise ValueError(f"The input has more than {MOST_BYTES:,} letters: give a part of it.")


def _fasta(text: str) -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "input.fa")
        path.write_text(text, encoding="utf-8")
        try:
            return list(read_fasta(path))
        except ValueError as error:
            reason = str(error).partition("cannot be read: ")[2] or str(error)
            raise ValueError(f"The FASTA text cannot be read: {reason}") from error


def _texts(text: str) -> list[tuple[str, str]]:
    """FASTA records or, where lines are not of letters alone, records with any text below their names."""
    try:
        return _fasta(text)
    except ValueError:
        pieces = [piece.strip() for piece in re.split(r"^>(.*)$", text, flags=re.MULTILINE)[1:]]
        if not all(pieces):
            raise
        return [*zip(pieces[::2], pieces[1::2], strict=True)]


def _check_letters(record: Record) -> None:
    if is_dna(record.sequence):
        return
    place = next(place for place, letter in enumerate(record.sequence) if not is_dna(letter))
    raise ValueError(
        f"{record.where} has {record.sequence[place]!r} at position {place + 1}, which is not a letter of DNA: "
        "this model reads A, C, G, T, U, N and the other IUPAC letters of bases, but not proteins or other texts."
    )


def read_numbers(text: str, channels: int) -> np.ndarray:
    """A signal `(L, channels)` from lines of numbers, separated by commas, semicolons or white space.

    With one channel the numbers may stand in one line. A first line of names is skipped.

    Raises:
        ValueError: There is no number, a line has another count of numbers, or something is no finite number of single
            precision.
    """
    _check_size(text)
    texts = [stripped for line in (text or "").splitlines() if (stripped := line.strip(" \t,;"))]
    _check_positions(len(texts))
    lines = [_SEPARATORS.split(line) for line in texts]
    if len(lines) > 1 and not any(map(_is_number, lines[0])):
        lines = lines[1:]
    if not lines:
        raise ValueError("There are no numbers: paste some, upload a csv file, or click the example.")
    if channels == 1:
        _check_positions(sum(map(len, lines)))
    for number, line in enumerate(lines, start=1):
        wrong = next((cell for cell in line if not _is_number(cell)), None)
        if wrong is not None:
            raise ValueError(f"Line {number}: {wrong[:40]!r} is not a finite number of at most {_LARGEST:.1e}.")
    if channels == 1:
        return np.array([[float(cell)] for line in lines for cell in line])
    for number, line in enumerate(lines, start=1):
        if len(line) != channels:
            raise ValueError(
                f"Line {number} has {len(line)} numbers: the model reads {channels} channels, so give {channels} "
                "numbers in each line."
            )
    return np.array([[float(cell) for cell in line] for line in lines])


def _check_positions(number: int) -> None:
    if number > MOST_LETTERS:
        raise ValueError(f"The signal has more than {MOST_LETTERS:,} positions: give a part of it.")


def _is_number(cell: str) -> bool:
    try:
        # False for NaN.
        return abs(float(cell)) <= _LARGEST
    except ValueError:
        return False


def read_upload(path: str | Path, reads_numbers: bool = False) -> str:
    """The contents of an uploaded file as the text of the input field: FASTA, or lines of numbers.

    Args:
        path: The file, at most `MOST_BYTES` once it is decompressed.
        reads_numbers: Whether the field takes numbers: the text is returned as it is.

    Raises:
        ValueError: The file has another format, is malformed, or is too large.
    """
    path = Path(path)
    suffix = bare_suffix(path)
    is_text = reads_numbers or suffix == ".txt"
    if not is_text and suffix not in UPLOADS[:-1]:
        raise ValueError(
            f"{path.name!r} cannot be read: upload a FASTA file ({', '.join(FASTA_SUFFIXES)}), csv or tsv."
        )
    text = _text(path)
    if is_text:
        return io.StringIO(text, newline=None).read()
    try:
        records = _records(text, path)
    except (ValueError, OSError) as error:
        reason = str(error).partition("cannot be read: ")[2] or str(error)
        # A reason may list all names of columns.
        raise ValueError(f"{path.name!r} cannot be read: {shorten(reason, _MOST_REASON)}") from error
    if len(records) > MOST_SEQUENCES:
        raise ValueError(f"{path.name!r} has more than {MOST_SEQUENCES} sequences: upload a part of it.")
    if sum(len(record.sequence) for record in records) > MOST_LETTERS:
        raise ValueError(f"{path.name!r} has more than {MOST_LETTERS:,} letters: upload a part of it.")
    names = ("_".join(str(record.columns.get("name") or "").split()) for record in records)
    return "\n".join(
        f">{name or f'row_{number}'}\n{record.sequence}"
        for number, (name, record) in enumerate(zip(names, records, strict=True), start=1)
    )


def _text(path: Path) -> str:
    """The text of a file, decompressed if its name ends in ".gz"."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name!r} cannot be read: {error}") from error
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"{path.name!r} has more than {MOST_BYTES // 10**6} MB (once it is decompressed): upload a part of it."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{path.name!r} is not a text file in UTF-8: save the file as text, with the encoding UTF-8.")
    return text


def _records(text: str, path: Path) -> list[Record]:
    """The sequences of a text, one more than allowed if there are more, by the readers of files."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.stem if path.suffix.lower() == ".gz" else path.name)
        copy.write_bytes(text.encode("utf-8"))
        records = list(islice(_records_of_file(copy), MOST_SEQUENCES + 1))
    for record in records:
        if re.search("^>", record.sequence, re.MULTILINE):
            raise ValueError(f"{record.where} has a line that begins with '>', as names do in FASTA: remove this line.")
    return records


def _records_of_file(path: Path) -> Iterator[Record]:
    """The sequences of a file; of a table, those of the column with a usual name."""
    if bare_suffix(path) in FASTA_SUFFIXES:
        return read_records(path)
    cells = read_cells(path)[0]
    column = usual_column("sequence_column", cells)
    if column is None:
        check_columns({"sequence_column": "sequence"}, cells, path.name)
    records = read_records(path, ReadOptions(sequence_column=column or "sequence"))
    names = _names(cells, column or "sequence")
    # The cells are texts, so that a name such as 007 keeps its zeros.
    return (replace(record, columns={"name": name}) for record, name in zip(records, names, strict=False))


def _names(cells: Columns, sequence_column: str) -> Iterable[str | None]:
    """The names of the rows of a table, of a column with a usual name."""
    columns = {name.lower(): values for name, values in cells.items() if name != sequence_column}
    return next((columns[usual] for usual in _NAME_COLUMNS if usual in columns), repeat(None))
