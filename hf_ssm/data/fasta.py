"""FASTA records, cut into windows."""

import logging
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from datasets import Dataset, Features, Value

from hf_ssm.data.cache import cached_rows, content_hash
from hf_ssm.data.files import opened
from hf_ssm.data.options import note_capitals

logger = logging.getLogger(__name__)

FASTA_SUFFIXES = (".fa", ".fasta", ".fna", ".fas", ".ffn")
_SEQUENCE_LINE = re.compile(r"[A-Za-z*.-]+")
_MOSTLY_UNKNOWN = 0.5
_PIECE = 2**20  # letters of a record that are read at a time
_RECORD = itemgetter(0, 1)


def read_fasta(path: Path, distinct: bool = False) -> Iterator[tuple[str, str]]:
    """Yield `(name, sequence)` of each record of a FASTA file, optionally gzipped; errors as for `opened`.

    The name is the first word of the header; with `distinct`, the whole header if first words are equal. Lower-case
    letters (soft-masked repeats) are kept. Blank lines and lines that begin with ";" are skipped.
    """
    headers: list[str] = []
    if distinct:
        with opened(path) as file:
            headers = [line[1:].strip() for line in file if line.startswith(">")]
        words = {header.split()[0] for header in headers if header}
        if len(words) < len(headers) and len(set(headers)) < len(headers):
            logger.warning(
                "%s: %d records have the header of another one.", path.name, len(headers) - len(set(headers))
            )
        headers = headers if len(words) < len(headers) else []
    for (number, name), lines in groupby(_lines(path), key=_RECORD):
        yield headers[number - 1] if headers else name, "".join(letters for *_, letters in lines)


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number and name of the record, and letters, of each line of letters, or of each piece of a long line."""
    record, name, is_empty = 0, "", False
    with opened(path) as file:
        for number, is_rest, line in _pieces(file):
            if not line or (line.startswith(";") and not is_rest):
                continue
            if line.startswith(">") and not is_rest:
                if is_empty:
                    raise _empty_record(name)
                if not line[1:].split():
                    raise ValueError(f"line {number}: the header has no name.")
                record, name, is_empty = record + 1, line[1:].split()[0], True
            elif not name or not _SEQUENCE_LINE.fullmatch(line):
                expected = "a line of sequence letters" if name else "a header, '>' and a name"
                raise ValueError(f"line {number}: {line[:40]!r} is not {expected}.")
            else:
                is_empty = False
                yield record, name, line
        if not name:
            raise ValueError("the file has no FASTA record.")
        if is_empty:
            raise _empty_record(name)


def _pieces(file: IO[str]) -> Iterator[tuple[int, bool, str]]:
    """Number of the line, whether its beginning came before, and text: a line may be as long as a chromosome."""
    number, is_rest = 1, False
    while piece := file.readline(_PIECE):
        yield number, is_rest, piece.strip()
        is_rest = not piece.endswith("\n")
        number += not is_rest


def _empty_record(name: str) -> ValueError:
    return ValueError(f"the record {name!r} has no sequence.")


def load_fasta(path: Path, window: int, stride: int, min_window: int, keep_case: bool = False) -> Dataset:
    """Cut every record into windows of `window` bases, the last of at least `min_window` bases.

    The file is read once, in pieces of some megabytes, and its windows are written to the Arrow cache of `datasets`;
    later calls, also of other processes, map them as long as the file has the same bytes.

    Args:
        path: The file, optionally gzipped.
        window: Bases of a window.
        stride: Bases from the start of a window to that of the next, at most `window`.
        min_window: Least number of bases of the last window of a record.
        keep_case: Whether lower-case letters are kept, which are read as capitals by default.

    Returns:
        The columns `sequence`, `name` (of the record) and `start` (0-based). Windows of more than half N are
        skipped, and their number is logged.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is malformed, or no window is left.
    """
    arguments = (window, stride, min_window, keep_case)
    data, facts = cached_rows(
        lambda facts: fasta_rows(path, *arguments, facts),
        Features({"sequence": Value("string"), "name": Value("string"), "start": Value("int64")}),
        ("fasta", content_hash(path), *arguments),
        row_bytes=window,
    )
    log_facts(path, facts)
    return data


def fasta_rows(
    path: Path, window: int, stride: int, min_window: int, keep_case: bool, facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of `load_fasta`; `facts` receives the number of windows that were skipped, and the change of case."""
    yield from _known_windows(path, window, stride, min_window, keep_case, facts)
    longest = facts.pop("longest")
    if not facts.pop("count"):
        raise ValueError(
            f"source={str(path)!r}: there is no window of at least min_window={min_window} bases of which half are "
            f"known; the longest record has {longest} bases. Lower min_window (command: --set data.min_window=1)."
        )


def stream_windows(path: Path, window: int, min_window: int, keep_case: bool = False) -> Iterator[str]:
    """The windows of `load_fasta` that do not overlap, with few of them in memory; there may be none."""
    facts: dict[str, Any] = {}
    for row in _known_windows(path, window, window, min_window, keep_case, facts):
        yield row["sequence"]
    log_facts(path, facts)


def _known_windows(
    path: Path, window: int, stride: int, min_window: int, keep_case: bool, facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of `fasta_rows`; `facts` also receives their number and the number of bases of the longest record."""
    count = skipped = longest = 0
    in_lower_case = False
    for (_, name), lines in groupby(_lines(path), key=_RECORD):
        for start, letters in _cut((letters for *_, letters in lines), window, stride):
            longest = max(longest, start + len(letters))
            capitals = letters.upper()
            in_lower_case |= capitals != letters and not keep_case
            if len(letters) < min_window:
                continue
            if capitals.count("N") > _MOSTLY_UNKNOWN * len(letters):
                skipped += 1
                continue
            count += 1
            yield {"sequence": letters if keep_case else capitals, "name": name, "start": start}
    facts.update(skipped=skipped, in_lower_case=in_lower_case, count=count, longest=longest)


def log_facts(path: Path, facts: dict[str, Any]) -> None:
    """Log what `fasta_rows` found."""
    if facts.get("in_lower_case"):
        note_capitals(path.name)
    if facts.get("skipped"):
        logger.warning("%s: skipped %d windows that consist of more than half N.", path.name, facts["skipped"])


def _cut(pieces: Iterable[str], window: int, stride: int) -> Iterator[tuple[int, str]]:
    """First base and letters of the windows of a sequence, given in pieces, of which few are in memory at a time."""
    start, waiting, size = 0, list[str](), 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= window + _PIECE:
            letters = "".join(waiting)
            count = (size - window) // stride + 1
            for first in range(0, count * stride, stride):
                yield start + first, letters[first : first + window]
            start += count * stride
            waiting, size = [letters[count * stride :]], size - count * stride
    letters = "".join(waiting)
    # The previous window contains the first `window - stride` letters of the rest.
    if not start or len(letters) > window - stride:
        yield from ((start + first, letters[first:stop]) for first, stop in spans(len(letters), window, stride))


def spans(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """First letters and the ones after the last of the windows of a sequence, which cover all of it."""
    return [(start, min(start + window, length)) for start in range(0, max(length - window + stride, 1), stride)]
