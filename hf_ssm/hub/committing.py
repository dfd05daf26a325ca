"""One commit that makes the files of a branch what they shall be, however often it takes to get there."""

import hashlib
import re
import tempfile
from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.hf_api import RepoFile

from hf_ssm.hub import client
from hf_ssm.models.bundle import HEADER

__all__ = ["LocalFile", "commit", "is_weights"]

_WEIGHTS = re.compile(r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?")
# Refused, moved or being written by somebody else since the last look.
_OVERTAKEN = (409, 412)


@dataclass(frozen=True)
class LocalFile:
    """A file to be pushed; what it is compared by is computed once."""

    path: Path

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
        return digest.hexdigest()

    @cached_property
    def blob(self) -> str:
        """git's name for the content."""
        content = self.path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def is_same_as(self, remote: RepoFile | None) -> bool:
        if remote is None or remote.size != self.path.stat().st_size:
            return False
        return self.sha256 == remote.lfs.sha256 if remote.lfs else self.blob == remote.blob_id


def is_weights(path: str) -> bool:
    """Whether a file at the top of a repository holds weights that `from_pretrained` would read, or their index."""
    return _WEIGHTS.fullmatch(path) is not None


def commit(
    api: HfApi,
    repo_id: str,
    files: Mapping[str, LocalFile],
    revision: str,
    words: tuple[str, str],
    kept: Set[str],
    owned: Callable[[str], bool],
) -> CommitInfo:
    """Commit what differs from the branch, until nothing does.

    Each attempt names the commit it was made for, so that one whose answer was lost is not made twice, and one that
    somebody else overtook is looked at anew.

    Args:
        api: the client.
        repo_id: USER/NAME, which is there.
        files: path in the repository -> file.
        revision: branch, which is there.
        words: message and description of the commit.
        kept: those of `files` that stay as they are where the branch has them.
        owned: which other paths are deleted, besides old code of ours and, where `files` has weights, other weights.

    Returns:
        The commit; the last one of the branch where there was nothing to do.

    Raises:
        Exception: of the client, at the last attempt.
    """
    waits = [*client.WAITS, None]
    brings_weights, by_lfs = any(map(is_weights, files)), False
    while True:
        wait = waits.pop(0)
        try:
            head = api.repo_info(repo_id, revision=revision).sha
            tree = api.list_repo_tree(repo_id, revision=head, recursive=True) if head else ()
            remote = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
            wanted = {name: file for name, file in files.items() if name not in kept or name not in remote}
            new = [name for name, file in wanted.items() if not file.is_same_as(remote.get(name))]
            others = [name for name in remote if name not in files]
            stale = [name for name in others if owned(name) or (brings_weights and is_weights(name))]
            stale += _old_code(api, repo_id, head, others)
            if not new and not stale:
                return CommitInfo(f"{api.endpoint}/{repo_id}/commit/{head}", *words, str(head))
            with ExitStack() as opened:
                contents: dict[str, Any] = {name: files[name].path for name in new}
                if by_lfs:
                    # hf_xet takes paths only, so the client sends what is open in the older way.
                    contents = {name: opened.enter_context(path.open("rb")) for name, path in contents.items()}
                return api.create_commit(
                    repo_id,
                    operations=[
                        *(CommitOperationDelete(name) for name in sorted(stale)),
                        *(CommitOperationAdd(name, content) for name, content in contents.items()),
                    ],
                    commit_message=words[0],
                    commit_description=words[1],
                    revision=revision,
                    parent_commit=head,
                )
        except Exception as error:
            if not by_lfs and _has_no_xet(error):
                by_lfs = True
                waits.insert(0, wait)
                continue
            status = getattr(getattr(error, "response", None), "status_code", None)
            if wait is None or not (client.is_passing(error) or status in _OVERTAKEN):
                raise
            client.pause(error, wait)


def _has_no_xet(error: Exception) -> bool:
    """Whether a Hub (a mirror, say) does not know the way by which hf_xet, where it is installed, sends large files."""
    return isinstance(error, ConnectionError) and "404" in str(error) and "xet-write-token" in str(error)


def _old_code(api: HfApi, repo_id: str, head: str | None, others: list[str]) -> list[str]:
    """Those of the other files at the top that are code of an earlier push of ours, which says so in its first line."""
    names = [name for name in others if name.endswith(".py") and "/" not in name]
    if not names:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        paths = {name: api.hf_hub_download(repo_id, name, revision=head, local_dir=scratch) for name in names}
        return [name for name, path in paths.items() if Path(path).read_bytes().startswith(HEADER.encode())]
