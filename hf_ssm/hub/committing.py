"""One commit per push: which files of a folder are uploaded, and which stale files the same commit deletes."""

import logging
import mmap
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.utils import filter_repo_objects

from hf_ssm.checkpoint import HEADER
from hf_ssm.hub.client import redact, retry
from hf_ssm.hub.eval_results import is_eval_result
from hf_ssm.hub.scanning import header_size, printable, scan

__all__ = ["IGNORED", "check_secrets", "commit", "folder_files", "is_weights", "stage"]

logger = logging.getLogger(__name__)

# Suffixes of the files that are uploaded, in small letters: neither code, pickles nor archives.
_TEXTS = (
    *(".json", ".md", ".txt", ".yaml", ".yml", ".jinja", ".csv", ".tsv"),
    *(".svg", ".html", ".bedgraph", ".bib", ".cff"),
)
_PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_BINARIES = (".safetensors", ".model", ".onnx", ".onnx_data", ".onnx.data", ".gguf", ".parquet", *_PICTURES)
_NAMES = ("license", "notice", ".gitattributes", ".gitignore")
IGNORED = (
    *("checkpoint-*", "checkpoint-*/**", "last-checkpoint/**", "_*", "**/__pycache__/**", "*.tmp"),
    # The arguments of a run may contain a token.
    *("training_args.bin", "**/training_args.bin"),
    # The logs of TensorBoard contain local paths, and are named after the machine.
    "*events.out.tfevents.*",
    *(".git/**", "**/.git/**", ".cache/**", "**/.cache/**"),
)
"""Patterns, in small letters, of files that belong to a run or to a tool rather than to the model; never uploaded."""

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
# Each secret contains one of these, for which a search is a hundred times faster.
_MARKS = (
    *(b"hf_", b"api_org_", b"sk-", b"AKIA", b"ASIA", b"github_pat_", b"PRIVATE KEY"),
    *(b"gh%c_" % c for c in b"opsur"),
)
# Bytes of a large binary file that are searched at either end; bytes that are searched at once, and the overlap, which
# is longer than any token.
_END_BYTES, _PIECE, _OVERLAP = 10 << 20, 16 << 20, 4096
# What a commit or other systems cannot have in a name: control characters, bytes that are not UTF-8.
_ODD_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\\]")
# Conflict, precondition failed: the branch has moved since it was listed.
_BRANCH_MOVED = (409, 412)


def is_weights(path: str) -> bool:
    """Whether `from_pretrained` reads the path as weights or as an index of weights."""
    return _WEIGHTS.fullmatch(path) is not None


def folder_files(folder: Path, also: Sequence[str] = ()) -> dict[str, Path]:
    """The files of a folder to upload, as path in the repository -> local path.

    Only files with a suffix of data, texts or pictures are uploaded; others are named in a warning. Pickled weights
    are uploaded only from a folder without safetensors.

    Args:
        folder: The folder.
        also: Patterns of other files to upload, such as code that was just written.

    Raises:
        ValueError: A file is hidden (its name or a folder begins with a dot), is a symbolic link out of the folder or
            a broken one, is not a regular file, or has a name that a repository cannot have.
    """
    files, irregular = scan(folder)
    wanted = set(filter_repo_objects([*files, *irregular], ignore_patterns=list(IGNORED), key=str.lower))
    named = wanted & set(filter_repo_objects(files, allow_patterns=list(also)))
    refused = {name: what for name, what in irregular.items() if name in wanted}
    for name in wanted & files.keys() - named:
        if _ODD_NAME.search(name):
            refused[name] = "a name with a control character, a backslash or bytes that are not UTF-8"
        elif name not in _HUB_FILES and not is_eval_result(name) and any(p.startswith(".") for p in name.split("/")):
            refused[name] = "a hidden file"
    if refused:
        listed = ", ".join(f"{_redacted(name)} ({what.removeprefix('is ')})" for name, what in sorted(refused.items()))
        raise ValueError(
            f"{str(folder)!r} contains files that a push does not upload: {redact(listed)}. Move them out of the folder"
        )
    unsuitable = _unsuitable(wanted - named)
    if unsuitable:
        listed = ", ".join(f"{_redacted(name)}{what}" for name, what in sorted(unsuitable.items()))
        logger.warning(
            "These files of %r are not uploaded: %s. Upload those that belong to the model with `hf upload`",
            *(str(folder), redact(listed)),
        )
    return {name: path for name, path in files.items() if name in wanted and name not in unsuitable}


