"""One commit per push: which files of a folder are uploaded, and which stale files the same commit deletes."""

import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.utils import filter_repo_objects

from hf_ssm.hub.client import redact, retry
from hf_ssm.hub.eval_results import is_eval_result
from hf_ssm.models.bundle import HEADER

__all__ = ["IGNORED", "check_secrets", "commit", "folder_files", "is_weights", "stage"]

IGNORED = (
    *("checkpoint-*", "checkpoint-*/**", "last-checkpoint/**", "_*", "**/__pycache__/**", "*.tmp"),
    # The arguments of a run may contain a token.
    *("training_args.bin", "**/training_args.bin"),
    # The logs of TensorBoard contain local paths, and are named after the machine.
    "*events.out.tfevents.*",
    *(".git/**", "**/.git/**", ".cache/**", "**/.cache/**"),
)
"""Patterns of files that belong to a run or to a tool rather than to the model; never uploaded."""

# Files of the Hub itself. Except for evaluation results, all other names with a leading dot are refused.
_HUB_FILES = frozenset({".gitattributes", ".gitignore"})
_WEIGHTS = re.compile(r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?")
# The start of a word, also after an escaped line end in JSON.
_START = rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
_SECRETS = re.compile(
    rb"(?:hf|api_org)_[A-Za-z0-9]{30,}"  # Hugging Face
    rb"|" + _START + rb"sk-(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic
    rb"|" + _START + rb"(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9])"  # AWS
    rb"|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}"  # GitHub
    rb"|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY"
)
_HEAD_BYTES, _LARGE_BYTES = 8192, 10 * 2**20
# Conflict, precondition failed: the branch has moved since it was listed.
_BRANCH_MOVED = (409, 412)


def is_weights(path: str) -> bool:
    """Whether `from_pretrained` reads the path as weights or as an index of weights."""
    return _WEIGHTS.fullmatch(path) is not None


def folder_files(folder: Path) -> dict[str, Path]:
    """The files of a folder to upload, as path in the repository -> local path.

    Raises:
        ValueError: A file is hidden (its name or a folder begins with a dot), or is a symbolic link out of the folder.
    """
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    files: dict[str, Path] = {}
    refused = []
    for name in filter_repo_objects(paths, ignore_patterns=list(IGNORED)):
        path = paths[name]
        if _leads_out(path, folder):
            refused.append(f"{name} (a symbolic link out of the folder)")
        elif not path.is_file():
            continue
        elif name not in _HUB_FILES and not is_eval_result(name) and any(p.startswith(".") for p in name.split("/")):
            refused.append(f"{name} (a hidden file)")
        else:
            files[name] = path
    if refused:
        raise ValueError(
            f"{str(folder)!r} contains files that a push does not upload: {redact(', '.join(refused))}. Move them "
            "out of the folder, and replace a link by the file itself if it belongs to the model"
        )
    return files


def check_secrets(files: Mapping[str, Path], token: str | bool | None = None) -> None:
    """Raise a `ValueError` that names the files with an access token (also `token` itself) or a private key.

    Weights and large binary files are not searched.
    """
    own = [secret.strip().encode() for secret in (token, get_token()) if isinstance(secret, str) and secret.strip()]
    found = [name for name, path in files.items() if not is_weights(name) and _has_secret(path, own)]
    if found:
        raise ValueError(
            f"access token or private key found in {redact(', '.join(found))}: remove it from the file, and revoke it "
            "if anybody else may have seen it"
        )


def commit(
    api: HfApi,
    repo_id: str,
    files: Mapping[str, Path],
    *,
    revision: str,
    message: str,
    repo_type: str = "model",
    keep: Set[str] = frozenset(),
    delete_patterns: Sequence[str] = (),
) -> CommitInfo:
    """Upload files and delete stale ones in one commit; unchanged files are skipped.

    `HfApi.upload_folder` may split a folder into several commits, so that a reader could see new weights beside an old
    configuration; `HfApi.create_commit` does not. Each attempt lists the branch again and names the listed commit as
    its parent: a commit that arrived although its answer was lost is recognised, and a commit of somebody else is
    not overwritten.

    Deleted are the files of `delete_patterns` that are not among `files`, code that an earlier push wrote and, if
    `files` has weights, all other weights. The other arguments are those of `push_files`.

    Returns:
        The commit; the head of the branch if nothing has changed.
    """
    replaces_weights = any(map(is_weights, files))

    def attempt() -> CommitInfo:
        head = api.repo_info(repo_id, revision=revision, repo_type=repo_type).sha
        remote = api.list_repo_files(repo_id, revision=head, repo_type=repo_type)
        others = [name for name in remote if name not in files]
        stale = set(filter_repo_objects(others, allow_patterns=list(delete_patterns)))
        stale |= set(_own_code(api, repo_id, repo_type, head, others))
        if replaces_weights:
            stale |= set(filter(is_weights, others))
        added = {name: path for name, path in files.items() if name not in keep or name not in remote}
        return api.create_commit(
            repo_id,
            repo_type=repo_type,
            operations=[
                *(CommitOperationDelete(name) for name in sorted(stale)),
                *(CommitOperationAdd(name, path) for name, path in sorted(added.items())),
            ],
            commit_message=message,
            revision=revision,
            parent_commit=head,
        )

    return retry(attempt, statuses=_BRANCH_MOVED)


def stage(files: Mapping[str, Path], folder: Path, linked: Callable[[str], bool]) -> dict[str, Path]:
    """Copy files into `folder`, under their names; return name -> path in `folder`.

    A file for which `linked(name)` is true is never written to in place; it gets a hard link where possible.
    """
    staged = {}
    for name, source in files.items():
        staged[name] = target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if linked(name):
            try:
                os.link(source.resolve(), target)
                continue
            except OSError:
                pass  # another file system, or one without hard links
        shutil.copyfile(source, target)
    return staged


def _leads_out(path: Path, folder: Path) -> bool:
    """Whether a path is a symbolic link to a file elsewhere; a snapshot in the Hub's cache links to the blobs there."""
    home, target = folder.resolve(), path.resolve()
    is_snapshot = home.parent.name == "snapshots"
    allowed = [home, home.parents[1] / "blobs"] if is_snapshot else [home]
    return path.is_symlink() and not any(target.is_relative_to(place) for place in allowed)


def _has_secret(path: Path, own: Sequence[bytes]) -> bool:
    size = path.stat().st_size
    if size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if size > _LARGE_BYTES and b"\0" in content[:_HEAD_BYTES]:
            return False
        return any(content.find(secret) >= 0 for secret in own) or _SECRETS.search(content) is not None


def _own_code(api: HfApi, repo_id: str, repo_type: str, revision: str | None, names: Sequence[str]) -> list[str]:
    """Names at the top of a repository that are code written by an earlier push, recognised by its header."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {
            name: api.hf_hub_download(repo_id, name, repo_type=repo_type, revision=revision, local_dir=scratch)
            for name in names
            if name.endswith(".py") and "/" not in name
        }
        return [name for name, path in paths.items() if Path(path).read_bytes().startswith(HEADER.encode())]
