"""Files of a folder that somebody else may have written: what is read at all, and how much of it."""

import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

__all__ = ["MOST_ENTRIES", "Problem", "check_yaml", "header_size", "irregularity", "oversized", "printable", "scan"]

MOST_ENTRIES = 100_000
"""Number of files and folders that are listed."""

_LONGEST_LINE = 1000
# Bytes of all files of a kind together, as links can give one file many names. Parsed JSON may take twenty times the
# memory, and the YAML parser reads some tens of kilobytes per second. Tokenizers of 256,000 tokens have 33 MB. A tensor
# has about 100 bytes in the header of its file, and takes a few kilobytes of memory when names are compared.
_LARGEST = {"vocabulary": 40 << 20, "JSON": 16 << 20, "headers of weights": 16 << 20, "evaluation results": 64 << 10}
_DEEPEST = 50


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
        line = printable(f"{self.path}: {self.what}")
        return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..."


def printable(text: str) -> str:
    """Replace characters that end a line, control a terminal or cannot be encoded by their escape sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def scan(folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """List the files of a folder and of the folders below without opening any.

    Returns:
        The regular files, and descriptions of what must not be read: links out of the folder, broken links, devices,
        FIFOs, sockets and unreadable folders. Both by path in the folder, in alphabetical order.
    """
    files: dict[str, Path] = {}
    refused: dict[str, str] = {}
    places, waiting, entries = _places(folder), [""], 0
    while waiting:
        below = waiting.pop()
        try:
            with os.scandir(folder / below) as listing:
                for entry in listing:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        what = f"has more than {MOST_ENTRIES} entries: give the folder of a checkpoint alone"
                        return dict(sorted(files.items())), {".": what}
                    name, path = f"{below}{entry.name}", Path(entry.path)
                    reason = irregularity(path, folder, places)
                    if reason is not None:
                        refused[name] = reason
                    elif not path.is_dir():
                        files[name] = path
                    elif not entry.is_symlink():
                        waiting.append(f"{name}/")
        except OSError as error:
            refused[below.rstrip("/") or "."] = f"cannot be read: {error.strerror}"
    return dict(sorted(files.items())), dict(sorted(refused.items()))


def irregularity(path: Path, folder: Path, places: list[Path] | None = None) -> str | None:
    """Why a path in a folder must not be read; `None` for regular files, folders, and links to either in the folder.

    Args:
        path: The path.
        folder: The folder that links may not leave, except from a snapshot in the cache of the Hub to its blobs.
        places: Folders in which links may end, by default computed from `folder`.
    """
    try:
        if path.is_symlink():
            target = path.resolve(strict=True)
            if not any(target.is_relative_to(place) for place in places or _places(folder)):
                return "is a symbolic link out of the folder: replace it by the file itself, or delete it"
        mode = path.stat().st_mode
    except (OSError, RuntimeError) as error:
        # Python up to 3.12 raises a RuntimeError for links that form a loop.
        return "is a broken symbolic link: delete it" if path.is_symlink() else f"cannot be read: {error}"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "is not a regular file: delete it"
    return None if os.access(path, os.R_OK) else "cannot be read: there is no permission"


def _places(folder: Path) -> list[Path]:
    """Where links may end: in the folder, and for a snapshot in the cache of `huggingface_hub` among the blobs."""
    home = folder.resolve()
    repository = home.parents[1] if len(home.parents) > 1 else home
    if home.parent.name != "snapshots" or "--" not in repository.name:
        return [home]
    # The second is the store that the repositories of a cache share.
    return [home, repository / "blobs", repository.parent / "blobs"]


def oversized(files: Mapping[str, Path]) -> Iterator[Problem]:
    """The first file that `verify` would parse as a whole, and which is too large with those of its kind before it."""
    total: Counter[str] = Counter()
    for name, path in files.items():
        kind = _kind(name)
        if kind is None:
            continue
        total[kind] += path.stat().st_size if kind != "headers of weights" else header_size(path) or 0
        if total[kind] > _LARGEST[kind]:
            what = f"raises the total of {kind} to {total[kind]} bytes, but at most {_LARGEST[kind]} are read"
            yield Problem(name, what)
            return


def _kind(name: str) -> str | None:
    if name == "tokenizer.json":
        return "vocabulary"
    if "/" in name:
        return "evaluation results" if name.startswith(".eval_results/") else None
    return {".json": "JSON", ".safetensors": "headers of weights"}.get(Path(name).suffix.lower())


def check_yaml(text: str, with_aliases: bool = False) -> None:
    """Raise `ValueError` for YAML that takes much more time or memory to read than its size suggests.

    The time of the parser grows with the square of the number of brackets inside each other, and an alias may stand
    for any amount of text.

    Args:
        text: The YAML.
        with_aliases: Whether aliases are allowed.
    """
    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"lists or mappings are nested more than {_DEEPEST} levels deep")
        if isinstance(event, yaml.AliasEvent) and not with_aliases:
            raise ValueError("aliases are not allowed, because an alias may stand for any amount of text")


def header_size(path: Path) -> int | None:
    """Bytes of a safetensors file before its numbers; `None` unless the file is long enough for the header."""
    with path.open("rb") as file:
        start = file.read(8)
    size = 8 + int.from_bytes(start, "little")
    return size if len(start) == 8 and size <= path.stat().st_size else None
