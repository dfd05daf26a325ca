"""State of the loopback Hub: repositories of immutable commits, as in git.

A commit is a whole snapshot `{path: Blob}` under an identifier that depends on its content and its parents; branches
and tags point to commits.
"""

import fnmatch
import hashlib
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

import yaml
from loopback_http import HubError

# What a new repository tracks with LFS, whatever the size: the part of the Hub's own list that matters here.
LFS_PATTERNS = "7z arrow bin bz2 ckpt gz h5 joblib model msgpack npy npz onnx parquet pickle pkl pt pth safetensors zip"
GIT_ATTRIBUTES = "".join(f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LFS_PATTERNS.split())
LARGEST_REGULAR = 10 * 2**20
"""Bytes; a larger file travels by LFS whatever its name."""


@dataclass(frozen=True)
class Blob:
    """One version of one file. An LFS file is in git as a small pointer; its content lies in the object store."""

    content: bytes
    lfs: bool = False

    @property
    def size(self) -> int:
        return len(self.content)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @cached_property
    def oid(self) -> str:
        """Git's name for what git stores: the pointer of an LFS file, else the content."""
        stored = self.pointer if self.lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    blobs: dict[str, Blob]
    title: str
    message: str
    author: str
    date: str


def is_lfs(path: str, size: int, sample: bytes, attributes: str) -> bool:
    """Whether the file travels by LFS: tracked by a line of `.gitattributes`, too large for git, or not text."""
    if size == 0:
        return False
    for line in attributes.splitlines():
        pattern, _, settings = line.partition(" ")
        if "filter=lfs" in settings and fnmatch.fnmatch(path.rsplit("/", 1)[-1], pattern):
            return True
    return size > LARGEST_REGULAR or b"\0" in sample


def checked_path(path: str) -> str:
    """The path itself, or the refusal the Hub gives to paths that leave the repository."""
    parts = path.split("/")
    if not path or "\\" in path or any(part in ("", ".", "..", ".git") for part in parts):
        raise HubError(400, f"Invalid file path: {path!r}")
    return path


def card_data(text: str) -> tuple[dict[str, Any], list[str]]:
    """The metadata of a card, and what is wrong with it."""
    if not re.match(r"---[ \t]*\n", text):
        return {}, []
    header, closed, _ = text.split("\n", 1)[1].partition("\n---")
    if not closed:
        return {}, ["the metadata is never closed by a line with ---"]
    try:
        return yaml.safe_load(header) or {}, []
    except yaml.YAMLError as error:
        return {}, [str(error)]


@dataclass
class Repo:
    """A repository; `type` is "model", "dataset" or "space", `gated` False, "auto" or "manual"."""

    id: str
    type: str = "model"
    private: bool = False
    gated: str | bool = False
    sdk: str | None = None
    granted: set[str] = field(default_factory=set)
    """Users who were granted access although the repository is gated."""
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    history: dict[str, Commit] = field(default_factory=dict)

    @property
    def author(self) -> str:
        return self.id.split("/")[0]

    @property
    def prefix(self) -> str:
        """What stands before the id in the address of a page: "", "datasets/" or "spaces/"."""
        return "" if self.type == "model" else f"{self.type}s/"

    def commit(self, revision: str = "main") -> Commit:
        """The commit a branch, a tag, a commit identifier or its first 7 digits or more name."""
        revision = re.sub(r"^refs/(heads|tags)/", "", revision)
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        if oid in self.history:
            return self.history[oid]
        found = [known for known in self.history if len(oid) >= 7 and known.startswith(oid)]
        if len(found) != 1:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.history[found[0]]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {path: blob.content for path, blob in self.commit(revision).blobs.items()}

    def commits(self, revision: str = "main") -> list[Commit]:
        """The history of a revision, newest first."""
        found = [self.commit(revision)]
        while found[-1].parent is not None:
            found.append(self.history[found[-1].parent])
        return found

    def blob(self, revision: str, path: str) -> tuple[Commit, Blob]:
        commit = self.commit(revision)
        if path not in commit.blobs:
            raise HubError(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.oid})
        return commit, commit.blobs[path]

    def write(
        self, branch: str, blobs: dict[str, Blob], title: str, message: str, author: str, root: bool = False
    ) -> Commit:
        """Puts a snapshot on a branch; one that changes nothing makes no commit. `root` cuts off the history."""
        parent = None if root or branch not in self.branches else self.branches[branch]
        if parent is not None and self.history[parent].blobs == blobs:
            return self.history[parent]
        tree = "".join(f"{path}\0{blobs[path].oid}\n" for path in sorted(blobs))
        seed = f"{parent}\n{len(self.history)}\n{author}\n{title}\n{message}\n{tree}"
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        commit = Commit(hashlib.sha1(seed.encode()).hexdigest(), parent, blobs, title, message, author, date)
        self.history[commit.oid] = commit
        self.branches[branch] = commit.oid
        return commit
