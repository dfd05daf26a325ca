"""Sending a model to the Hub: proved first, then as one commit that leaves nothing stale behind."""

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Set
from os import PathLike
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, ModelCard, get_token
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoTokenizer

from hf_ssm.hub import client, reload
from hf_ssm.hub.card import CARD_NAME, addressed, write_default_card
from hf_ssm.hub.client import as_one_line, check_can_push, check_repo_id, patiently, without_token
from hf_ssm.hub.committing import LocalFile, commit, is_weights
from hf_ssm.hub.exporting import auto_class_of, export, write_code
from hf_ssm.hub.verifying import check_folder
from hf_ssm.models.registry import FAMILIES

__all__ = [
    "IGNORED",
    "check_can_push",
    "check_repo_id",
    "files_of",
    "is_weights",
    "make_repo",
    "push",
    "push_files",
    "push_folder",
    "push_saved",
]

IGNORED = (
    *("checkpoint-*", "checkpoint-*/**", "last-checkpoint/**", "_*", "*.tmp"),
    # The arguments of a run may hold a token.
    *("training_args.bin", "**/training_args.bin"),
    *(".git/**", "**/.git/**", ".cache/**", "**/.cache/**"),
)
"""What belongs to the run and not to the model; never uploaded."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TEXT_BYTES = 10 * 2**20


def push(
    model: Any,
    tokenizer: Any,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Add model",
    token: str | None = None,
) -> str:
    """Export a model, prove the export in a process without hf_ssm, and push it as one commit.

    Nothing is created before the proof. Whatever goes wrong, the repository keeps its last commit, and the same call
    may be repeated; it changes nothing where all has arrived.

    Args:
        model: a model of this package.
        tokenizer: its tokenizer; None where it reads numbers.
        repo_id: USER/NAME; made if it is not there.
        private: of a new repository; by default the namespace decides. An existing one keeps its state.
        revision: branch; made from main if it is not there. By default main.
        message: of the commit.
        token: by default the stored login.

    Returns:
        The address of the repository.

    Raises:
        ValueError: for a malformed name or branch, a missing login or right; or if the export fails.
        OSError: if the proof fails, or the Hub cannot be reached or gives up; the message says how to repeat.
    """
    _check_branch(revision)
    check_can_push(repo_id, HfApi(token=token))
    with tempfile.TemporaryDirectory() as scratch:
        folder = export(model, tokenizer, Path(scratch, "model"))
        # The code on the card loads the repository.
        (folder / CARD_NAME).unlink()
        write_default_card(folder, model, tokenizer, name=repo_id)
        done = push_files(
            files_of(folder),
            repo_id,
            # The card that was written for this export says less than one that somebody has written.
            kept={CARD_NAME},
            private=private,
            revision=revision,
            message=message,
            token=token,
            mend="call `push` again",
        )
    return str(done.repo_url)


def push_folder(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Add model",
    token: str | None = None,
) -> str:
    """Push a finished folder (of `export`, `save_pretrained` or a run) as one commit, as `push` does.

    The model is proved as `push` does it. Where its code is not in the folder, as older versions left it, it is put
    there. Checkpoints and the run's own leftovers (`IGNORED`) stay behind.

    Args:
        folder: with `config.json` and weights.
        repo_id: USER/NAME; made if it is not there.
        private: of a new repository; by default the namespace decides. An existing one keeps its state.
        revision: branch; made from main if it is not there. By default main.
        message: of the commit.
        token: by default the stored login.

    Returns:
        The address of the repository.

    Raises:
        ValueError: for a malformed name or branch, a folder that is not whole, a missing login or right.
        OSError: if the proof fails; if the Hub cannot be reached or gives up; the message says how to repeat.
    """
    folder = Path(folder)
    check_repo_id(repo_id)
    _check_branch(revision)
    if not (folder / "config.json").is_file() or not any(is_weights(path.name) for path in folder.glob("*")):
        raise ValueError(f"{str(folder)!r} holds no config.json with weights: push the output folder of a finished run")
    problems = check_folder(folder)
    if problems:
        raise ValueError(f"{str(folder)!r} is not whole: {'; '.join(map(str, problems))}")
    check_can_push(repo_id, HfApi(token=token))
    _prove(folder)
    options = "".join([f" --revision {revision}" if revision else "", " --private" if private else ""])
    files = files_of(folder)
    with tempfile.TemporaryDirectory() as scratch:
        if CARD_NAME in files:
            # The code on the card loads the repository. Bytes, as text would change the ends of the lines.
            card = addressed(files[CARD_NAME].read_bytes().decode("utf-8"), repo_id)
            files[CARD_NAME] = Path(scratch, CARD_NAME)
            files[CARD_NAME].write_bytes(card.encode("utf-8"))
        done = push_files(
            files,
            repo_id,
            private=private,
            revision=revision,
            message=message,
            token=token,
            mend=f"{str(folder)!r} is complete: repeat with `hf-ssm push {folder} {repo_id}{options}`",
        )
    return str(done.repo_url)


def push_files(
    files: Mapping[str, Path],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Add model",
    description: str = "",
    token: str | bool | None = None,
    kept: Set[str] = frozenset(),
    owned: Callable[[str], bool] = lambda path: False,
    mend: str = "repeat the push",
) -> CommitInfo:
    """Make the repository and branch if they are not there, and put all files into them as one commit.

    The same commit deletes what would be read in the place of the new files or beside them: weights in another
    sharding or format, and code that an earlier push of ours has left.

    Args:
        files: path in the repository -> file.
        repo_id: USER/NAME.
        private: of a new repository.
        revision: branch.
        message: of the commit.
        description: of the commit, below the message.
        token: by default the stored login.
        kept: those of `files` that stay as they are where the repository has them.
        owned: which other paths of the repository are deleted, too, where they are not among `files`.
        mend: how to repeat; a part of the error.

    Returns:
        The commit; the last one of the branch where there was nothing to do.

    Raises:
        ValueError: for a file with the token in it, a card with bad metadata, a missing right.
        OSError: if the Hub cannot be reached or gives up.
    """
    api = HfApi(token=token)
    local = {name: LocalFile(path) for name, path in sorted(files.items())}
    _check_contents(local, token)
    try:
        patiently(lambda: api.create_repo(repo_id, private=private, exist_ok=True))
        if revision not in (None, "main") and not str(revision).startswith("refs/pr/"):
            patiently(lambda: api.create_branch(repo_id, branch=str(revision), exist_ok=True))
        return commit(api, repo_id, local, revision or "main", (message, description), kept, owned)
    except Exception as error:  # whatever it is, the work of the run must not seem lost
        line = as_one_line(error, repo_id, revision, token)
        # A commit whose answer was lost, too, may have been made.
        is_lost = client.is_passing(error) and getattr(error, "response", None) is None
        state = "has all of it or nothing" if is_lost else "is as it was before"
        text = f"the push to {repo_id!r} failed, which {state} ({line}); {mend}"
        raise type(line)(text) from without_token(error, token)


def push_saved(
    folder: str | PathLike[str],
    repo_id: str,
    before: Mapping[str, float],
    *,
    commit_message: str | None = None,
    commit_description: str | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
) -> CommitInfo:
    """Push what a model has just saved: the way of `model.push_to_hub` and `save_pretrained(push_to_hub=True)`.

    Args:
        folder: that it was saved to.
        repo_id: USER/NAME.
        before: name in the folder -> time of its last change, for what was there before.
        commit_message: by default "Upload model".
        commit_description: of the commit.
        token: by default the stored login.
        revision: branch; made from main if it is not there. By default main.

    Returns:
        The commit.

    Raises:
        ValueError: for a file with the token in it, a card with bad metadata, a missing right.
        OSError: if the Hub cannot be reached or gives up.
    """
    files = {
        name: path
        for name, path in files_of(Path(folder)).items()
        if (top := name.partition("/")[0]) not in before or Path(folder, top).stat().st_mtime > before[top]
    }
    return push_files(
        files,
        repo_id,
        revision=revision,
        message=commit_message or "Upload model",
        description=commit_description or "",
        token=token,
    )


def make_repo(repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Make a repository if it is not there, after a look at the login.

    Args:
        repo_id: USER/NAME, or NAME for one of the owner of the login.
        private: of a new repository; by default the namespace decides.
        token: by default the stored login.

    Returns:
        USER/NAME.

    Raises:
        ValueError: for a malformed name, a missing login or right.
        OSError: if the Hub cannot be reached or gives up.
    """
    api = HfApi(token=token)
    if "/" not in repo_id:
        repo_id = f"{client.login(api)['name']}/{repo_id}"
    check_can_push(repo_id, api)
    try:
        return patiently(lambda: api.create_repo(repo_id, private=private, exist_ok=True)).repo_id
    except Exception as error:  # of the client, of the HTTP library
        raise as_one_line(error, repo_id, token=token) from without_token(error, token)


