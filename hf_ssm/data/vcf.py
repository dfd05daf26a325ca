"""VCF files with scores in INFO fields: every line of the input is kept as it stands, and fields are added to it."""

import gzip
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pyarrow as pa

from hf_ssm.data.files import bare_suffix, compression
from hf_ssm.data.genome import Genome, import_pysam, write_index

__all__ = ["VCF_OUTPUTS", "AnnotatedVcf", "is_vcf"]

VCF_OUTPUTS = (".vcf", ".vcf.gz")
"""Suffixes of VCF files that are written; ".vcf.gz" is compressed by bgzip and has a tabix index."""

_PREFIX = re.compile(r"[A-Za-z_][0-9A-Za-z_.]*")
# Significant digits of numbers: htslib reads them in single precision.
_DIGITS = 9


def is_vcf(path: Path) -> bool:
    """Whether the suffix is one of `VCF_OUTPUTS`."""
    return path.name.endswith(VCF_OUTPUTS)


class AnnotatedVcf:
    """A VCF file with the lines of another one and added INFO fields, one value for each alternative allele.

    Args:
        source: The input, a VCF file, optionally gzipped.
        output: The file that is written, with a suffix of `VCF_OUTPUTS`.
        descriptions: Columns of the table of scores that become INFO fields, and what they are.
        genome: Its contigs that the header lacks are declared with their lengths.
        prefix: Begins the name of each field, before "_" and the name of the column.

    Raises:
        ValueError: The input is no VCF file, has a field of the same name or, for an index, is not sorted, or the
            prefix is no name.
    """

    def __init__(
        self, source: Path, output: Path, descriptions: Mapping[str, str], genome: Genome | None, prefix: str = "HFSSM"
    ):
        if bare_suffix(source) != ".vcf":
            raise ValueError(
                f"output {str(output)!r} keeps the records of a VCF file, but {str(source)!r} is another table: give "
                "a VCF file, or an output .csv, .tsv or .parquet."
            )
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"`info_prefix`={prefix!r} is not a valid name in VCF: give letters, digits, '_' and '.'.")
        self._source, self._output, self._genome = source, output, genome
        self._is_compressed = output.suffix == ".gz"
        self._descriptions = dict(descriptions)
        self._fields = {name: f"{prefix}_{re.sub(r'[^0-9A-Za-z_.]', '_', name)}" for name in descriptions}
        names = list(self._fields.values())
        if equal := [name for name in self._fields if names.count(self._fields[name]) > 1]:
            raise ValueError(
                f"output {str(output)!r}: the columns {', '.join(equal)} have equal names in VCF: write a "
                "table (.csv, .tsv or .parquet)."
            )
        with self._lines() as lines:
            header = [line.decode(errors="replace") for line in _header(lines)]
            if taken := _ids("INFO", header).intersection(self._fields.values()):
                raise ValueError(
                    f"{str(source)!r} has an INFO field {min(taken)!r} already: choose another prefix (--info-prefix)."
                )
            self._survey(lines, _ids("contig", header))

    def _survey(self, lines: Iterable[bytes], declared: set[str]) -> None:
        """Find the contigs that the header lacks, the largest position, and whether the records are sorted."""
        self._missing_contigs: list[str] = []
        self._last_position = 0
        chrom, start, seen = "", 0, set[str]()
        for cells in (line.split(b"\t", 4) for line in lines if _is_record(line)):
            name, position = cells[0].decode(), int(cells[1])
            is_sorted = position >= start if name == chrom else name not in seen
            if self._is_compressed and not is_sorted:
                raise ValueError(
                    f"{str(self._source)!r} is not sorted: {name}:{position} follows {chrom}:{start}, but the "
                    f"index of {self._output.name} needs sorted records: sort the records (bcftools sort), or "
                    "write a .vcf."
                )
            if name not in seen and name not in declared:
                self._missing_contigs.append(name)
            seen.add(name)
            chrom, start = name, position
            self._last_position = max(self._last_position, start + len(cells[3]))

    def write(self, tables: Iterable[pa.Table], path: Path) -> None:
        """Write the file to a temporary path, and its index beside the output.

        Args:
            tables: The columns `chrom`, `pos`, `ref`, `alt` and those of the scores, for the alternative alleles of the
                input in its order. Alleles without a row have no value.
            path: Replaces the output afterwards. The index is moved first: an output never lacks it.
        """
        rows = _Rows(tables, self._fields)
        with self._lines() as lines, _writer(path, self._is_compressed) as file:
            for line in _header(lines):
                if line.startswith(b"#CHROM"):
                    file.write("".join(f"{text}\n" for text in self._declarations(rows.types)).encode())
                file.write(line)
            for line in filter(_is_record, lines):
                file.write(self._annotated(line, rows))
        if not rows.is_finished:
            raise ValueError(f"{str(self._source)!r} has changed while its variants were scored: repeat the command.")
        if self._is_compressed:
            write_index(path, self._output, self._last_position, preset="vcf")

    def _lines(self) -> IO[bytes]:
        # `opened` would take errors of the output for those of the source.
        open_bytes: Any = gzip.open if compression(self._source) else open
        lines: IO[bytes] = open_bytes(self._source, "rb")
        return lines

    def _declarations(self, types: Mapping[str, str]) -> Iterator[str]:
        """Lines of the header: contigs that it lacks, and the fields."""
        for name in self._missing_contigs:
            contig = None if self._genome is None else self._genome.contig(name)
            length = "" if self._genome is None or contig is None else f",length={self._genome.length(contig)}"
            yield f"##contig=<ID={name}{length}>"
        for name, field in self._fields.items():
            text = self._descriptions[name].replace("\\", "\\\\").replace('"', '\\"')
            yield f'##INFO=<ID={field},Number=A,Type={types[name]},Description="{text}">'

    def _annotated(self, line: bytes, rows: "_Rows") -> bytes:
        """A record with the values of its alternative alleles."""
        text = line.rstrip(b"\r\n")
        cells = text.split(b"\t")
        chrom, ref = cells[0].decode(), cells[3].decode()
        alts: list[str | None] = [None] if cells[4] == b"." else [*cells[4].decode().split(",")]
        alleles = [rows.values_of((chrom, int(cells[1]), ref, alt)) for alt in alts]
        added = [
            f"{field}={','.join(map(_text, values))}".encode()
            for field, values in zip(self._fields.values(), zip(*alleles, strict=True), strict=True)
            if cells[4] != b"." and any(value not in (None, "") for value in values)
        ]
        if added:
            fields = cells[7].rstrip(b";")
            cells[7] = b";".join([*([] if fields in (b".", b"") else [fields]), *added])
        return b"\t".join(cells) + line[len(text) :]


