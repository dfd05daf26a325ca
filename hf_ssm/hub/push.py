"""Sending a finished output folder to the Hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import validate_repo_id

IGNORED = ("checkpoint-*", "checkpoint-*/**", "training_args.bin", "*.tmp", ".cache/**")
"""What belongs to the run and not to the model; never uploaded."""


def check_repo_id(repo_id: str) -> str:
    """`repo_id` if it has the form USER/NAME that the Hub allows.

    Raises:
        ValueError: otherwise.
    """
    user, slash, name = repo_id.partition("/")
    try:
        if not (user and slash and name):
            raise HFValidationError("it needs a user or organisation and a name")
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"--push-to-hub takes USER/NAME, got {repo_id!r}: {error}") from error
    return repo_id


def check_can_push(repo_id: str, api: HfApi | None = None) -> None:
    """Ask the Hub whether the stored login may write to the namespace of `repo_id`; creates nothing.

    Meant to be called before a training run, so that hours of work do not end at a missing login.

    Raises:
        ValueError: for a malformed name, no login, one the Hub refuses, or one of another namespace.
        OSError: if the Hub cannot be reached.
    """
    namespace = check_repo_id(repo_id).partition("/")[0]
    try:
        identity = (api or HfApi()).whoami()
    except LocalTokenNotFoundError as error:
        raise ValueError("--push-to-hub needs a login: run `hf auth login`, or set HF_TOKEN") from error
    except OfflineModeIsEnabled as error:
        raise ValueError("--push-to-hub cannot work offline: unset HF_HUB_OFFLINE") from error
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in (401, 403):
            raise ValueError("the Hub refuses the stored token: run `hf auth login` again") from error
        raise OSError(f"the Hub does not answer: {error}") from error
    except Exception as error:  # connection errors are the HTTP library's own, which has changed before
        raise OSError(f"the Hub cannot be reached: {error}") from error
    own = [identity["name"], *(organisation["name"] for organisation in identity.get("orgs", []))]
    if namespace not in own:
        raise ValueError(f"the login is for {' and '.join(own)}, which may not write to {repo_id!r}: use {own[0]}/...")


def push_folder(
    folder: str | Path,
    repo_id: str,
    private: bool = False,
    message: str = "Add model",
    api: HfApi | None = None,
) -> str:
    """Upload a finished output folder as one commit; the repository is made if it is not there.

    Checkpoints and the run's own leftovers (`IGNORED`) stay behind.

    Args:
        folder: the output folder of a run.
        repo_id: USER/NAME.
        private: make a new repository private; otherwise the default of the namespace decides. An existing
            one keeps its state.
        message: of the commit.
        api: the client; by default one with the stored login.

    Returns:
        The address of the repository.

    Raises:
        ValueError: for a malformed name or a folder without `config.json` or weights.
        OSError: if the Hub refuses or cannot be reached; the message says how to repeat the push.
    """
    folder = Path(folder)
    check_repo_id(repo_id)
    for needed in ("config.json", "model.safetensors*"):
        if not any(folder.glob(needed)):
            raise ValueError(f"{str(folder)!r} holds no {needed}: push the output folder of a finished run")
    api = api or HfApi()
    try:
        url = api.create_repo(repo_id, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message, ignore_patterns=list(IGNORED))
    except Exception as error:  # see check_can_push; whatever it is, the work of the run must not seem lost
        raise OSError(
            f"the push to {repo_id!r} failed ({error}), but {str(folder)!r} is complete: "
            f"repeat with `hf upload {repo_id} {folder} . --exclude 'checkpoint-*/*'`"
        ) from error
    return str(url)
