"""Talking to the Hub: patience with faults that pass, one line for those that do not, and no token in any text.

The client of huggingface_hub repeats some of its requests and not others (it does not repeat the commit, the creation
of a repository, the check of a card, and the listing of files); `patiently` is for all of them.
"""

import logging
import re
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from json import JSONDecodeError
from typing import Any, TypeVar

from huggingface_hub import HfApi, get_token
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

T = TypeVar("T")
logger = logging.getLogger(__name__)

WAITS: tuple[float, ...] = (1, 2, 4, 8, 16)
"""Seconds between two attempts, where the Hub does not say how long to wait."""
LONGEST_WAIT = 300.0
"""Seconds; the Hub may ask for a longer wait, which is then left to the user."""

_PASSING_STATUS = (408, 429, 500, 502, 503, 504)
# Of the HTTP library, which is another one in other versions of huggingface_hub.
_PASSING_ERRORS = {"TimeoutException", "NetworkError", "RemoteProtocolError"}
_TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{20,}|(?<=Bearer )[^\s'\"]+")


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
        raise ValueError(f"a Hub repository is named USER/NAME, got {repo_id!r}: {error}") from error
    return repo_id


def check_can_push(repo_id: str, api: HfApi | None = None) -> None:
    """Ask the Hub whether the login may write to the namespace of `repo_id`; creates nothing.

    Meant to be called before a training run, so that hours of work do not end at a missing login.

    Args:
        repo_id: USER/NAME.
        api: the client; by default one with the stored login.

    Raises:
        ValueError: for a malformed name, no login, one the Hub refuses, or one without the right to write there.
        OSError: if the Hub cannot be reached.
    """
    namespace = check_repo_id(repo_id).partition("/")[0]
    identity = login(api or HfApi())
    organisations = {organisation["name"]: organisation for organisation in identity.get("orgs", [])}
    own = [identity["name"], *organisations]
    if namespace not in own:
        raise ValueError(f"the login is for {' and '.join(own)}, which may not write to {repo_id!r}: use {own[0]}/...")
    role = (identity.get("auth", {}).get("accessToken") or {}).get("role")
    if "read" in (role, organisations.get(namespace, {}).get("roleInOrg")):
        raise ValueError(f"the login may read but not write, so not {repo_id!r}: use a token with the right to write")


def login(api: HfApi) -> dict[str, Any]:
    """What the Hub says of the owner of the token.

    Raises:
        ValueError: if there is no token, or the Hub refuses it.
        OSError: if the Hub cannot be reached.
    """
    try:
        return patiently(api.whoami, attempts=3)
    except Exception as error:
        raise as_one_line(error, token=api.token) from without_token(error, api.token)


def patiently(action: Callable[[], T], attempts: int | None = None) -> T:
    """The result of `action`, done again after a fault that passes: a busy Hub, a lost connection.

    Args:
        action: a request that may be made twice.
        attempts: at most so many, 1 to `len(WAITS) + 1`; by default that.

    Raises:
        Exception: what `action` raised last.
    """
    waits = WAITS if attempts is None else WAITS[: attempts - 1]
    for wait in waits:
        try:
            return action()
        except Exception as error:
            if not is_passing(error):
                raise
            pause(error, wait)
    return action()


def is_passing(error: BaseException) -> bool:
    """Whether the same request may go well a little later."""
    error = _cause_of(error)
    if isinstance(error, OfflineModeIsEnabled):
        return False
    if isinstance(error, HfHubHTTPError):
        return _status(error) in _PASSING_STATUS
    # The client reads some answers as JSON before it looks at their status: a gateway's error page is none. The errors
    # of hf_xet are Python's own.
    return isinstance(error, (ConnectionError, TimeoutError, JSONDecodeError)) or any(
        kind.__name__ in _PASSING_ERRORS for kind in type(error).__mro__
    )


def pause(error: BaseException, wait: float) -> None:
    """Sleep for as long as the Hub asked for with its last answer, or else for `wait` seconds.

    Raises:
        OSError: if it asks for more than `LONGEST_WAIT`.
    """
    asked = _asked_to_wait(error)
    if asked is not None and asked > LONGEST_WAIT:
        raise OSError(f"the Hub asks to come back in {asked:.0f} seconds") from error
    seconds = wait if asked is None else asked
    logger.warning("%s; trying again in %g s", as_one_line(error), seconds)
    time.sleep(seconds)


def as_one_line(
    error: BaseException, repo_id: str = "", revision: str | None = None, token: str | bool | None = None
) -> OSError | ValueError:
    """What went wrong and what mends it, without any token.

    Args:
        error: of the client or of the network.
        repo_id: USER/NAME of the repository that was asked for; "" if it was none.
        revision: that was asked for.
        token: that was used, if not the stored one.

    Returns:
        ValueError for what the user has to mend, OSError for what may go well another time.
    """
    error = _cause_of(error)
    status = _status(error)
    if isinstance(error, LocalTokenNotFoundError):
        return ValueError("the Hub needs a login for this: run `hf auth login`, or set HF_TOKEN")
    if isinstance(error, OfflineModeIsEnabled):
        return ValueError("the Hub cannot be asked in offline mode: unset HF_HUB_OFFLINE")
    if isinstance(error, GatedRepoError):
        return ValueError(f"{repo_id!r} is gated: ask for access on its page on the Hub, then run `hf auth login`")
    if isinstance(error, RevisionNotFoundError):
        return ValueError(f"{repo_id!r} has no revision {revision or 'main'!r}")
    if isinstance(error, RepositoryNotFoundError):
        return ValueError(f"the Hub has no repository {repo_id!r} that this login may see: check the name, or log in")
    if status == 401:
        return ValueError("the Hub refuses the token: run `hf auth login` again, or set HF_TOKEN")
    if status == 403:
        return ValueError(f"the login may not do this with {repo_id!r}: use a token with the right to write")
    text = " ".join(scrub(str(error), token).split()) or type(error).__name__
    if isinstance(error, ValueError) and not isinstance(error, (JSONDecodeError, OSError)):
        return ValueError(text)
    if status is not None:
        return OSError(f"the Hub answered {status}: {text}")
    return OSError(f"the Hub cannot be reached: {text}" if is_passing(error) else text)


def without_token(error: BaseException, token: str | bool | None = None) -> BaseException | None:
    """`error` as the cause of another one, or None where its text, which a traceback would show, has a token in it."""
    seen: BaseException | None = error
    while seen is not None:
        if scrub(str(seen), token) != str(seen):
            return None
        seen = seen.__cause__ or seen.__context__
    return error


def scrub(text: str, token: str | bool | None = None) -> str:
    """`text` without the token, the stored token, and whatever else looks like one."""
    for secret in (token, get_token()):
        if isinstance(secret, str) and secret.strip():
            text = text.replace(secret.strip(), "[token]")
    return _TOKEN.sub("[token]", text)


def _cause_of(error: BaseException) -> BaseException:
    """What is behind an error of a download, which itself only says that there is no file."""
    while isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else response.status_code


def _asked_to_wait(error: BaseException) -> float | None:
    """Seconds that the Hub asked for: `Retry-After` (a number or a date), or its own header of spent requests."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = str(headers.get("Retry-After", "")).strip()
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        limits = parse_ratelimit_headers(headers) if headers else None
        return float(limits.reset_in_seconds) if limits is not None and limits.remaining == 0 else None
