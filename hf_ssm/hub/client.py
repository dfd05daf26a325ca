"""Hub client helpers: checks of names and access, and one-line errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

__all__ = ["check_can_push", "check_repo_id", "user_error", "user_errors"]

_MESSAGES: dict[type[Exception], str] = {
    LocalTokenNotFoundError: "the Hub needs a login for this: run `hf auth login`, or set HF_TOKEN",
    OfflineModeIsEnabled: "the Hub is not accessible in offline mode: unset HF_HUB_OFFLINE",
    GatedRepoError: "{repo!r} is gated: request access on its page on the Hub, then run `hf auth login`",
    RevisionNotFoundError: "{repo!r} has no revision {revision!r}",
    RepositoryNotFoundError: "the Hub has no repository {repo!r} visible to this login: check the name, or log in",
}
_STATUS_MESSAGES = {
    401: "the Hub rejects the token: run `hf auth login` again, or set HF_TOKEN",
    403: "the login has no write access to {repo!r}: use a token with the right to write",
}


def check_repo_id(repo_id: str) -> str:
    """Return `repo_id` if it is a valid USER/NAME; a `ValueError` otherwise."""
    try:
        if not isinstance(repo_id, str):
            raise HFValidationError("the name must be a string")
        validate_repo_id(repo_id)
        if "/" not in repo_id:
            raise HFValidationError("the user or organisation is missing")
    except HFValidationError as error:
        raise ValueError(f"a Hub repository is named USER/NAME, got {repo_id!r}: {error}") from error
    return repo_id


def check_can_push(repo_id: str, api: HfApi | None = None) -> None:
    """Check that the login has write access to the namespace of `repo_id`; nothing is created.

    Args:
        repo_id: USER/NAME.
        api: By default a client with the stored login.

    Raises:
        ValueError: The name is malformed, there is no valid login, or it has no write access to the namespace.
        OSError: The Hub cannot be reached.
    """
    namespace = check_repo_id(repo_id).partition("/")[0]
    with user_errors(before=f"nothing was pushed to {repo_id!r}: "):
        identity = (api or HfApi()).whoami()
    organisations = {organisation["name"]: organisation for organisation in identity.get("orgs", [])}
    writable = [identity["name"], *organisations]
    if namespace not in writable:
        raise ValueError(
            f"the login of {' and '.join(writable)} has no write access to {repo_id!r}: use {writable[0]}/..."
        )
    role = (identity.get("auth", {}).get("accessToken") or {}).get("role")
    if "read" in (role, organisations.get(namespace, {}).get("roleInOrg")):
        raise ValueError(f"the login has no write access to {repo_id!r}: use a token with the right to write")


@contextmanager
def user_errors(repo_id: str = "", revision: str | None = None, before: str = "", after: str = "") -> Iterator[None]:
    """Translate errors inside the context by `user_error`, with text before and after the message."""
    try:
        yield
    except Exception as error:  # of huggingface_hub, of its HTTP library or of the disk
        translated = user_error(error, repo_id, revision)
        raise type(translated)(f"{before}{translated}{after}") from error


def user_error(error: BaseException, repo_id: str = "", revision: str | None = None) -> OSError | ValueError:
    """Translate an error of the client or the network into one line with its cause and a fix.

    Returns:
        A ValueError for what the user has to fix, an OSError for what may succeed another time.
    """
    # A failed download or upload has its reason as the cause.
    while isinstance(error, (LocalEntryNotFoundError, RuntimeError)) and error.__cause__ is not None:
        error = error.__cause__
    for kind, message in _MESSAGES.items():
        if isinstance(error, kind):
            return ValueError(message.format(repo=repo_id, revision=revision or "main"))
    text = " ".join(str(error).split()) or type(error).__name__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in _STATUS_MESSAGES:
        return ValueError(f"{_STATUS_MESSAGES[status].format(repo=repo_id)} (the Hub answered {status}: {text})")
    if status is not None:
        return OSError(f"the Hub answered {status}: {text}")
    # By name, because the HTTP library (httpx, httpx2) depends on the version of huggingface_hub.
    if isinstance(error, ConnectionError) or any(kind.__name__ == "TransportError" for kind in type(error).__mro__):
        return OSError(f"the Hub cannot be reached at {constants.ENDPOINT}: {text} (check network and HF_ENDPOINT)")
    return ValueError(text) if isinstance(error, ValueError) else OSError(text)
