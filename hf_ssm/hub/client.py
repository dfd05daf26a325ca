"""Hub client helpers: access checks, retries, one-line errors, token redaction.

`huggingface_hub` retries downloads and uploads, but not the commit, the creation of a repository, the validation of a
card or the listing of files; `retry` covers all of them.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any, TypeVar

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers, validate_repo_id
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

__all__ = [
    "check_can_push",
    "check_repo_id",
    "is_transient",
    "make_repo",
    "redact",
    "retry",
    "user_error",
]

T = TypeVar("T")
logger = logging.getLogger(__name__)

ATTEMPTS = 6
"""Number of attempts of a request; the waits between them are 1, 2, 4, 8 and 16 seconds."""
LONGEST_WAIT = 300.0
"""Seconds. A request is not repeated if the Hub demands a longer wait."""

_TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
# By name, because the HTTP library (httpx, httpx2) depends on the version of huggingface_hub.
_TRANSIENT_ERRORS = {"TimeoutException", "NetworkError", "RemoteProtocolError"}
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
_TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{20,}|(?<=Bearer )[^\s'\"]+")


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
    identity = _whoami(api or HfApi(), repo_id)
    organisations = {organisation["name"]: organisation for organisation in identity.get("orgs", [])}
    writable = [identity["name"], *organisations]
    if namespace not in writable:
        raise ValueError(
            f"the login of {' and '.join(writable)} has no write access to {repo_id!r}: use {writable[0]}/..."
        )
    role = (identity.get("auth", {}).get("accessToken") or {}).get("role")
    if "read" in (role, organisations.get(namespace, {}).get("roleInOrg")):
        raise ValueError(f"the login has no write access to {repo_id!r}: use a token with the right to write")


def make_repo(repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
    """Create a repository unless it exists, after `check_can_push`.

    Args:
        repo_id: USER/NAME, or NAME in the namespace of the login.
        private: Visibility of a new repository; by default the namespace decides.
        token: By default the stored login.

    Returns:
        USER/NAME.
    """
    api = HfApi(token=token)
    if "/" not in repo_id:
        repo_id = f"{_whoami(api, repo_id)['name']}/{repo_id}"
    check_can_push(repo_id, api)
    with user_errors(repo_id, token=token):
        return retry(lambda: api.create_repo(repo_id, private=private, exist_ok=True)).repo_id


def retry(action: Callable[[], T], attempts: int = ATTEMPTS, statuses: tuple[int, ...] = ()) -> T:
    """Call `action`, repeating it after transient faults (and HTTP `statuses`) with exponential backoff.

    A longer wait demanded by the Hub (`Retry-After`, rate limit) replaces the backoff; a shorter one, such as
    `Retry-After: 0`, does not. The error of the last call is raised.
    """

    def is_repeatable(error: BaseException) -> bool:
        return (is_transient(error) or _status(error) in statuses) and (_demanded_wait(error) or 0) <= LONGEST_WAIT

    def wait(state: RetryCallState) -> float:
        return max(2.0 ** (state.attempt_number - 1), _demanded_wait(_error_of(state)) or 0.0)

    def log(state: RetryCallState) -> None:
        logger.warning("%s; trying again in %g s", user_error(_error_of(state)), state.upcoming_sleep)

    may_repeat, stop = retry_if_exception(is_repeatable), stop_after_attempt(attempts)
    return Retrying(stop=stop, retry=may_repeat, wait=wait, before_sleep=log, reraise=True)(action)


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: server errors, rate limits, lost connections."""
    error = _root_cause(error)
    if isinstance(error, OfflineModeIsEnabled):
        return False
    if isinstance(error, HfHubHTTPError):
        return _status(error) in _TRANSIENT_STATUS
    # JSONDecodeError: the HTML error page of a gateway where the client expects JSON.
    return isinstance(error, (ConnectionError, TimeoutError, JSONDecodeError)) or any(
        kind.__name__ in _TRANSIENT_ERRORS for kind in type(error).__mro__
    )


