"""The client of huggingface_hub against the loopback Hub: transfers, whole commits, access, faults."""

import subprocess
import sys

import numpy
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

WEIGHTS = numpy.linspace(-1, 1, 50_000, dtype=numpy.float32).tobytes()
FILES = {
    "config.json": b'{"model_type": "none"}',
    "README.md": b"---\ntags:\n- dna\npipeline_tag: fill-mask\n---\n# A card\n",
    "model.safetensors": WEIGHTS,
    "empty.txt": b"",
    "sub/größe α.txt": "τ".encode(),
}


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.endpoint, token=hub.token)


@pytest.fixture
def source(tmp_path):
    for name, content in FILES.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(content)
    return tmp_path / "source"


def add(path, text):
    return CommitOperationAdd(path, text.encode())


def test_upload_and_download(hub, api, source, tmp_path):
    hub.page_size = 2
    api.create_repo("ada/x", private=True)
    made = api.upload_folder(repo_id="ada/x", folder_path=source, commit_message="All of it")
    repo = hub.repo("ada/x")
    assert repo.private and repo.branches == {"main": made.oid}
    assert {name: content for name, content in repo.files().items() if name != ".gitattributes"} == FILES
    hub.requests.clear()
    assert api.upload_folder(repo_id="ada/x", folder_path=source).oid == made.oid
    assert not [path for method, path, _ in hub.requests if method == "PUT" or "/commit/" in path]
    api.snapshot_download("ada/x", local_dir=tmp_path / "back")
    assert {name: (tmp_path / "back" / name).read_bytes() for name in FILES} == FILES
    assert api.verify_repo_checksums("ada/x", local_dir=tmp_path / "back").checked_count == len(FILES) + 1
    info = api.model_info("ada/x")
    assert (info.pipeline_tag, info.tags, info.sha) == ("fill-mask", ["dna"], made.oid)


def test_a_commit_is_made_whole_or_not_at_all(hub, api):
    start = hub.create("ada/x", {"a.txt": "one"}).commit()
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        api.create_commit("ada/x", [add("a.txt", "two"), CommitOperationDelete("none.txt")], commit_message="Half")
    with pytest.raises(HfHubHTTPError, match=r"412[\s\S]*A commit has happened since"):
        api.create_commit("ada/x", [add("a.txt", "two")], commit_message="Late", parent_commit="0" * 40)
    with pytest.raises(ValueError, match=r"Invalid metadata in README.md"):
        api.create_commit("ada/x", [add("README.md", "---\ntags: [a\n-- never closed")], commit_message="Card")
    assert hub.repo("ada/x").commit() is start
    api.create_commit("ada/x", [add("a.txt", "two")], commit_message="In time", parent_commit=start.oid)
    assert hub.repo("ada/x").files()["a.txt"] == b"two" and start.blobs["a.txt"].content == b"one"


def test_who_may_read(hub):
    hub.create("ada/secret", {"a.txt": "secret"}, private=True)
    hub.create("ada/gated", {"a.txt": "gated"}, gated="manual")
    ben = next(token for token, name in hub.users.items() if name == "ben")
    for token in (False, ben):
        for missing in ("ada/secret", "ada/none"):
            with pytest.raises(RepositoryNotFoundError, match="Repository Not Found"):
                hf_hub_download(missing, "a.txt", token=token)
        with pytest.raises(GatedRepoError, match="Access to model ada/gated is restricted"):
            hf_hub_download("ada/gated", "a.txt", token=token)
    assert hf_hub_download("ada/secret", "a.txt")
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("ada/secret", "a.txt", revision="v9")
    with pytest.raises(HfHubHTTPError, match="Invalid") as caught:
        HfApi(token="hf_wrong").whoami()
    assert caught.value.response.status_code == 401


def test_who_may_write(hub):
    hub.create("ada/x")
    ben = next(token for token, name in hub.users.items() if name == "ben")
    hub.users["hf_reader"] = "ada"
    hub.read_only.add("hf_reader")
    for token, message in {False: "Invalid username", ben: "rights", "hf_reader": "write access"}.items():
        with pytest.raises(HfHubHTTPError, match=message):
            HfApi(hub.endpoint, token=token).upload_file(repo_id="ada/x", path_in_repo="a", path_or_fileobj=b"a")
    assert len(hub.repo("ada/x").commits()) == 1


@pytest.mark.parametrize(
    ("fault", "seen"),
    [({"status": 503}, [503, 200]), ({"drop": True}, [0, 200]), ({"lose_answer": True}, [0, 200])],
)
def test_faults_of_an_upload(hub, api, source, fault, seen):
    """Uploads are retried by the client, the commit is not."""
    hub.create("ada/x")
    hub.fail("PUT", "/uploads/", **fault)
    hub.fail("POST", "/commit/main", **fault)
    with pytest.raises(Exception, match=r"503|without sending a response|Connection reset|Broken pipe|EOF"):
        api.upload_folder(repo_id="ada/x", folder_path=source)
    assert [status for method, _, status in hub.requests if method == "PUT"] == seen and hub.waits == [1]
    assert len(hub.repo("ada/x").commits()) == (2 if "lose_answer" in fault else 1)


def test_faults_of_a_download(hub, monkeypatch):
    # The client keeps whole pieces only, of 10 MiB by default.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.create("ada/x", {"model.safetensors": WEIGHTS})
    hub.fail("GET", "/objects/", short=5)
    with pytest.raises(OSError, match=r"Consistency check failed: file should be of size \d+ but has size 5"):
        hf_hub_download("ada/x", "model.safetensors")
    hub.requests.clear()
    hub.fail("GET", "/objects/", truncate=70_000)
    with open(hf_hub_download("ada/x", "model.safetensors"), "rb") as file:
        assert file.read() == WEIGHTS
    assert [status for method, path, status in hub.requests if method == "GET"] == [200, 206]


def test_the_hf_command(hub, tmp_path):
    env = hub.env()
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "model.safetensors").write_bytes(bytes(range(256)) * 100)

    def hf(*words, **changes):
        command = [sys.executable, "-m", "huggingface_hub.cli.hf", *map(str, words)]
        return subprocess.run(command, env=env | changes, capture_output=True, text=True, timeout=300)

    made = hf("repos", "create", "ada/x", "--private")
    assert made.returncode == 0, made.stderr
    sent = hf("upload", "ada/x", tmp_path / "up", "--commit-message", "By hand")
    assert sent.returncode == 0 and hub.token not in sent.stdout + sent.stderr, sent.stderr
    assert hub.repo("ada/x").commit().title == "By hand"
    got = hf("download", "ada/x", "--local-dir", tmp_path / "down")
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "down" / "model.safetensors").read_bytes() == bytes(range(256)) * 100
