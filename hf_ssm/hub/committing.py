"""One commit per push: which files of a folder are uploaded, and which stale files the same commit deletes."""

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi

from hf_ssm.checkpoint import HEADER
from hf_ssm.hub.card import CARD_NAME
from hf_ssm.hub.eval_results import EVAL_RESULTS
from hf_ssm.hub.scanning import scan

__all__ = ["PUSHED", "check_secrets", "commit", "is_weights", "upload_list"]

PUSHED = (
    *(CARD_NAME, "LICENSE*", "config.json", "generation_config.json", "preprocessor_config.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tokenizer.model"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("train_config.yaml", "data_fingerprint.json", EVAL_RESULTS),
    *(f"{name}.{suffix}" for name in ("training_log", "frequency_response") for suffix in ("json", "png", "svg")),
)
"""Patterns of the files that `hf-ssm train`, `export` and `save_pretrained` write, without the code."""

_WEIGHTS = re.compile(r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?")
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^()\s]+\.(?:png|svg))\)")
_SECRETS = re.compile(rb"hf_[A-Za-z0-9]{30,}|-----BEGIN (?:[A-Z]+ )*PRIVATE KEY")


def is_weights(path: str) -> bool:
    """Whether `from_pretrained` reads the path as weights or as an index of weights."""
    return _WEIGHTS.fullmatch(path) is not None


def upload_list(folder: Path, include: Sequence[str] = ()) -> tuple[dict[str, Path], list[str]]:
    """The files of a folder that a push uploads besides the code of the model, and what stays behind.

    Uploaded are the files that `hf-ssm train`, `export` and `save_pretrained` write (`PUSHED`), and the pictures on
    the card.

    Args:
        folder: The folder.
        include: Patterns of other files, or names of folders, to upload.

    Returns:
        Path in the repository -> local path; and the names of the other files, with the number of files of a folder.

    Raises:
        ValueError: `include` has a pattern without a file, or names Python code.
    """
    files, _ = scan(folder)
    card = folder / CARD_NAME
    shown = _PICTURE.findall(card.read_text(encoding="utf-8", errors="replace")) if card.is_file() else []
    named = {path.relative_to(folder).as_posix() for pattern in PUSHED for path in folder.glob(pattern)} | {*shown}
    for pattern in include:
        paths = [inner for path in folder.glob(pattern) for inner in (path.rglob("*") if path.is_dir() else [path])]
        names = {path.relative_to(folder).as_posix() for path in paths} & files.keys()
        if not names or any(name.lower().endswith(".py") for name in names):
            what = "contains Python code, which others might run" if names else "matches no file"
            raise ValueError(f"--include {pattern!r} {what} in {str(folder)!r}")
        named |= names
    others = Counter(
        name.partition("/")[0] + ("/" if "/" in name else "")
        for name in files.keys() - named
        if not name.endswith(".py") and name != "_run.lock"
    )
    return (
        {name: path for name, path in files.items() if name in named},
        [f"{name} ({count} files)" if name.endswith("/") else name for name, count in sorted(others.items())],
    )


def check_secrets(files: Mapping[str, Path]) -> None:
    """Raise a `ValueError` that names the files, other than weights, with a token of the Hub or a private key."""
    texts = {name: path for name, path in files.items() if not is_weights(name)}
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
