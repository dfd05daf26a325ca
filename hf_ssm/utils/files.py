"""Writing files so that an interruption or a full disk leaves no partial file under the final name."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["TEMPORARY_PREFIX", "staged_files", "write_text_atomically"]

TEMPORARY_PREFIX = ".hf_ssm-"
"""Start of the name of every temporary folder; one that a killed process left behind may be deleted."""


@contextmanager
def staged_files(folder: str | Path, replaces: Sequence[str] = ()) -> Iterator[Path]:
    """Write files to a temporary folder that are moved to `folder` when the block ends without an error.

    Args:
        folder: Destination on the same file system; created if it does not exist.
        replaces: Patterns of files in `folder` that are deleted before the new files are moved.

    Yields:
        The temporary folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=TEMPORARY_PREFIX) as scratch:
        yield Path(scratch)
        new = sorted(Path(scratch).iterdir())
        outdated = {path for pattern in replaces for path in folder.glob(pattern)} - {
            folder / path.name for path in new
        }
        for path in outdated:
            path.unlink()
        for path in new:
            path.replace(folder / path.name)


def write_text_atomically(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file completely or not at all; an existing file is replaced in one step."""
    path = Path(path)
    with staged_files(path.parent) as scratch:
        (scratch / path.name).write_text(text, encoding="utf-8")