def _unsuitable(names: Set[str]) -> dict[str, str]:
    """Names that are not on the list of suffixes, and pickled weights beside others; with a remark in parentheses."""
    has_safetensors = any(is_weights(name) and ".safetensors" in name for name in names)
    unsuitable = {}
    for name in names:
        if is_weights(name) and ".bin" in name:
            if has_safetensors:
                unsuitable[name] = " (pickled weights beside safetensors)"
        elif not name.lower().endswith((*_TEXTS, *_BINARIES)) and name.lower().rpartition("/")[2] not in _NAMES:
            unsuitable[name] = ""
    return unsuitable


def check_secrets(files: Mapping[str, Path], token: str | bool | None = None) -> None:
    """Raise a `ValueError` that names the files with an access token (also `token` itself) or a private key.

    Searched are names and contents, also those of 16 or 32 bits per character; of safetensors their headers, and of
    other large binary files both ends.
    """
    tokens = [secret.strip().encode() for secret in (token, get_token()) if isinstance(secret, str) and secret.strip()]
    names = {name: _redacted(name, tokens) for name in files}
    places = [f"the name of {shown}" for name, shown in names.items() if shown != printable(name)]
    places += [names[name] for name, path in files.items() if _has_secret(path, tokens)]
    if places:
        raise ValueError(
            f"access token or private key found in {', '.join(places)}: remove it from the file, and revoke it "
            "if anybody else may have seen it"
        )


def commit(
    api: HfApi,
    repo_id: str,
    files: Mapping[str, Path],
    *,
    revision: str,
    message: str,
    repo_type: str,
    keep: Set[str],
    delete_patterns: Sequence[str],
) -> CommitInfo:
    """Upload files and delete stale ones in one commit; unchanged files are skipped.

    `HfApi.upload_folder` may split a folder into several commits, so that a reader could see new weights beside an old
    configuration; `HfApi.create_commit` does not. Each attempt lists the branch again and names the listed commit as
    its parent: a commit that arrived although its answer was lost is recognised, and a commit of somebody else is
    not overwritten.

    Deleted are the files of `delete_patterns` that are not among `files`, code that an earlier push wrote and, if
    `files` has weights, all other weights. The arguments are those of `push_files`.

    Returns:
        The commit; the head of the branch if nothing has changed.
    """
    replaces_weights = any(map(is_weights, files))

    def attempt() -> CommitInfo:
        head = api.repo_info(repo_id, revision=revision, repo_type=repo_type).sha
        remote = api.list_repo_files(repo_id, revision=head, repo_type=repo_type)
        others = [name for name in remote if name not in files]
        stale = set(filter_repo_objects(others, allow_patterns=list(delete_patterns)))
        stale |= set(_written_code(api, repo_id, repo_type, head, others))
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


def _redacted(name: str, tokens: Sequence[bytes] = ()) -> str:
    """The name of a file for a message, with "[token]" in place of `tokens` and of what looks like a secret."""
    content = _SECRETS.sub(b"[token]", os.fsencode(name))
    for token in tokens:
        content = content.replace(token, b"[token]")
    return printable(os.fsdecode(content))


def _has_secret(path: Path, tokens: Sequence[bytes]) -> bool:
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(
            any(token in piece for token in tokens)
            or (any(mark in piece for mark in _MARKS) and _SECRETS.search(piece) is not None)
            for start, stop in _searched(path, len(content))
            for piece in _pieces(content, start, stop)
        )


def _searched(path: Path, size: int) -> list[tuple[int, int]]:
    """The parts of a file in which text may be."""
    name = path.name.lower()
    header = header_size(path) if name.endswith(".safetensors") else None
    if header is not None:
        return [(0, header)]
    if name.endswith(_TEXTS) or size <= 2 * _END_BYTES:
        return [(0, size)]
    return [(0, _END_BYTES), (size - _END_BYTES, size)]


def _pieces(content: mmap.mmap, start: int, stop: int) -> Iterator[bytes]:
    """Overlapping pieces of a file; again without zeros, which makes ASCII of text of 16 or 32 bits per character."""
    for first in range(start, stop, _PIECE):
        # With the byte before it, because a token is the start of a word.
        piece = content[max(first - 1, start) : min(first + _PIECE + _OVERLAP, stop)]
        yield piece
        if b"\0" in piece:
            yield piece.replace(b"\0", b"")


def _written_code(api: HfApi, repo_id: str, repo_type: str, revision: str | None, names: Sequence[str]) -> list[str]:
    """Names at the top of a repository that are code written by an earlier push, recognised by its header."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {
            name: api.hf_hub_download(repo_id, name, repo_type=repo_type, revision=revision, local_dir=scratch)
            for name in names
            if name.endswith(".py") and "/" not in name
        }
        return [name for name, path in paths.items() if Path(path).read_bytes().startswith(HEADER.encode())]
