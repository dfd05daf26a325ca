"""Sequences as the functions for inference read them: from files, one after the other, or from Python."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_ssm.data.checks import check_column
from hf_ssm.data.fasta import FASTA_SUFFIXES, read_fasta
from hf_ssm.data.files import bare_suffix
from hf_ssm.data.tables import TABLE_SUFFIXES, read_table

__all__ = ["Record", "as_records", "read_records", "reverse_complement"]

# Letters of the International Union of Pure and Applied Chemistry, and their complements.
_COMPLEMENT = str.maketrans("ACGTURYSWKMBDHVNacgturyswkmbdhvn", "TGCAAYRSWMKVHDBNtgcaayrswmkvhdbn")


@dataclass(frozen=True)
class Record:
    """A sequence.

    Attributes:
        sequence: The letters.
        where: File and record, for messages.
        columns: What identifies the sequence in a table of results, such as its name; other columns of its row.
    """

    sequence: str
    where: str
    columns: dict[str, Any] = field(default_factory=dict)


def reverse_complement(sequence: str) -> str:
    """The other strand of a DNA sequence, with IUPAC letters; case is kept, U becomes A, other letters stay."""
    return sequence.translate(_COMPLEMENT)[::-1]


def read_records(path: Path, sequence_column: str = "sequence") -> Iterator[Record]:
    """The sequences of a FASTA file or a table (csv, tsv, json, jsonl), each optionally gzipped.

    Args:
        path: The file; the suffix determines the format. FASTA is read record by record.
        sequence_column: The column of the sequences in a table. All other columns are kept.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The suffix is unknown, the file cannot be read, a table lacks the column, or a row has no sequence.
    """
    suffix = bare_suffix(path)
    if suffix in FASTA_SUFFIXES:
        for name, sequence in read_fasta(path):
            yield Record(sequence, f"{path.name}, record {name!r}", {"name": name})
    elif suffix in TABLE_SUFFIXES:
        columns = read_table(path, [sequence_column])
        check_column("sequence_column", sequence_column, list(columns), path.name)
        for row, values in enumerate(zip(*columns.values(), strict=True)):
            cells = dict(zip(columns, values, strict=True))
            sequence = cells.pop(sequence_column)
            yield _checked(Record(sequence, f"{path.name}, row {row + 1}", cells))
    else:
        known = ", ".join((*FASTA_SUFFIXES, *TABLE_SUFFIXES))
        raise ValueError(f"{str(path)!r}: the suffix must be one of {known}, each also with .gz.")


def as_records(inputs: Iterable[Any], sequence_column: str = "sequence") -> Iterator[Record]:
    """Sequences given in Python.

    Args:
        inputs: Texts, mappings with the column of the sequences, or a `datasets.Dataset`.
        sequence_column: The column of the sequences; all other columns are kept.

    Raises:
        TypeError: The inputs are one text, or no iterable.
        ValueError: A row is of another type, lacks the column, or has no sequence.
    """
    if isinstance(inputs, (str, Mapping)) or not isinstance(inputs, Iterable):
        raise TypeError(
            f"`inputs` must be a list of sequences, or a Dataset (one split of it), got a {type(inputs).__name__}."
        )
    for row, item in enumerate(inputs):
        where = f"`inputs`, row {row}"
        if isinstance(item, Record):
            yield item
        elif isinstance(item, str):
            yield _checked(Record(item, where))
        elif isinstance(item, Mapping):
            check_column("sequence_column", sequence_column, list(item), where)
            rest = {name: value for name, value in item.items() if name != sequence_column}
            yield _checked(Record(item[sequence_column], where, rest))
        else:
            raise ValueError(f"{where} is a {type(item).__name__}: give a text or a mapping with {sequence_column!r}.")


def _checked(record: Record) -> Record:
    if not isinstance(record.sequence, str) or not record.sequence.strip():
        raise ValueError(f"{record.where} has no sequence (found {record.sequence!r}): remove the row.")
    return record
