"""Pushing a model to the Hub: proved first, then uploaded as one commit that deletes stale weights and code.

The Python code in a folder may come from anybody and is neither run nor uploaded: a push contains the code that the
installed package writes.
"""

import logging
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from huggingface_hub import CommitInfo, HfApi, ModelCard

from hf_ssm.checkpoint import write_code
from hf_ssm.hub import reload
from hf_ssm.hub.card import CARD_NAME, addressed
from hf_ssm.hub.client import check_can_push, check_repo_id, user_errors
from hf_ssm.hub.committing import check_secrets, commit, folder_files, is_weights
from hf_ssm.hub.exporting import auto_class_of, export
from hf_ssm.hub.sources import suggestion
from hf_ssm.hub.verifying import Problem, check_folder, family_of, named_class
from hf_ssm.models.registry import Family
from hf_ssm.utils.checks import check_path

__all__ = ["check_can_push", "check_model", "check_repo_id", "push", "push_files", "push_folder"]

logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")


def push(
    model: Any,
    tokenizer: Any,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Add model",
    token: str | None = None,
    license: str | None = None,
) -> str:
    """Export a model, prove the export in a process without hf_ssm, and push it as one commit.

    Nothing is created before the proof. After an error the repository is at its last commit and the same call can be
    repeated; it changes nothing if everything has arrived.

    Args:
        model: A model of this package.
        tokenizer: Its tokenizer; `None` for a model of continuous signals.
        repo_id: USER/NAME; created if absent. A card in the repository is kept.
        private: Visibility of a new repository; by default the namespace decides. An existing one keeps its own.
        revision: Branch; created from main if absent. By default main.
        message: Commit message.
        token: By default the stored login.
        license: Licence of the weights for the card, an identifier of the Hub such as "apache-2.0".

    Returns:
        The URL of the repository.

    Raises:
        ValueError: Malformed name or branch, missing login or right, or a model that cannot be exported.
        OSError: The proof or the push fails; the message says how to repeat.
    """
    _check_branch(revision)
    check_can_push(repo_id, HfApi(token=token))
    with tempfile.TemporaryDirectory() as scratch:
        folder = export(model, tokenizer, Path(scratch, repo_id.partition("/")[2]), license=license)
        done = push_files(
            _addressed_files(folder, repo_id),
            repo_id,
            keep={CARD_NAME},
            private=private,
            revision=revision,
            message=message,
            token=token,
            hint="call `push` again",
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
    """Push the folder of a model (of `export`, `save_pretrained` or a run) as one commit, proved as by `push`.

    The code in the commit is written anew by the installed package, for a folder without code, too. Checkpoints and
    other files of a run (`hf_ssm.hub.committing.IGNORED`) are not uploaded. Neither are files other than weights,
    settings, texts, tables and pictures, such as pickles; a warning names them.

    Args:
        folder: With `config.json` and weights; it is not changed.
        repo_id: USER/NAME; created if absent.
        private, revision, message, token: As for `push`.

    Returns:
        The URL of the repository.

    Raises:
        ValueError: Malformed name or branch, missing login or right; an incomplete folder, a model of another library,
            foreign code, hidden files, links out of the folder, or access tokens in files.
        OSError: The proof or the push fails; the message says how to repeat.
    """
    check_path("folder", folder)
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(folder)!r}{suggestion(folder)}")
    check_repo_id(repo_id)
    _check_branch(revision)
    family, outdated = check_model(folder)
    if outdated:
        logger.warning("The push replaces the code in %r: %s", str(folder), "; ".join(map(str, outdated)))
    # The code of the folder is left out without a warning: it is replaced.
    listed = folder_files(folder, also=["*.py"])
    files = {name: path for name, path in listed.items() if not name.endswith(".py")}
    _check_contents(files)
    check_can_push(repo_id, HfApi(token=token))
    options = [*(("--revision", revision) if revision else ()), *(("--private",) if private else ())]
    command = shlex.join(["hf-ssm", "push", str(folder), repo_id, *options])
    with tempfile.TemporaryDirectory() as scratch:
        staged = Path(scratch, "model")
        _stage(files, staged)
        _prove(staged, family)
        done = push_files(
            _addressed_files(staged, repo_id),
            repo_id,
            private=private,
            revision=revision,
            message=message,
            token=token,
            hint=f"{str(folder)!r} is complete: repeat with `{command}`",
        )
    return str(done.repo_url)


