"""HTTP of the loopback Hub: requests, answers, faults, and servers that close all connections."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class HubError(Exception):
    """An error answer: status, `X-Error-Code` of the Hub, and a message."""

    def __init__(
        self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        # A header is one line of ASCII, the message may quote any path.
        line = message.encode("ascii", "backslashreplace").decode().replace("\n", " ").replace("\r", " ")
        self.headers = {"X-Error-Message": line, **({"X-Error-Code": code} if code else {}), **(headers or {})}


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of this method whose path matches."""

    method: str | None
    path: str
    times: int
    status: int | None = None
    flip: bool = False

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and self.method in (None, method) and re.search(self.path, path) is not None


NO_FAULT = Fault(None, "", 0)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    body: bytes
    user: str | None
    """Owner of the token; None without a token."""
    read_only: bool

    def json(self) -> Any:
        try:
            return json.loads(self.body or b"{}")
        except ValueError:
            raise HubError(400, "The request's body is not JSON") from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, ["false"])[0].lower() in ("1", "true")


@dataclass
class Answer:
    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(json.dumps(content).encode(), status, {"Content-Type": "application/json", **(headers or {})})


Route = tuple[tuple[str, ...], re.Pattern[str], Callable[..., Answer]]
ROUTES: list[Route] = []

# {api} is a repository in the addresses of the API, {page} in those of pages and files.
_PARTS = {
    "{api}": r"/api/(?P<kind>models|datasets|spaces)/(?P<repo_id>[^/]+/[^/]+)",
    "{page}": r"/(?:(?P<kind>datasets|spaces)/)?(?P<repo_id>[^/]+/[^/]+)",
    "{revision}": r"(?P<revision>[^/]+)",
}


def route(methods: str, pattern: str) -> Callable:
    """Registers a function for "METHOD METHOD" and an address; its groups, unquoted, become arguments."""
    for short, long in _PARTS.items():
        pattern = pattern.replace(short, long)

    def register(respond: Callable[..., Answer]) -> Callable[..., Answer]:
        ROUTES.append((tuple(methods.split()), re.compile(pattern), respond))
        return respond

    return register


def repo_type(kind: str) -> str:
    return kind.removesuffix("s") or "model"


class Handler(BaseHTTPRequestHandler):
    """Reads a request, lets the Hub answer it, and applies the faults."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    server: "Server"

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def handle(self) -> None:
        # A client that goes away in the middle is no error of the server.
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Nothing on the screen."""

    def respond(self) -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        fault = hub.next_fault(self.command, path)
        body = self.read_body()
        if fault.status is not None:
            answer = json_answer({"error": f"scripted fault {fault.status}"}, fault.status)
        else:
            answer = hub.answer(self.command, self.path, self.headers, body)
        if fault.flip:
            answer.body = flipped(answer.body)
        hub.requests.append((self.command, path, answer.status))
        self.send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = respond

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            chunks = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)


def flipped(content: bytes) -> bytes:
    """The same bytes with one bit of the middle one changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else content


class Server(ThreadingHTTPServer):
    """One port of the Hub. Its threads are joined and its connections closed at the end: pytest forbids leaks."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, hub: Any) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = hub
        self.connections: set[socket.socket] = set()
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self.thread.join()
        # Clients keep connections for later; without this their threads would wait for another request.
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()
