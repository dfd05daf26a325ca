"""Reading files that may be compressed, with one-line errors."""

import bz2
import gzip
import io
import lzma
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow

_DECOMPRESSORS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pyarrow.input_stream(str(path), compression="zstd"),
}


@contextmanager
def opened(path: Path, mode: str = "rt") -> Iterator[IO[Any]]:
    """Open a file for reading; `mode` is "rt" (UTF-8 text) or "rb".

    It is decompressed if its name ends in ".gz", ".bz2", ".xz" or ".zst".

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, or the `with` block raised a `ValueError`.
    """
    try:
        source: Any = _DECOMPRESSORS[path.suffix.lower()](path) if is_compressed(path) else path.open("rb", buffering=0)
        with io.BufferedReader(source) as binary:
            yield binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"source={str(path)!r}: there is no such file; check the path.") from error
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"source={str(path)!r} cannot be read: {' '.join(str(error).split())}") from error


def is_compressed(path: Path) -> bool:
    """Whether the suffix is that of a compressed file that `opened` reads."""
    return path.suffix.lower() in _DECOMPRESSORS


def compression(path: Path) -> str | None:
    """ "gzip", "bgzip" (gzip in blocks, which htslib can seek in), or `None`, by the first bytes of a file."""
    with path.open("rb") as file:
        head = file.read(14)
    if head[:2] != b"\x1f\x8b":
        return None
    return "bgzip" if head[12:] == b"BC" else "gzip"


def decompress(path: Path, target: Path) -> None:
    """Write the contents of a gzip file to another one; errors as for `opened`."""
    with opened(path, "rb") as source, target.open("wb") as copy:
        shutil.copyfileobj(source, copy, 1 << 20)


def bare_suffix(path: Path) -> str:
    """The lower-case suffix before that of a compressed file: ".csv" for "a.CSV.gz"."""
    stem = path.with_suffix("") if is_compressed(path) else path
    return stem.suffix.lower()
