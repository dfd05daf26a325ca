"""The files of a folder, and the links in it that leave it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Problem", "scan"]


@dataclass(frozen=True)
class Problem:
    """A problem with one file.

    Attributes:
        path: Path in the folder or repository.
        what: Description.
        is_own_code: Whether the file is marked as code of hf_ssm, which a push writes anew.
    """

    path: str
    what: str
    is_own_code: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def scan(folder: Path, patterns: Sequence[str] = ("**/*",)) -> tuple[dict[str, Path], list[Problem]]:
    """List the files of a folder and of the folders below, by path in the folder, in alphabetical order.

    Args:
        folder: The folder.
        patterns: Those of the paths that are listed.

    Returns:
        The files, and the links out of the folder and to nothing. Links from the cache of the Hub to its blobs count
        as files.
    """
    places = _places(folder)
    files: dict[str, Path] = {}
    problems = []
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        name = path.relative_to(folder).as_posix()
        target = Path(os.path.realpath(path))
        if path.is_symlink() and not (target.exists() and any(target.is_relative_to(place) for place in places)):
            what = "is a symbolic link out of the folder or to nothing: replace it by the file itself, or delete it"
            problems.append(Problem(name, what))
        elif path.is_file():
            files[name] = path
    return files, problems


def _places(folder: Path) -> list[Path]:
    """Where links may end: in the folder, and for a snapshot in the cache of `huggingface_hub` among the blobs."""
    home = folder.resolve()
    if home.parent.name != "snapshots":
        return [home]
    # The second is the store that the repositories of a cache share.
    return [home, home.parents[1] / "blobs", home.parents[2] / "blobs"]
