"""Reading files that may be compressed, with one-line errors."""

import bz2
import glob
import gzip
import io
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow

_DECOMPRESSORS: dict[str, Callable[[Path], Any]] = {
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pyarrow.input_stream(str(path), compression="zstd"),
}
_COMPRESSED = (".gz", ".bgz", *_DECOMPRESSORS)
_MARKS = {b"\xef\xbb": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# Lists of peaks (ENCODE) are BED files with more columns.
_SAME_FORMAT = {".narrowpeak": ".bed", ".broadpeak": ".bed"}


@contextmanager
def opened(path: Path, mode: str = "rt") -> Iterator[IO[Any]]:
    """Open a file for reading; `mode` is "rt" (text in UTF-8, or in UTF-16 with a byte order mark) or "rb".

    Gzip is decompressed whatever the name is, and other files if their names end in ".bz2", ".xz" or ".zst".

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, or the `with` block raised a `ValueError`.
    """
    try:
        source: Any = _DECOMPRESSORS.get(path.suffix.lower(), _open_gzip_or_plain)(path)
        with io.BufferedReader(source) as binary:
            yield binary if "b" in mode else io.TextIOWrapper(binary, encoding=_encoding(binary) or "utf-8")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"source={str(path)!r}: there is no such file; check the path.") from error
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"source={str(path)!r} cannot be read: {' '.join(str(error).split())}") from error


def _open_gzip_or_plain(path: Path) -> Any:
    return gzip.open(path) if compression(path) else path.open("rb", buffering=0)


def _encoding(file: Any) -> str | None:
    """The encoding that a byte order mark tells; None without one."""
    return _MARKS.get(file.peek(2)[:2])


def compression(path: Path) -> str | None:
    """ "gzip", "bgzip" (gzip in blocks, which htslib can seek in), or `None`, by the first bytes of a file."""
    with path.open("rb") as file:
        head = file.read(14)
    if head[:2] != b"\x1f\x8b":
        return None
    return "bgzip" if head[12:] == b"BC" else "gzip"


def needs_copy(path: Path) -> bool:
    """Whether htslib cannot read a file, since it is compressed by other means than bgzip or has a byte order mark."""
    with opened(path, "rb") as file:
        is_marked = _encoding(file) is not None
    return is_marked or compression(path) == "gzip" or path.suffix.lower() in _DECOMPRESSORS


def decompress(path: Path, target: Path) -> None:
    """Write the contents of a file to another one, decompressed and without a byte order mark; errors as `opened`."""
    with opened(path, "rb") as source, target.open("wb") as copy:
        if encoding := _encoding(source):
            copy.writelines(line.encode() for line in io.TextIOWrapper(source, encoding=encoding, newline=""))
        else:
            shutil.copyfileobj(source, copy, 1 << 20)


def bare_suffix(path: Path) -> str:
    """The lower-case suffix before that of a compressed file: ".csv" for "a.CSV.gz", and ".bed" for lists of peaks."""
    stem = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return _SAME_FORMAT.get(stem.suffix.lower(), stem.suffix.lower())


def source_files(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of a path, of a glob (sorted by name), or of a list of both; a path that does not exist stays."""
    paths: list[Path] = []
    for name in [source] if isinstance(source, (str, os.PathLike)) else source:
        text = os.path.expanduser(name)
        matches = [] if Path(text).exists() else sorted(glob.glob(text, recursive=True))
        paths += map(Path, matches or [text])
    return paths


def common_suffix(paths: Sequence[Path]) -> str:
    """The `bare_suffix` of files that are read together; raises a `ValueError` if they differ."""
    others = [path.name for path in paths if bare_suffix(path) != bare_suffix(paths[0])]
    if others:
        raise ValueError(
            f"source: {paths[0].name!r} and {others[0]!r} have different formats: give files of one kind, such as "
            "'folder/*.csv.gz'."
        )
    return bare_suffix(paths[0])
