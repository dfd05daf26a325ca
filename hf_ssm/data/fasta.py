"""FASTA records and their windows."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from hf_ssm.data.files import open_text
from hf_ssm.data.tables import Columns

logger = logging.getLogger(__name__)

_SEQUENCE_LINE = re.compile(r"[A-Za-z*.-]+")
_MOSTLY_UNKNOWN = 0.5


def read_fasta(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, sequence)` of every record of a FASTA file, gzipped or not, holding one at a time.

    The name is the header's first word. Letters are kept as written, lower case (soft-masked repeats)
    included. Lines that are blank or begin with ";" are passed over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read (see `open_text`), does not begin with a header, has a line that
            is neither header nor sequence, or a record without a name or a sequence; the message gives the
            line.
    """
    with open_text(path) as handle:
        name, header_line = "", 0
        parts: list[str] = []
        number = 0
        for number, raw_line in enumerate(handle, start=1):
            line = raw_line.strip()
            if not line or line.startswith(";"):
                continue
            where = f"source={str(path)!r}, line {number}"
            if line.startswith(">"):
                if header_line:
                    yield name, _sequence(parts, name, path, header_line)
                words = line[1:].split()
                if not words:
                    raise ValueError(f"{where}: a header without a name; write the record's name after '>'.")
                name, header_line, parts = words[0], number, []
            elif not header_line:
                raise ValueError(
                    f"{where}: {line[:40]!r} stands before any header; a FASTA record begins with a line of "
                    "'>' and its name."
                )
            elif not _SEQUENCE_LINE.fullmatch(line):
                raise ValueError(
                    f"{where}: {line[:40]!r} is not a line of sequence letters; if it is a header, begin it "
                    "with '>', else mend the letters."
                )
            else:
                parts.append(line)
        if not header_line:
            raise ValueError(f"source={str(path)!r} has no FASTA record; give a file with at least one.")
        yield name, _sequence(parts, name, path, header_line)


def _sequence(parts: list[str], name: str, path: Path, line: int) -> str:
    if not parts:
        raise ValueError(
            f"source={str(path)!r}, line {line}: the record {name!r} has an empty sequence; add it, or take "
            "the record out."
        )
    return "".join(parts)


def fasta_windows(path: Path, window: int, min_window: int) -> Columns:
    """Cut every record into windows that follow each other without overlap.

    Args:
        path: The FASTA file.
        window: Bases a window.
        min_window: A record's last window is kept, short, if it has at least so many bases.

    Returns:
        Columns `sequence`, `name` (of the record) and `start` (0-based). Windows of which more than half is N
        are left out, and their number is logged.

    Raises:
        FileNotFoundError, ValueError: as `read_fasta`; also where no window is left.
    """
    columns: Columns = {"sequence": [], "name": [], "start": []}
    unknown = 0
    for name, sequence in read_fasta(path):
        for start in range(0, len(sequence), window):
            piece = sequence[start : start + window]
            if len(piece) < min_window:
                continue
            if piece.count("N") + piece.count("n") > _MOSTLY_UNKNOWN * len(piece):
                unknown += 1
                continue
            columns["sequence"].append(piece)
            columns["name"].append(name)
            columns["start"].append(start)
    if unknown:
        logger.warning("%s: left out %d windows of which more than half is N.", path.name, unknown)
    if not columns["sequence"]:
        raise ValueError(
            f"source={str(path)!r}: no window of at least min_window={min_window} bases with half of them "
            "known; lower min_window."
        )
    return columns