class _Rows:
    """The rows of tables, one after the other.

    Attributes:
        types: Name of each column that becomes a field to its type in VCF.
        is_finished: Whether all rows have been read.
    """

    def __init__(self, tables: Iterable[pa.Table], names: Iterable[str]):
        tables, self._names = iter(tables), tuple(names)
        first = next(tables)
        types = {name: str(first.schema.field(name).type) for name in self._names}
        self.types = {name: {"string": "String", "int64": "Integer"}.get(kind, "Float") for name, kind in types.items()}
        self._rows = (row for table in chain([first], tables) for row in table.to_pylist())
        self._next = next(self._rows, None)

    @property
    def is_finished(self) -> bool:
        return self._next is None

    def values_of(self, allele: tuple[str, int, str, str | None]) -> list[Any]:
        """The values of an allele, which is that of the next row or has none."""
        row = self._next
        if row is None or (row["chrom"], row["pos"], row["ref"], row["alt"]) != allele:
            return [None] * len(self._names)
        self._next = next(self._rows, None)
        return [row[name] for name in self._names]


def _is_record(line: bytes) -> bool:
    return bool(line.strip()) and not line.startswith(b"#")


def _writer(path: Path, is_compressed: bool) -> Any:
    return import_pysam().BGZFile(str(path), "wb") if is_compressed else path.open("wb")


def _header(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines up to that of the columns."""
    for line in lines:
        yield line
        if line.startswith(b"#CHROM"):
            return


def _ids(kind: str, header: Sequence[str]) -> set[str]:
    """The IDs that the header declares."""
    matches = (re.match(rf'##{kind}=<(?:[^"]*,)?ID=([^,>]+)', line) for line in header)
    return {match[1] for match in matches if match}


def _text(value: Any) -> str:
    """A value of an INFO field; characters with a meaning are encoded (VCF 4.3, section 1.2)."""
    if value in (None, ""):
        return "."
    if isinstance(value, float):
        return f"{value:.{_DIGITS}g}"
    return quote(re.sub(r"\s+", "_", str(value)), safe="<>()[]{}'\"!#$&*+-./:?@^_`|~")
