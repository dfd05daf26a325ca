"""A reference genome by pysam (htslib): random access to a FASTA file, and intervals of BED files."""

import gzip
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from hf_ssm.data.checks import did_you_mean
from hf_ssm.data.files import compression, decompress, is_compressed, opened
from hf_ssm.utils.files import staged_files

__all__ = ["Genome", "Interval", "import_pysam", "index_suffix", "quiet", "read_bed", "write_index"]

# The last block of a complete bgzip file (SAM specification, section 4.1.2).
_LAST_BLOCK = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")
# Larger positions need another index than .tbi (tabix specification).
_LAST_OF_TBI = 2**29
# The log of htslib bypasses Python's stderr; in a process of its own it can be read.
_INDEX = "import sys, pysam; pysam.faidx(*sys.argv[1:])"


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

    An index beside the file (`.fai`, and `.gzi` of a bgzip file) is used if it is not older than the file. Otherwise
    one is built in a temporary folder, where a gzip file that is not of bgzip is also decompressed.

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


@dataclass(frozen=True)
class Interval:
    """A line of a BED file.

    Attributes:
        chrom: Name of the contig.
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

    Empty lines, comments ("#") and lines "track" and "browser" are left out, and so are fields after the sixth.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: A line is malformed, an interval is not in the genome, or there is none.
    """
    parse = import_pysam().asBed(encoding="utf-8")
    intervals = list[tuple[int, Interval]]()
    with opened(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            text = line.rstrip(b"\r\n")
            if not text.strip() or text.startswith(b"#") or text.split()[0] in (b"track", b"browser"):
                continue
            try:
                if b"\0" in text:
                    raise ValueError(
                        "the line has a NUL character, as texts in UTF-16 have: convert the file to UTF-8."
                    )
                fields = parse(text, len(text))
                interval = _interval(fields)
                genome.check(interval.chrom, interval.start, interval.stop)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            intervals.append((number, interval))
        if not intervals:
            raise ValueError("the file has no interval.")
    names = max((interval.columns for _, interval in intervals), key=len)
    return [
        (number, replace(interval, columns={name: interval.columns.get(name) for name in names}))
        for number, interval in intervals
    ]


def _interval(fields: Any) -> Interval:
    columns: dict[str, Any] = {"chrom": fields.contig, "chrom_start": fields.start, "chrom_end": fields.end}
    for name, value in zip(("name", "score", "strand"), list(fields)[3:], strict=False):
        columns[name] = (None if value == "." else float(value)) if name == "score" else value
    strand = columns.get("strand", ".")
    if strand not in ("+", "-", "."):
        raise ValueError(f"the strand {strand!r} is not '+', '-' or '.'; correct the line.")
    return Interval(fields.contig, fields.start, fields.end, strand, columns)


def _prepared(path: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """A file with an index, and the arguments of `FastaFile` for the index."""
    # Other formats than gzip have no random access either.
    kind = compression(path) or ("gzip" if is_compressed(path) else None)
    with path.open("rb") as binary:
        binary.seek(-min(len(_LAST_BLOCK), path.stat().st_size), os.SEEK_END)
        if kind == "bgzip" and binary.read() != _LAST_BLOCK:
            raise ValueError(f"{str(path)!r} is truncated: the last block of bgzip is missing.")
    indices = {"filepath_index": Path(f"{path}.fai")}
    if kind == "bgzip":
        indices["filepath_index_compressed"] = Path(f"{path}.gzi")
    changed = path.stat().st_mtime
    if kind != "gzip" and all(index.is_file() and index.stat().st_mtime >= changed for index in indices.values()):
        return path, {name: str(index) for name, index in indices.items()}
    built = {name: folder / index.name for name, index in indices.items()}
    file = folder / "genome.fa" if kind == "gzip" else path
    if not all(part.is_file() for part in (file, *built.values())):
        with staged_files(folder) as scratch:
            if kind == "gzip":
                decompress(path, scratch / file.name)
            source = scratch / file.name if kind == "gzip" else path
            with gzip.open(source) if kind == "bgzip" else source.open("rb") as lines:
                _check_headers(lines, path)
            _build_index(source, path, [str(scratch / index.name) for index in built.values()])
    return file, {name: str(index) for name, index in built.items()}


def _check_headers(lines: Iterable[bytes], path: Path) -> None:
    """Refuse what faidx takes without an error: it omits repeated names and empty contigs, and reads FASTQ."""
    names, name, awaits_letters = set[str](), "", False
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
        awaits_letters = is_header or (awaits_letters and not line.strip())
    _check_letters(awaits_letters, path, name)
    if not names:
        raise ValueError(f"{str(path)!r} has no FASTA record.")


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
