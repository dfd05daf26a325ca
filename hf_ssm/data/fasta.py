"""FASTA records, cut into windows."""

import logging
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from hf_ssm.data.files import opened
from hf_ssm.data.tables import Columns

logger = logging.getLogger(__name__)

FASTA_SUFFIXES = (".fa", ".fasta", ".fna")
_SEQUENCE_LINE = re.compile(r"[A-Za-z*.-]+")
_MOSTLY_UNKNOWN = 0.5


def read_fasta(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, sequence)` of each record of a FASTA file, optionally gzipped; errors as for `opened`.

    The name is the first word of the header. Lower-case letters (soft-masked repeats) are kept. Blank lines and
    lines that begin with ";" are skipped.
    """
    name, parts = "", list[str]()
    with opened(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            if not line or line.startswith(";"):
                continue
            if line.startswith(">"):
                if name:
                    yield name, _joined(name, parts)
                if not line[1:].split():
                    raise ValueError(f"line {number}: the header has no name.")
                name, parts = line[1:].split()[0], []
            elif not name or not _SEQUENCE_LINE.fullmatch(line):
                expected = "a line of sequence letters" if name else "a header, '>' and a name"
                raise ValueError(f"line {number}: {line[:40]!r} is not {expected}.")
            else:
                parts.append(line)
        if not name:
            raise ValueError("the file has no FASTA record.")
        yield name, _joined(name, parts)


def _joined(name: str, parts: list[str]) -> str:
    if not parts:
        raise ValueError(f"the record {name!r} has no sequence.")
    sequence = "".join(parts)
    # The lines of a chromosome take twice as much memory, while its sequence is in use.
    parts.clear()
    return sequence


def in_capitals(sequence: str, path: Path) -> str:
    """A sequence of a file in capitals; if that changes a letter, one line of the log says so."""
    capitals = sequence.upper()
    if capitals != sequence:
        _note_capitals(path)
    return capitals


@lru_cache
def _note_capitals(path: Path) -> None:
    # Files are read several times.
    logger.warning(
        "%s: lower-case (soft-masked) letters are read as capitals; keep_case=True (--keep-case, or --set "
        "data.keep_case=true for hf-ssm train) keeps them.",
        path.name,
    )


def fasta_windows(path: Path, window: int, min_window: int, keep_case: bool = False) -> Columns:
    """Cut every record into consecutive windows of `window` bases, the last of at least `min_window` bases.

    Returns the columns `sequence`, `name` (of the record) and `start` (0-based). Windows of more than half N are
    skipped, and their number is logged. Lower-case letters are read as capitals unless `keep_case`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is malformed, or no window is left.
    """
    windows, longest = [], 0
    for name, letters in read_fasta(path):
        sequence = letters if keep_case else in_capitals(letters, path)
        longest = max(longest, len(sequence))
        places = range(0, len(sequence) - min_window + 1, window)
        windows += [(sequence[place : place + window], name, place) for place in places]
    kept = [row for row in windows if row[0].upper().count("N") <= _MOSTLY_UNKNOWN * len(row[0])]
    if len(kept) < len(windows):
        logger.warning("%s: skipped %d windows of more than half N.", path.name, len(windows) - len(kept))
    if not kept:
        raise ValueError(
            f"source={str(path)!r}: no window of at least min_window={min_window} bases of which half are known; the "
            f"longest record has {longest}: lower min_window (command: --set data.min_window=1)."
        )
    sequences, names, starts = zip(*kept, strict=True)
    return {"sequence": list(sequences), "name": list(names), "start": list(starts)}


def stream_windows(path: Path, window: int, min_window: int, keep_case: bool = False) -> Iterator[str]:
    """Yield the windows of `fasta_windows` one after the other, with one of them in memory; errors as for it."""

    def known(letters: str) -> list[str]:
        sequence = letters if keep_case else in_capitals(letters, path)
        unknown = sequence.upper().count("N") > _MOSTLY_UNKNOWN * len(sequence)
        return [] if unknown or len(sequence) < min_window else [sequence]

    lines, count, has_header = list[str](), 0, False
    with opened(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            if not line or line.startswith(";"):
                continue
            if line.startswith(">"):
                yield from known("".join(lines))
                lines, count, has_header = [], 0, True
            elif not has_header or not _SEQUENCE_LINE.fullmatch(line):
                expected = "a line of sequence letters" if has_header else "a header, '>' and a name"
                raise ValueError(f"line {number}: {line[:40]!r} is not {expected}.")
            else:
                lines.append(line)
                count += len(line)
            if count >= window:
                letters = "".join(lines)
                end = count // window * window
                for start in range(0, end, window):
                    yield from known(letters[start : start + window])
                lines, count = [letters[end:]], count - end
        yield from known("".join(lines))
