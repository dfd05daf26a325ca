"""One commit per push: which files of a folder are uploaded, and which stale files the same commit deletes."""

import logging
import re
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.utils import filter_repo_objects

from hf_ssm.checkpoint import HEADER
from hf_ssm.hub.eval_results import EVAL_RESULTS
from hf_ssm.hub.scanning import scan

__all__ = ["IGNORED", "check_secrets", "commit", "folder_files", "is_weights"]

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
_HUB_FILES = frozenset({".gitattributes", ".gitignore", EVAL_RESULTS})
_WEIGHTS = re.compile(r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?")
_SECRETS = re.compile(rb"hf_[A-Za-z0-9]{30,}|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY")


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
        ValueError: A file is hidden (its name or a folder begins with a dot), or is a symbolic link out of the folder.
    """
    files, links = scan(folder)
    problems = {link.path: link.what for link in links}
    wanted = set(filter_repo_objects([*files, *problems], ignore_patterns=list(IGNORED), key=str.lower))
    named = wanted & set(filter_repo_objects(files, allow_patterns=list(also)))
    refused = {name: what for name, what in problems.items() if name in wanted}
    for name in wanted & files.keys() - named:
        if name not in _HUB_FILES and any(p.startswith(".") for p in name.split("/")):
            refused[name] = "is a hidden file"
    if refused:
        listed = ", ".join(f"{name} ({what.removeprefix('is ')})" for name, what in sorted(refused.items()))
        raise ValueError(
            f"{str(folder)!r} contains files that a push does not upload: {listed}. Move them out of the folder"
        )
    unsuitable = _unsuitable(wanted - named)
    if unsuitable:
        listed = ", ".join(f"{name}{what}" for name, what in sorted(unsuitable.items()))
        logger.warning(
            "These files of %r are not uploaded: %s. Upload those that belong to the model with `hf upload`",
            *(str(folder), listed),
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


def check_secrets(files: Mapping[str, Path]) -> None:
    """Raise a `ValueError` that names the text files with a token of the Hub or a private key."""
    texts = {name: path for name, path in files.items() if not name.lower().endswith(_BINARIES)}
    found = [name for name, path in texts.items() if _SECRETS.search(path.read_bytes())]
    if found:
        raise ValueError(
            f"access token or private key found in {', '.join(found)}: remove it from the file, and revoke it "
            "if anybody else may have seen it"
        )


def commit(
    api: HfApi,
    repo_id: str,
    files: Mapping[str, Path],
    *,
    revision: str,
    message: str,
    keep: Set[str],
) -> CommitInfo:
    """Upload files and delete stale ones in one commit; unchanged files are skipped.

    `HfApi.upload_folder` may split a folder into several commits, so that a reader could see new weights beside an old
    configuration; `HfApi.create_commit` does not. The listed commit is named as its parent: a commit that somebody
    else makes meanwhile is not overwritten.

    Deleted are code that an earlier push wrote and, if `files` has weights, all other weights. The arguments are those
    of `push_files`.

    Returns:
        The commit; the head of the branch if nothing has changed.
    """
    head = api.repo_info(repo_id, revision=revision).sha
    remote = api.list_repo_files(repo_id, revision=head)
    others = [name for name in remote if name not in files]
    stale = set(_written_code(api, repo_id, head, others))
    if any(map(is_weights, files)):
        stale |= set(filter(is_weights, others))
    added = {name: path for name, path in files.items() if name not in keep or name not in remote}
    return api.create_commit(
        repo_id,
        operations=[
            *(CommitOperationDelete(name) for name in sorted(stale)),
            *(CommitOperationAdd(name, path) for name, path in sorted(added.items())),
        ],
        commit_message=message,
        revision=revision,
        parent_commit=head,
    )


def _written_code(api: HfApi, repo_id: str, revision: str | None, names: Sequence[str]) -> list[str]:
    """Names at the top of a repository that are code written by an earlier push, recognised by its header."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = {
            name: api.hf_hub_download(repo_id, name, revision=revision, local_dir=scratch)
            for name in names
            if name.endswith(".py") and "/" not in name
        }
        return [name for name, path in paths.items() if Path(path).read_bytes().startswith(HEADER.encode())]
