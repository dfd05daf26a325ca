"""A push with the real client against a stand-in for the Hub on this machine."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfApi

from hf_ssm.hub import push


class Hub(ThreadingHTTPServer):
    """Answers the six requests of a push; keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.created: list[dict] = []
        self.files: dict[str, bytes] = {}
        self.commits: list[dict] = []


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer hf_good":
            return self.answer({"error": "bad token"}, status=401)
        if self.path == "/api/whoami-v2":
            return self.answer({"name": "me", "type": "user", "orgs": []})
        return self.answer({"error": "no such page"}, status=404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            return self.answer({"url": "https://huggingface.co/me/motifs", "name": "me/motifs"})
        if self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return self.answer({"files": modes})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                self.server.commits.append(line["value"])
            elif line["key"] == "file":
                self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return self.answer(
            {"success": True, "commitOid": "1" * 40, "commitUrl": "https://huggingface.co/me/motifs/commit/1"}
        )

    def answer(self, content: dict, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing on the screen."""


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def api(hub: Hub, token: str = "hf_good") -> HfApi:
    return HfApi(endpoint=f"http://127.0.0.1:{hub.server_port}", token=token)


def test_push(hub, tmp_path):
    contents = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"# card\n"}
    left_behind = ["checkpoint-3/model.safetensors", "training_args.bin"]
    for name, content in {**contents, **dict.fromkeys(left_behind, b"x")}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    push.check_can_push("me/motifs", api(hub))
    url = push.push_folder(tmp_path, "me/motifs", private=True, message="A run", api=api(hub))
    assert url.endswith("/me/motifs")
    assert hub.created[0]["name"] == "motifs" and hub.created[0]["organization"] == "me"
    # The client's word for it has changed between versions.
    assert hub.created[0].get("visibility") == "private" or hub.created[0].get("private") is True
    assert hub.files == contents
    assert [commit["summary"] for commit in hub.commits] == ["A run"]


def test_refused_token(hub):
    with pytest.raises(ValueError, match="the Hub refuses the stored token"):
        push.check_can_push("me/motifs", api(hub, token="hf_bad"))
    assert hub.created == []
