"""Reading files that may be gzipped, with one-line errors."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def opened(path: Path, mode: str = "rt") -> Iterator[IO[Any]]:
    """Open a file for reading, decompressed if its name ends in ".gz"; `mode` is "rt" (UTF-8 text) or "rb".

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file cannot be read, or the `with` block raised a `ValueError`.
    """
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, mode, encoding=None if "b" in mode else "utf-8-sig") as file:
            yield file
    except FileNotFoundError as error:
        raise FileNotFoundError(f"source={str(path)!r}: there is no such file; check the path.") from error
    except RecursionError as error:  # of json
        raise ValueError(f"source={str(path)!r} cannot be read: its lists or objects are nested too deeply.") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"source={str(path)!r} cannot be read: {' '.join(str(error).split())}") from error


def bare_suffix(path: Path) -> str:
    """The lower-case suffix before an optional ".gz": ".csv" for "a.CSV.gz"."""
    stem = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return stem.suffix.lower()
