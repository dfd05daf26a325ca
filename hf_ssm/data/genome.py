"""A reference genome by pysam (htslib): random access to a FASTA file, and intervals of BED files."""

import gzip
import logging
import os
import re
import subprocess
import sys
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hf_ssm.data.checks import did_you_mean
from hf_ssm.data.files import compression, decompress, needs_copy, opened

__all__ = [
    *("Genome", "Interval", "changed_contigs", "import_pysam", "index_suffix", "listed", "log_once", "quiet"),
    *("read_bed", "spellings", "write_index"),
]

logger = logging.getLogger(__name__)

# The last block of a complete bgzip file (SAM specification, section 4.1.2).
_LAST_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
# Larger positions need another index than .tbi (tabix specification).
_LAST_OF_TBI = 2**29
_DIGIT = re.compile("[0-9]")
# The log of htslib bypasses Python's stderr; in a process of its own it can be read.
_INDEX = "import sys, pysam; pysam.faidx(*sys.argv[1:])"
_MITOCHONDRION = ("MT", "chrM", "M", "chrMT")
# Contigs that are named in a message, and those of an index that are compared with the file.
_MOST_NAMES, _COMPARED = 5, 1000


def import_pysam() -> ModuleType:
    """pysam, an optional dependency."""
    try:
        import pysam
    except ImportError as error:
        raise ImportError('genomes, BED and VCF files need pysam: pip install "hf_ssm[genomics]"') from error
    return pysam


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log of htslib on stderr: exceptions carry the errors."""
    pysam = import_pysam()
    verbosity = pysam.set_verbosity(0)
    try:
        yield
    finally:
        pysam.set_verbosity(verbosity)


def index_suffix(last: int) -> str:
    """The suffix of the index of a file with positions up to `last`: ".tbi" or, beyond its limit, ".csi"."""
    return ".csi" if last > _LAST_OF_TBI else ".tbi"


def write_index(path: Path, output: Path, last: int, **options: Any) -> None:
    """Index a file compressed by bgzip, which is to replace `output`, with the index beside `output`.

    An index of the earlier output in the other format is deleted: htslib would prefer a `.csi` file.

    Args:
        path: The file, sorted by position.
        output: The name that the file will have.
        last: Its largest position.
        **options: Columns of the file, for `pysam.tabix_index`.
    """
    suffix = index_suffix(last)
    index = Path(f"{path}{suffix}")
    with quiet():
        import_pysam().tabix_index(str(path), force=True, index=str(index), csi=suffix == ".csi", **options)
    for other in {".csi", ".tbi"} - {suffix}:
        Path(f"{output}{other}").unlink(missing_ok=True)
    os.replace(index, f"{output}{suffix}")


class Genome:
    """Random access to the sequences of a FASTA file; a context manager.

    An index beside the file (`.fai`, and `.gzi` of a bgzip file) is used if it is not older than the file and has its
    contigs at their places. Otherwise one is built in a temporary folder, where a gzip file that is not of bgzip is
    also decompressed.

    Args:
        path: FASTA file, plain or compressed by bgzip or gzip.

    Attributes:
        contigs: Length of each contig in letters, in the order of the file.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is no FASTA, is truncated, has two contigs of one name, contigs without a name or a
            sequence, or (a condition of the index) lines of different lengths in a contig.
        ImportError: pysam is not installed.
    """

    def __init__(self, path: str | Path):
        pysam = import_pysam()
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{str(self.path)!r}: there is no such file; check the path.")
        self._folder = tempfile.TemporaryDirectory(prefix="hf_ssm_genome_")
        try:
            source, indices = _prepared(self.path, Path(self._folder.name))
            try:
                with quiet():
                    self._file: Any = pysam.FastaFile(str(source.absolute()), **indices)
            except (OSError, ValueError) as error:
                index = indices["filepath_index"]
                raise ValueError(f"{str(self.path)!r}: the index {index!r} cannot be read: {error}.") from error
        except BaseException:
            self._folder.cleanup()
            raise
        self.contigs: dict[str, int] = dict(zip(self._file.references, self._file.lengths, strict=True))

    def __contains__(self, contig: str) -> bool:
        return contig in self.contigs

    def contig(self, name: str) -> str | None:
        """The contig of a name in one of its `spellings`; `None` if there is none."""
        return next((spelling for spelling in spellings(name) if spelling in self.contigs), None)

    def length(self, contig: str) -> int:
        """Length of a contig in letters.

        Raises:
            ValueError: There is no such contig.
        """
        if contig not in self.contigs:
            raise ValueError(f"{self.path.name} has no contig {contig!r}{did_you_mean(contig, self.contigs)}.")
        return self.contigs[contig]

    def fetch(self, contig: str, start: int, stop: int) -> str:
        """The letters of an interval, as they stand in the file.

        Args:
            contig: Name of the contig.
            start: First letter, counted from 0.
            stop: The one after the last letter.

        Raises:
            ValueError: There is no such contig, the interval is empty or not within the contig, or the file is damaged.
        """
        self.check(contig, start, stop)
        try:
            with quiet():
                letters: str = self._file.fetch(contig, start, stop)
        except (OSError, ValueError):
            letters = ""
        if len(letters) != stop - start:
            raise ValueError(
                f"{str(self.path)!r}: {contig}:{start}-{stop} cannot be read: the file is damaged, or its index "
                "(.fai) belongs to another file; delete the index if it does."
            )
        return letters

    def check(self, contig: str, start: int, stop: int) -> None:
        """Raise `ValueError` if there is no such contig, or the interval is empty or not within the contig."""
        length = self.length(contig)
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"{contig}:{start}-{stop} is not an interval of {self.path.name}: the contig {contig!r} has "
                f"{length} letters (positions count from 0, and the end is excluded)."
            )

    def close(self) -> None:
        """Close the file and remove what was stored temporarily."""
        self._file.close()
        self._folder.cleanup()

    def __enter__(self) -> "Genome":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def spellings(name: str) -> tuple[str, ...]:
    """A name of a contig, and the same with or without the prefix "chr"; those of the mitochondrion."""
    return (name, *_MITOCHONDRION) if name in _MITOCHONDRION else (name, f"chr{name}", name.removeprefix("chr"))


def changed_contigs(names: Iterable[str], source: str, genome: Genome) -> str:
    """A sentence about those names in a file or option that the genome spells in another way; "" without any."""
    pairs = [(name, genome.contig(name)) for name in dict.fromkeys(names)]
    changed = [f"{name} is {contig}" for name, contig in pairs if contig not in (None, name)]
    if not changed:
        return ""
    return f"Names of contigs differ between {source} and {genome.path.name}: {listed(changed)}."


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    rest = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f", and {rest} more" if rest > 0 else "")


@lru_cache
def log_once(text: str) -> None:
    """Log a warning, unless it is empty or was logged before: files are read several times."""
    if text:
        logger.warning("%s", text)


@dataclass(frozen=True)
class Interval:
    """A line of a BED file.

    Attributes:
        chrom: Name of the contig in the genome.
        start: First letter, counted from 0.
        stop: The one after the last letter.
        strand: "+", "-" or "." (none).
        columns: The fields of the line: `chrom`, `chrom_start`, `chrom_end`, `name`, `score` and `strand`, as far as
            a line of the file has them.
    """

    chrom: str
    start: int
    stop: int
    strand: str
    columns: dict[str, Any]


def read_bed(path: Path, genome: Genome) -> list[tuple[int, Interval]]:
    """The intervals of a BED file of 3 to 6 fields, optionally gzipped, each with the number of its line.

    Fields are separated by tabs, or in lines without tabs by spaces. Empty lines, comments ("#"), lines "track" and
    "browser" and a first line of names are left out, and so are fields after the sixth. Scores stay texts.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: A line is malformed, an interval is not in the genome, or there is none.
    """
    intervals, is_first = list[tuple[int, Interval]](), True
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            words = line.split()
            if not words or words[0].startswith("#") or words[0] in ("track", "browser"):
                continue
            fields = line.rstrip("\r\n").split("\t") if "\t" in line else words
            has_names = is_first and len(fields) > 2 and not any(_DIGIT.search(field) for field in fields[1:3])
            is_first = False
            if has_names:
                continue
            try:
                interval = _interval(fields)
                interval = replace(interval, chrom=genome.contig(interval.chrom) or interval.chrom)
                genome.check(interval.chrom, interval.start, interval.stop)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            intervals.append((number, interval))
        if not intervals:
            raise ValueError("the file has no interval.")
    log_once(changed_contigs((str(interval.columns["chrom"]) for _, interval in intervals), path.name, genome))
    names = max((interval.columns for _, interval in intervals), key=len)
    return [
        (number, replace(interval, columns={name: interval.columns.get(name) for name in names}))
        for number, interval in intervals
    ]


def _interval(fields: Sequence[str]) -> Interval:
    if len(fields) < 3:
        raise ValueError(f"{' '.join(fields)[:40]!r} has fewer than 3 fields (contig, start and end).")
    columns: dict[str, Any] = {"chrom": fields[0]}
    for name, text in zip(("chrom_start", "chrom_end"), fields[1:], strict=False):
        if not text.strip().isdecimal():
            raise ValueError(
                f"{name} {text!r} is not a whole number: write it in digits, such as 100000 for 1e+05 "
                "(in R, after options(scipen = 99))."
            )
        columns[name] = int(text)
    columns |= dict(zip(("name", "score", "strand"), fields[3:], strict=False))
    strand = columns.get("strand", ".")
    if strand not in ("+", "-", "."):
        raise ValueError(f"the strand {strand!r} is not '+', '-' or '.'; correct the line.")
    return Interval(fields[0], columns["chrom_start"], columns["chrom_end"], strand, columns)


def _prepared(path: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """A file with an index, and the arguments of `FastaFile` for the index."""
    kind, copied = compression(path), needs_copy(path)
    with path.open("rb") as binary:
        binary.seek(-min(len(_LAST_BLOCK), path.stat().st_size), os.SEEK_END)
        if kind == "bgzip" and binary.read() != _LAST_BLOCK:
            raise ValueError(f"{str(path)!r} is truncated: the last block of bgzip is missing.")
    indices = {"filepath_index": Path(f"{path}.fai")}
    if kind == "bgzip":
        indices["filepath_index_compressed"] = Path(f"{path}.gzi")
    changed = path.stat().st_mtime
    is_new = all(index.is_file() and index.stat().st_mtime >= changed for index in indices.values())
    # Copies keep the time of another file.
    if not copied and is_new and _is_index(path, *indices.values()):
        return path, {name: str(index) for name, index in indices.items()}
    file = folder / "genome.fa" if copied else path
    if copied:
        decompress(path, file)
    with gzip.open(file) if kind == "bgzip" and not copied else file.open("rb") as lines:
        has_blank_lines = _check_headers(lines, path)
    if has_blank_lines:
        # Not in a file that faidx takes.
        with opened(file, "rb") as lines, (folder / "lines.fa").open("wb") as copy:
            copy.writelines(line for line in lines if line.strip())
        file = folder / "lines.fa"
    if file != path:
        indices = {"filepath_index": indices["filepath_index"]}
    built = {name: str(folder / index.name) for name, index in indices.items()}
    _build_index(file, path, list(built.values()))
    return file, built


def _is_index(path: Path, fai: Path, gzi: Path | None = None) -> bool:
    """Whether an index has the contigs of a FASTA file at their places; of many contigs, some are compared."""
    try:
        rows = [line.split("\t") for line in fai.read_text(encoding="utf-8").splitlines()]
        contigs = [(name.encode(), [int(number) for number in numbers]) for name, *numbers in (row[:5] for row in rows)]
        blocks = [(0, 0)]
        if gzi is not None:
            pairs = np.fromfile(gzi, "<u8")[1:].reshape(-1, 2)[:, ::-1]
            blocks += [(int(start), int(place)) for start, place in pairs]
        with path.open("rb") as file:

            def read(start: int, size: int) -> bytes:
                if gzi is None:
                    file.seek(start)
                    return file.read(size)
                before, place = blocks[bisect_right(blocks, start, key=lambda block: block[0]) - 1]
                file.seek(place)
                with gzip.GzipFile(fileobj=file) as letters:
                    letters.read(start - before)
                    return letters.read(size)

            step = max(1, len(contigs) // _COMPARED)
            for number in {*range(0, len(contigs), step), len(contigs) - 1}:
                name, (length, start, bases, width) = contigs[number]
                end = 0 if number == 0 else _end(*contigs[number - 1][1])
                header = read(end, start - end) if start > end else b""
                if not header.endswith(b"\n") or header.strip().split(None, 1)[0] != b">" + name:
                    return False
                if b"\n" in header.strip() or (length > bases and read(start + bases, width - bases).strip(b"\r\n")):
                    return False
            return not read(_end(*contigs[-1][1]), 1 << 16).strip()
    except (OSError, ValueError, IndexError, EOFError, zlib.error):
        return False


def _end(length: int, start: int, bases: int, width: int) -> int:
    """The byte after the last letter of a contig in a file, by the columns of its index."""
    return start + length // bases * width + length % bases


def _check_headers(lines: Iterable[bytes], path: Path) -> bool:
    """Refuse what faidx takes without an error: it omits repeated names and empty contigs, and reads FASTQ.

    Returns:
        Whether there are blank lines, which faidx refuses within a contig.
    """
    names, name, awaits_letters, has_blank_lines = set[str](), "", False, False
    for number, line in enumerate(lines, start=1):
        is_header = line.startswith(b">")
        if is_header:
            _check_letters(awaits_letters, path, name)
            name = line[1:].split()[0].decode(errors="replace") if line[1:].split() else ""
            if not name or line[1:2].isspace():
                raise ValueError(f"{str(path)!r}, line {number}: the header has no name.")
            if name in names:
                raise ValueError(
                    f"{str(path)!r}, line {number}: the file has a second contig {name!r}; rename or remove this "
                    "contig."
                )
            names.add(name)
        elif number == 1:
            raise ValueError(f"{str(path)!r}, line 1: {line[:40]!r} is not a header of FASTA ('>' and a name).")
        is_blank = not line.strip()
        has_blank_lines |= is_blank
        awaits_letters = is_header or (awaits_letters and is_blank)
    _check_letters(awaits_letters, path, name)
    if not names:
        raise ValueError(f"{str(path)!r} has no FASTA record.")
    return has_blank_lines


def _check_letters(missing: bool, path: Path, name: str) -> None:
    if missing:
        raise ValueError(f"{str(path)!r}: the contig {name!r} has no sequence: remove the contig.")


def _build_index(file: Path, path: Path, indices: Sequence[str]) -> None:
    options = [
        word for pair in zip(("--fai-idx", "--gzi-idx"), map(os.path.abspath, indices), strict=False) for word in pair
    ]
    # An absolute path is neither an option nor, as "data:" is, a protocol of htslib.
    done = subprocess.run(
        [sys.executable, "-c", _INDEX, str(file.absolute()), *options],
        # Python looks for modules in the working directory: this one has nothing of others in it.
        cwd=Path(indices[0]).parent,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        # The first line of the log is the cause, as in "[E::fai_build_core] Different line length in ...".
        cause = next((line for line in done.stderr.splitlines() if line.startswith("[E::")), done.stderr[-200:])
        text = re.sub(r"^\[E::\w*\] ", "", " ".join(cause.split()))
        raise ValueError(f"{str(path)!r} cannot be indexed: {text} (faidx of htslib).")
