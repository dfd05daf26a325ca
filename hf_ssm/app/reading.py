"""From the input field and uploaded files to sequences and signals, with plain messages for what cannot be read."""

import math
import re
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from hf_ssm.data.columns import check_columns, usual_column
from hf_ssm.data.fasta import FASTA_SUFFIXES, read_fasta
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.records import Record, is_dna, read_records
from hf_ssm.data.tables import read_table

__all__ = ["MOST_LETTERS", "MOST_SEQUENCES", "UPLOADS", "read_numbers", "read_sequences", "read_upload"]

MOST_SEQUENCES, MOST_LETTERS = 100, 200_000
"""Limits of the input: number of sequences, and letters of all together."""

UPLOADS = (*FASTA_SUFFIXES, ".csv", ".tsv", ".txt", ".gz")
"""Suffixes of files that can be uploaded."""

_SEPARATORS = re.compile(r"[,;\s]+")


def read_sequences(text: str, is_of_bases: bool) -> list[Record]:
    """The sequences of the input field: one sequence, or FASTA records.

    Args:
        text: Contents of the field.
        is_of_bases: Whether the model reads DNA: white space is dropped then, and other letters are refused.

    Raises:
        ValueError: The field is empty, the FASTA is malformed, or a letter is none of DNA.
    """
    text = (text or "").strip()
    if not text:
        raise ValueError("There is no sequence: paste one, upload a file, or click an example.")
    if text.startswith(">"):
        named = _fasta(text) if is_of_bases else _texts(text)
        found = [Record(sequence, f"Record {name!r}", {"name": name}) for name, sequence in named]
    else:
        sequence = "".join(text.split()) if is_of_bases else text
        found = [Record(sequence, "The sequence")]
    if sum(len(record.sequence) for record in found) > MOST_LETTERS:
        raise ValueError(f"The input has more than {MOST_LETTERS:,} letters: give a part of it.")
    if is_of_bases:
        for record in found:
            _check_letters(record)
    return found


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
        parts = re.split(r"^>(.*)$", text, flags=re.MULTILINE)[1:]
        found = [(name.strip(), body.strip()) for name, body in zip(parts[::2], parts[1::2], strict=True)]
        if not all(name and body for name, body in found):
            raise
        return found


def _check_letters(record: Record) -> None:
    if is_dna(record.sequence):
        return
    place = next(place for place, letter in enumerate(record.sequence) if not is_dna(letter))
    raise ValueError(
        f"{record.where} has {record.sequence[place]!r} at position {place + 1}, which is no letter of DNA: this model "
        "reads A, C, G, T, U, N and the other IUPAC letters of bases, no proteins and no other text."
    )


def read_numbers(text: str, channels: int) -> np.ndarray:
    """A signal `(L, channels)` from lines of numbers, separated by commas, semicolons or white space.

    With one channel the numbers may stand in one line. A first line of names is skipped.

    Raises:
        ValueError: There is no number, a line has another count of numbers, or something is no finite number.
    """
    lines = [_SEPARATORS.split(line.strip(" \t,;")) for line in (text or "").splitlines() if line.strip(" \t,;")]
    if len(lines) > 1 and not any(map(_is_number, lines[0])):
        lines = lines[1:]
    if not lines:
        raise ValueError("There are no numbers: paste some, upload a csv file, or click the example.")
    for number, line in enumerate(lines, start=1):
        wrong = next((cell for cell in line if not _is_number(cell)), None)
        if wrong is not None:
            raise ValueError(f"Line {number}: {wrong[:40]!r} is no finite number.")
    if channels == 1:
        return np.array([[float(cell)] for line in lines for cell in line])
    for number, line in enumerate(lines, start=1):
        if len(line) != channels:
            raise ValueError(
                f"Line {number} has {len(line)} numbers: the model reads {channels} channels, so give {channels} "
                "numbers in each line."
            )
    return np.array([[float(cell) for cell in line] for line in lines])


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def read_upload(path: str | Path, reads_numbers: bool = False) -> str:
    """The contents of an uploaded file as the text of the input field: FASTA, or lines of numbers.

    Raises:
        ValueError: The file has another format, is malformed, or is too large.
    """
    path = Path(path)
    suffix = bare_suffix(path)
    if reads_numbers or suffix == ".txt":
        return _text(path)
    if suffix not in UPLOADS[:-1]:
        raise ValueError(
            f"{path.name!r} cannot be read: upload a FASTA file ({', '.join(FASTA_SUFFIXES)}), csv or tsv."
        )
    try:
        records = list(islice(_records(path), MOST_SEQUENCES + 1))
    except (ValueError, OSError) as error:
        reason = str(error).partition("cannot be read: ")[2] or str(error)
        raise ValueError(f"{path.name!r} cannot be read: {reason}") from error
    if len(records) > MOST_SEQUENCES:
        raise ValueError(f"{path.name!r} has more than {MOST_SEQUENCES} sequences: upload a part of it.")
    if sum(len(record.sequence) for record in records) > MOST_LETTERS:
        raise ValueError(f"{path.name!r} has more than {MOST_LETTERS:,} letters: upload a part of it.")
    names = ("_".join(str(record.columns.get("name") or "").split()) for record in records)
    return "\n".join(
        f">{name or f'row_{number}'}\n{record.sequence}"
        for number, (name, record) in enumerate(zip(names, records, strict=True), start=1)
    )


def _records(path: Path) -> Iterator[Record]:
    """The sequences of a file; of a table, those of the column with a usual name."""
    if bare_suffix(path) in FASTA_SUFFIXES:
        return read_records(path)
    columns = read_table(path, [])
    column = usual_column("sequence_column", columns)
    if column is None:
        check_columns({"sequence_column": "sequence"}, columns, path.name)
    return read_records(path, column or "sequence")


def _text(path: Path) -> str:
    if path.stat().st_size > 10 * MOST_LETTERS:
        raise ValueError(f"{path.name!r} is larger than {10 * MOST_LETTERS // 10**6} MB: upload a part of it.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name!r} is no text file.") from error
