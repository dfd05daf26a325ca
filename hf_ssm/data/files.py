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

# Decompressed data beyond both limits are refused. Texts and tables rarely compress to less than a fiftieth; gzip
# itself reaches a thousandth.
_MAX_BYTES = 256 * 1024**2
_MAX_RATIO = 100

_DECOMPRESSORS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pyarrow.input_stream(str(path), compression="zstd"),
}


class _Decompressed(io.RawIOBase):
    """The bytes of a compressed file, up to the larger of `_MAX_BYTES` and `_MAX_RATIO` times the size of the file."""

    def __init__(self, path: Path):
        self._file = _DECOMPRESSORS[path.suffix.lower()](path)
        self._left = max(_MAX_BYTES, _MAX_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise ValueError(
                f"the content decompresses to more than {_MAX_BYTES // 1024**2} MiB and more than {_MAX_RATIO} "
                "times its size; if the file is meant to be so large, decompress the file first (for example by "
                "gunzip)."
            )
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened(path: Path, mode: str = "rt") -> Iterator[IO[Any]]:
    """Open a file for reading; `mode` is "rt" (UTF-8 text) or "rb".

    It is decompressed if its name ends in ".gz", ".bz2", ".xz" or ".zst".

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, decompresses to more than `_MAX_BYTES` and more than `_MAX_RATIO` times its
            size, or is nested too deeply, or the `with` block raised a `ValueError`.
    """
    try:
        source: Any = _Decompressed(path) if is_compressed(path) else path.open("rb", buffering=0)
        with io.BufferedReader(source) as binary:
            yield binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"source={str(path)!r}: there is no such file; check the path.") from error
    except RecursionError as error:  # of json
        raise ValueError(f"source={str(path)!r} cannot be read: its lists or objects are nested too deeply.") from error
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