@contextmanager
def user_errors(
    repo_id: str = "",
    revision: str | None = None,
    token: str | bool | None = None,
    sentence: Callable[[Exception, str], str] = lambda error, line: line,
) -> Iterator[None]:
    """Translate errors inside the context by `user_error`; `sentence` makes the message from error and translation.

    The original error is chained unless a traceback of it would show a token.
    """
    try:
        yield
    except Exception as error:  # of huggingface_hub, of its HTTP library or of the disk
        translated = user_error(error, repo_id, revision, token)
        chain: list[BaseException] = [error]
        while (link := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(link)
        is_safe = all(redact(str(link), token) == str(link) for link in chain)
        raise type(translated)(sentence(error, str(translated))) from (error if is_safe else None)


def user_error(
    error: BaseException, repo_id: str = "", revision: str | None = None, token: str | bool | None = None
) -> OSError | ValueError:
    """Translate an error of the client or the network into one line with its cause, a fix and without any token.

    Returns:
        A ValueError for what the user has to fix, an OSError for what may succeed another time.
    """
    # The error of a failed upload names the file, its cause the reason.
    file = f"{_one_line(error, token)} " if _is_failed_upload(error) else ""
    error = _root_cause(error)
    status = _status(error)
    message = next((text for kind, text in _MESSAGES.items() if isinstance(error, kind)), None)
    if message is not None:
        return ValueError(file + message.format(repo=repo_id, revision=revision or "main"))
    text = _one_line(error, token)
    if status in _STATUS_MESSAGES:
        fix = _STATUS_MESSAGES[status].format(repo=repo_id)
        return ValueError(f"{file}{fix} (the Hub answered {status}: {text})")
    if isinstance(error, ValueError) and not isinstance(error, (JSONDecodeError, OSError)):
        return ValueError(file + text)
    demanded = _demanded_wait(error)
    if demanded is not None and demanded > LONGEST_WAIT:
        return OSError(f"{file}the Hub demands a wait of {demanded:.0f} seconds ({text})")
    if status is not None:
        return OSError(f"{file}the Hub answered {status}: {text}")
    if is_transient(error):
        return OSError(
            f"{file}the Hub cannot be reached at {constants.ENDPOINT}: {text} (check network and HF_ENDPOINT)"
        )
    return OSError(file + text)


def redact(text: str, token: str | bool | None = None) -> str:
    """Replace `token`, the stored token and everything that looks like a Hub token by `[token]`."""
    for secret in (token, get_token()):
        if isinstance(secret, str) and secret.strip():
            text = text.replace(secret.strip(), "[token]")
    return _TOKEN.sub("[token]", text)


def _whoami(api: HfApi, repo_id: str) -> dict[str, Any]:
    """The login; the error is that of a push to `repo_id`."""

    def failed(error: Exception, line: str) -> str:
        repeat = "; repeat the push when the Hub can be reached" if is_transient(error) else ""
        return f"nothing was pushed to {repo_id!r}: {line}{repeat}"

    with user_errors(token=api.token, sentence=failed):
        return retry(api.whoami, attempts=3)


def _error_of(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None
    return error


def _root_cause(error: BaseException) -> BaseException:
    """The reason of a failed download or upload, which the error of the client itself does not tell."""
    while (isinstance(error, LocalEntryNotFoundError) or _is_failed_upload(error)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_failed_upload(error: BaseException) -> bool:
    # The client raises a RuntimeError without further type from the error of the request.
    return type(error) is RuntimeError and error.__cause__ is not None


def _one_line(error: BaseException, token: str | bool | None) -> str:
    return " ".join(redact(str(error), token).split()) or type(error).__name__


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _demanded_wait(error: BaseException) -> float | None:
    """Seconds to wait according to the headers of an answer: `Retry-After`, or an exhausted rate limit."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    seconds = str(headers.get("Retry-After", "")).strip()
    if seconds.isdecimal():
        return float(seconds)
    limits = parse_ratelimit_headers(headers) if headers else None
    return float(limits.reset_in_seconds) if limits is not None and limits.remaining == 0 else None