def _prove(folder: Path) -> None:
    """Prove a folder with a model of ours; one of another library is its maker's business.

    Raises:
        ValueError: if the model cannot be loaded.
        OSError: if the proof fails.
    """
    stored = json.loads((folder / "config.json").read_bytes())
    family = next((f for f in FAMILIES.values() if f.config_class.model_type == stored.get("model_type")), None)
    if family is None:
        return
    config: Any = family.config_class.from_pretrained(folder)
    if not stored.get("auto_map"):
        write_code(config, folder)
    names = config.architectures or []
    model_class: Any = getattr(family.modeling, names[0], None) if names else None
    if model_class is None:
        raise ValueError(f"the config.json of {str(folder)!r} has the architectures {names}: none is a model of hf_ssm")
    model = model_class.from_pretrained(folder)
    has_tokenizer = (folder / "tokenizer_config.json").is_file()
    tokenizer = AutoTokenizer.from_pretrained(folder) if has_tokenizer else None
    reload.prove_export(folder, model, tokenizer, auto_class_of(model))


def files_of(folder: Path) -> dict[str, Path]:
    """What a push takes from a folder: path in the repository -> file."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    return {name: folder / name for name in filter_repo_objects(names, ignore_patterns=list(IGNORED))}


def _check_branch(revision: str | None) -> None:
    if revision is not None and (not revision.strip() or _COMMIT.fullmatch(revision)):
        raise ValueError(f"revision must be the name of a branch, as a push adds a commit to one, got {revision!r}")


def _check_contents(files: Mapping[str, LocalFile], token: str | bool | None) -> None:
    """Refuse what the Hub or its readers would, before a repository is made for it."""
    secrets = [secret.encode() for secret in (token, get_token()) if isinstance(secret, str) and secret]
    for name, file in files.items():
        if is_weights(name) or file.path.stat().st_size > _TEXT_BYTES:
            continue
        if any(secret in file.path.read_bytes() for secret in secrets):
            raise ValueError(f"{name} has the token of the login in it: take it out, and make a new token")
    if CARD_NAME in files:
        try:
            ModelCard(files[CARD_NAME].path.read_text(encoding="utf-8"), ignore_metadata_errors=False)
        except Exception as error:  # of the YAML library, or about what it read
            raise ValueError(f"README.md has metadata that cannot be read: {error}") from error
