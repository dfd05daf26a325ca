"""A local Hub server for `huggingface_hub`, `transformers` and the `hf` command.

`Hub(folder)` listens on a port of 127.0.0.1. State is in
`loopback_store`, routes are in `loopback_api` and `loopback_files`, HTTP and faults in `loopback_http`; this file has
the interface for tests and the access rights. Standard library only, without xet.
"""

import itertools
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

# These two are imported for the routes they register.
import loopback_api  # noqa: F401
import loopback_files  # noqa: F401
from loopback_http import NO_FAULT, ROUTES, Answer, Fault, HubError, Request, Server, json_answer
from loopback_store import GIT_ATTRIBUTES, Blob, Repo, checked_path, is_lfs


def is_client_setting(name: str) -> bool:
    """Whether an environment variable configures the client: endpoint, token, proxy, cache."""
    ours = name.startswith("HF_SSM")
    return not ours and (name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) or name.lower().endswith("_proxy"))


class Hub:
    """The server, and its interface for tests.

    Attributes:
        endpoint: Address of the Hub, for `HF_ENDPOINT`.
        token: The token of user "ada".
        users: Token -> user; "ada" and "ben" have one, more can be added.
        read_only: Tokens among these that may not write.
        orgs: Organisation -> its members, who may all write there.
        requests: (method, path, status) of all requests.
        waits: Seconds that `huggingface_hub` in this process would have waited between attempts (see `conftest.hub`).
        errors: Internal errors of the server; the fixture fails a test with any.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users = {f"hf_{name}{secrets.token_hex(16)}": name for name in ("ada", "ben")}
        self.token = next(iter(self.users))
        self.read_only: set[str] = set()
        self.orgs: dict[str, set[str]] = {}
        self.repos: dict[tuple[str, str], Repo] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, int]] = []
        self.waits: list[float] = []
        self.errors: list[Exception] = []
        self._homes = itertools.count()
        self._faults: list[Fault] = []
        self._lock = threading.RLock()
        self._server = Server(self)
        self.endpoint = self._server.url

    def close(self) -> None:
        self._server.close()

    def create(
        self,
        repo_id: str,
        files: Mapping[str, bytes | str] | None = None,
        *,
        private: bool = False,
        gated: str | bool = False,
        type: str = "model",
        sdk: str | None = None,
    ) -> Repo:
        """Create a repository with a first commit of `.gitattributes` and a second one of `files`."""
        repo = self.repos[type, repo_id] = Repo(repo_id, type, private, gated, sdk)
        owner = repo_id.split("/")[0]
        start = {".gitattributes": Blob(GIT_ATTRIBUTES.encode())}
        repo.write("main", start, "initial commit", "", owner)
        if files:
            contents = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
            blobs = {
                path: Blob(content, is_lfs(path, len(content), content[:512], GIT_ATTRIBUTES))
                for path, content in contents.items()
            }
            self.objects.update({blob.sha256: blob.content for blob in blobs.values() if blob.lfs})
            repo.write("main", start | {checked_path(path): blob for path, blob in blobs.items()}, "Files", "", owner)
        return repo

    def repo(self, repo_id: str, type: str = "model") -> Repo:
        """The repository; KeyError if there is none."""
        return self.repos[type, repo_id]

    def fail(
        self,
        method: str | None,
        path: str,
        *,
        status: int | None = None,
        flip: bool = False,
        times: int = 1,
    ) -> None:
        """Make the next `times` requests fail that match a method and a path.

        Args:
            method: "GET", "HEAD", "POST", "PUT", "DELETE" or None.
            path: Regular expression for the unquoted path, of the Hub.
            status: Answer this status instead of doing anything.
            flip: Change one bit of the body that is downloaded.
            times: How often.
        """
        self._faults.append(Fault(method, path, times, status, flip))

    def next_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            for fault in self._faults:
                if fault.fits(method, path):
                    fault.times -= 1
                    return fault
        return NO_FAULT

    def env(self, **changes: str | None) -> dict[str, str]:
        """Environment of a subprocess that uses this Hub, with ada's token and an empty home.

        Every call makes a new `HF_HOME`; keep the result to stay the same user. `changes` are added, None removes:
        `hub.env(HF_TOKEN=None)` is not logged in.
        """
        home = self.folder / f"home{next(self._homes)}"
        home.mkdir(parents=True)
        kept = {name: value for name, value in os.environ.items() if not is_client_setting(name)}
        ours = {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "*",
        }
        return {name: value for name, value in {**kept, **ours, **changes}.items() if value is not None}

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer a request; one at a time, so that no request sees the state of an unfinished one."""
        address = urlsplit(target)
        with self._lock:
            try:
                return self._route(self._request(method, address, headers, body))
            except HubError as error:
                return json_answer({"error": str(error)}, error.status, error.headers)
            except Exception as error:
                self.errors.append(error)
                return json_answer({"error": f"the loopback Hub itself failed: {error!r}"}, 500)

    def _request(self, method: str, address: SplitResult, headers: Mapping[str, str], body: bytes) -> Request:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.users:
            raise HubError(401, "Invalid credentials in Authorization header")
        user = self.users.get(token)
        return Request(method, address.path, parse_qs(address.query), headers, body, user, token in self.read_only)

    def _route(self, request: Request) -> Answer:
        for methods, pattern, respond in ROUTES:
            match = pattern.fullmatch(request.path)
            if match is not None and request.method in methods:
                return respond(self, request, **{name: unquote(text) for name, text in match.groupdict("").items()})
        raise HubError(404, "Sorry, we can't find the page you are looking for.")

    def find(self, request: Request, type: str, repo_id: str, *, write: bool = False) -> Repo:
        """Find a repository, or raise the error of the Hub; a private one is "not found" without access."""
        repo = self.repos.get((type, repo_id))
        if repo is None or (repo.private and not self.owns(request.user, repo_id)):
            status = 401 if request.user is None else 404
            raise HubError(status, "Repository not found", "RepoNotFound")
        if write:
            self.check_write(request, repo_id)
        return repo

    def check_write(self, request: Request, repo_id: str) -> None:
        if request.user is None:
            raise HubError(401, "Invalid username or password.")
        if request.read_only:
            raise HubError(403, "You must use a token with write access")
        if not self.owns(request.user, repo_id):
            raise HubError(403, f'You don\'t have the rights to write under the namespace "{repo_id.split("/")[0]}"')

    def owns(self, user: str | None, repo_id: str) -> bool:
        namespace = repo_id.split("/")[0]
        return user is not None and (user == namespace or user in self.orgs.get(namespace, ()))

    def check_content(self, request: Request, repo: Repo) -> None:
        """Refuse the files of a gated repository without access."""
        if not repo.gated or self.owns(request.user, repo.id) or request.user in repo.granted:
            return
        status, todo = (401, "log in") if request.user is None else (403, "ask for access")
        message = f"Access to {repo.type} {repo.id} is restricted. You must have access to it: {todo}."
        raise HubError(status, message, "GatedRepo")
