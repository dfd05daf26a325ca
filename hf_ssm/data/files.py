"""Reading files that may be gzipped, and saying plainly what is wrong with those that cannot be read."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_GZIP_MAGIC = b"\x1f\x8b"


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Open a UTF-8 text file, gzipped or not, for reading inside a `with` block.

    Whether it is gzipped is read from its first bytes; a name in `.gz` must keep its promise. Line ends are
    left to the reader. What goes wrong while the block reads is raised as a `ValueError` with its cause.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, is empty, is not gzip despite its name, is truncated or damaged gzip, or
            is not UTF-8 text.
    """
    # utf-8-sig drops the byte order mark that spreadsheets write: it would join the first column's name.
    opener = gzip.open if _is_zipped(path) else open
    try:
        with _gzip_errors(path), opener(path, "rt", encoding="utf-8-sig", newline="") as handle:
            yield handle
    except UnicodeDecodeError as error:
        raise ValueError(
            f"source={str(path)!r} is not UTF-8 text ({error.reason}, byte {error.start} of what was read); "
            "give a text file, or convert it."
        ) from error


def read_bytes(path: Path) -> bytes:
    """The content of a file, unzipped if it was gzipped.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, is empty, is not gzip despite its name, or is truncated or damaged gzip.
    """
    opener = gzip.open if _is_zipped(path) else open
    with _gzip_errors(path), opener(path, "rb") as handle:
        return bytes(handle.read())


def _is_zipped(path: Path) -> bool:
    """Whether a file is gzipped, read from its first bytes; refuse what is no file, or not what its name says."""
    if not path.exists():
        raise FileNotFoundError(f"source={str(path)!r}: there is no such file; check the path.")
    if not path.is_file():
        raise ValueError(f"source={str(path)!r} is a folder; give the path of one file in it.")
    with path.open("rb") as raw:
        start = raw.read(2)
    if not start:
        raise ValueError(f"source={str(path)!r} is empty; fetch or write it again.")
    zipped = start == _GZIP_MAGIC
    if path.suffix == ".gz" and not zipped:
        raise ValueError(
            f"source={str(path)!r} ends in .gz and is not gzip; compress it, or take the .gz off its name."
        )
    return zipped


@contextmanager
def _gzip_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise ValueError(f"source={str(path)!r} is truncated gzip; fetch or write it again.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"source={str(path)!r} is damaged gzip ({error}); fetch or write it again.") from error


def bare_suffix(path: Path) -> str:
    """The suffix in lower case under a possible `.gz`: ".csv" for "a.CSV.gz"."""
    stem = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return stem.suffix.lower()