def push_files(
    files: Mapping[str, Path],
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Add model",
    token: str | None = None,
    keep: Set[str] = frozenset(),
    hint: str = "repeat the push",
) -> CommitInfo:
    """Create repository and branch if absent, and upload files as one commit.

    The same commit deletes weights in another sharding or format and code of an earlier push.

    Args:
        files: Path in the repository -> local path.
        repo_id, private, revision, message, token: As for `push`.
        keep: Names among `files` that are not uploaded if the repository has them.
        hint: How to repeat the push; part of the error message.

    Returns:
        The commit; the head of the branch if nothing has changed.

    Raises:
        ValueError: A file contains an access token, the card has invalid metadata, or a right is missing.
        OSError: The push fails.
    """
    api = HfApi(token=token)
    _check_contents(files)
    branch = revision or "main"
    with user_errors(repo_id, revision, f"the push to {repo_id!r} failed: ", f"; {hint}"):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if branch != "main" and not branch.startswith("refs/pr/"):
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        return commit(
            api,
            repo_id,
            files,
            revision=branch,
            message=message,
            keep=keep,
        )


def _check_branch(revision: str | None) -> None:
    if revision is not None and (not revision.strip() or _COMMIT.fullmatch(revision)):
        raise ValueError(f"revision must be the name of a branch, because a push adds a commit to it, got {revision!r}")


def check_model(folder: Path) -> tuple[Family, list[Problem]]:
    """The family of the model in a folder, and what is outdated in its code.

    Raises:
        ValueError: The model is incomplete, of another library, or has foreign code.
    """
    if not (folder / "config.json").is_file() or not any(is_weights(path.name) for path in folder.glob("*")):
        raise ValueError(f"{str(folder)!r} lacks config.json or weights: push the output folder of a finished run")
    problems = check_folder(folder)
    refused = [problem for problem in problems if not problem.is_own_code]
    if refused:
        listed = "; ".join(map(str, refused))
        raise ValueError(f"{str(folder)!r} is damaged or contains foreign code: {listed}")
    family = family_of(folder)
    if family is None:
        raise ValueError(f"{str(folder)!r} is not a model of hf_ssm: push it with `hf upload`")
    return family, problems


def _stage(files: Mapping[str, Path], folder: Path) -> None:
    """Copy files into a folder; weights, which are not written to, get hard links where possible."""
    for name, source in files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if is_weights(name):
            try:
                os.link(source.resolve(), target)
                continue
            except OSError:
                pass  # another file system, or one without hard links
        shutil.copyfile(source, target)


def _prove(staged: Path, family: Family) -> None:
    """Write the code of the model into a folder without code, and prove that others can load it."""
    config: Any = family.config_class.from_pretrained(staged)
    write_code(config, staged)
    config.save_pretrained(staged)
    model_class = named_class(family, config)
    if model_class is None:
        names = config.architectures
        raise ValueError(f"config.json has the `architectures` {names}: expected one model class of hf_ssm")
    model = model_class.from_pretrained(staged)
    reload.prove_export(staged, model, auto_class_of(model))


def _addressed_files(folder: Path, repo_id: str) -> dict[str, Path]:
    """The files of a new folder with its code; the code on its card then loads the repository."""
    path = folder / CARD_NAME
    if path.is_file():
        # Bytes, because text mode changes line ends.
        path.write_bytes(addressed(path.read_bytes().decode("utf-8"), repo_id).encode("utf-8"))
    return folder_files(folder, also=["*.py"])


def _check_contents(files: Mapping[str, Path]) -> None:
    """Raise `ValueError` for secrets, and for metadata of the card that the Hub rejects."""
    check_secrets(files)
    if CARD_NAME in files:
        try:
            ModelCard(files[CARD_NAME].read_text(encoding="utf-8"), ignore_metadata_errors=False)
        except Exception as error:  # of the YAML library, or about the metadata
            raise ValueError(f"{CARD_NAME} has invalid metadata: {error}") from error
