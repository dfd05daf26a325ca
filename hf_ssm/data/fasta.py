"""FASTA records: whole, with labels in their headers, or cut into windows."""

import logging
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Value

from hf_ssm.data.cache import cached_rows, content_hash
from hf_ssm.data.files import opened
from hf_ssm.data.options import note_capitals

logger = logging.getLogger(__name__)

FASTA_SUFFIXES = (".fa", ".fasta", ".fna", ".fas", ".ffn")
_SEQUENCE_LINE = re.compile(r"[A-Za-z*.-]+")
_LABEL = re.compile(r"\s(?:label|class)=(\S+)")
# Names of sequences in databases, such as "lcl|seq1", have bars too.
_BARS = re.compile(r"(?!(?:gb|gi|gnl|lcl|pdb|ref|sp|tr)\|)([^|]+)\|([^|]+)(?:\|(train\w*|val\w*|dev|test\w*))?")
_MOSTLY_UNKNOWN = 0.5
_PIECE = 2**20  # letters of a record that wait to be cut


def read_fasta(path: Path, distinct: bool = False) -> Iterator[tuple[str, str]]:
    """Yield `(name, sequence)` of each record of a FASTA file, optionally gzipped; errors as for `opened`.

    The name is the first word of the header; with `distinct`, the whole header if first words are equal. Lower-case
    letters (soft-masked repeats) are kept. Blank lines and lines that begin with ";" are skipped.
    """
    is_repeated = False
    if distinct:
        with opened(path) as file:
            headers = [line[1:].strip() for line in file if line.startswith(">")]
        is_repeated = len({header.split()[0] for header in headers if header}) < len(headers)
        copies = len(headers) - len(set(headers))
        if copies:
            logger.warning("%s: %d records have the header of another one.", path.name, copies)
    for (_, header), lines in groupby(_lines(path), key=itemgetter(0, 1)):
        yield header if is_repeated else header.split()[0], "".join(letters for *_, letters in lines)


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """Number and header of the record, and letters, of each line of letters."""
    record, header, is_empty = 0, "", False
    with opened(path) as file:
        for number, line in enumerate(map(str.strip, file), start=1):
            if not line or line.startswith(";"):
                continue
            if line.startswith(">"):
                _check_letters(is_empty, header)
                record, header, is_empty = record + 1, line[1:].strip(), True
                if not header:
                    raise ValueError(f"line {number}: the header has no name.")
            elif not header or not _SEQUENCE_LINE.fullmatch(line):
                expected = "a line of sequence letters" if header else "a header, '>' and a name"
                raise ValueError(f"line {number}: {line[:40]!r} is not {expected}.")
            else:
                is_empty = False
                yield record, header, line
        if not header:
            raise ValueError("the file has no FASTA record.")
        _check_letters(is_empty, header)


def _check_letters(is_empty: bool, header: str) -> None:
    if is_empty:
        raise ValueError(f"the record {header.split()[0]!r} has no sequence.")


def has_labels(path: Path) -> bool:
    """Whether the header of the first record of a FASTA file has a label, see `labelled_records`."""
    return _fields(next(_lines(path))[1]).get("label") is not None


def labelled_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a FASTA file with labels in their headers, as `sequence`, `name`, `label` and perhaps `split`.

    The label is the word `label=...` (or `class=...`) behind the name, as in `>seq1 label=enhancer`; or it follows the
    name after a bar, as in `>seq1|1`, and the split may follow the label, as in `>seq1|1|training` (the format of
    iLearn).

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is malformed, or a record has no label.
    """
    for (_, header), lines in groupby(_lines(path), key=itemgetter(0, 1)):
        fields = _fields(header)
        if "label" not in fields:
            raise ValueError(
                f"source={str(path)!r}: the header {header[:60]!r} has no label: write '>name label=1', '>name|1' or "
                "'>name|1|training'."
            )
        yield {"sequence": "".join(letters for *_, letters in lines), **fields}


def _fields(header: str) -> dict[str, str]:
    """The name, and the label and the split if there are any."""
    name, *_ = header.split()
    if match := _LABEL.search(header):
        return {"name": name, "label": match[1]}
    if match := _BARS.fullmatch(name):
        split = {} if match[3] is None else {"split": match[3]}
        return {"name": match[1], "label": match[2], **split}
    return {"name": name}


def load_fasta(path: Path, window: int, stride: int, min_window: int, keep_case: bool = False) -> Dataset:
    """Cut every record into windows of `window` bases, the last of at least `min_window` bases.

    The file is read once, line by line, and its windows are written to the Arrow cache of `datasets`; later calls, also
    of other processes, map them as long as the file has the same bytes.

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

    def rows(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from fasta_windows(path, *arguments, facts)
        if not facts["count"]:
            raise ValueError(
                f"source={str(path)!r}: there is no window of at least min_window={min_window} bases of which half "
                f"are known; the longest record has {facts['longest']} bases. Lower min_window (command: --set "
                "data.min_window=1)."
            )

    features = Features({"sequence": Value("string"), "name": Value("string"), "start": Value("int64")})
    data, facts = cached_rows(rows, features, ("fasta", content_hash(path), *arguments), row_bytes=window)
    log_facts(path, facts)
    return data


def stream_windows(path: Path, window: int, min_window: int, keep_case: bool = False) -> Iterator[str]:
    """The windows of `load_fasta` that do not overlap, with few of them in memory; there may be none."""
    facts: dict[str, Any] = {}
    for row in fasta_windows(path, window, window, min_window, keep_case, facts):
        yield row["sequence"]
    log_facts(path, facts)


def fasta_windows(
    path: Path, window: int, stride: int, min_window: int, keep_case: bool, facts: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of `load_fasta`, one after the other.

    `facts` receives the number of rows (`count`), of windows that were skipped, the bases of the longest record and
    whether letters became capitals.
    """
    count = skipped = longest = 0
    in_lower_case = False
    for (_, header), lines in groupby(_lines(path), key=itemgetter(0, 1)):
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
            yield {"sequence": letters if keep_case else capitals, "name": header.split()[0], "start": start}
    facts.update(skipped=skipped, in_lower_case=in_lower_case, count=count, longest=longest)


def log_facts(path: Path, facts: dict[str, Any]) -> None:
    """Log what `fasta_windows` found."""
    if facts.get("in_lower_case"):
        note_capitals(path)
    if facts.get("skipped"):
        logger.warning("%s: skipped %d windows that consist of more than half N.", path.name, facts["skipped"])


def _cut(lines: Iterable[str], window: int, stride: int) -> Iterator[tuple[int, str]]:
    """First base and letters of the windows of a sequence, given in lines, of which few are in memory at a time."""
    start, waiting, size = 0, list[str](), 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= window + _PIECE:
            letters = "".join(waiting)
            end = (size - window) // stride * stride + stride
            yield from ((start + first, letters[first : first + window]) for first in range(0, end, stride))
            start, waiting, size = start + end, [letters[end:]], size - end
    letters = "".join(waiting)
    # The previous window contains the first `window - stride` letters of the rest.
    if not start or len(letters) > window - stride:
        yield from ((start + first, letters[first:stop]) for first, stop in spans(len(letters), window, stride))


def spans(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """First letters and the ones after the last of the windows of a sequence, which cover all of it."""
    return [(start, min(start + window, length)) for start in range(0, max(length - window + stride, 1), stride)]
