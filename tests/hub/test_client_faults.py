"""The faults of the Hub on this machine: each does what it says, and this is what the genuine client makes of it."""

import numpy
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import BadRequestError, HfHubHTTPError

WEIGHTS = numpy.linspace(-1, 1, 50_000, dtype=numpy.float32).tobytes()
SILENT = r"without sending a response|Connection reset|Broken pipe|EOF"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text("{}")
    (tmp_path / "folder" / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path / "folder"


@pytest.fixture
def upload(hub, folder):
    """Uploads the folder to "ada/x", which is there with a first commit only."""
    hub.create("ada/x")
    return lambda: HfApi().upload_folder(repo_id="ada/x", folder_path=folder, commit_message="Weights")


@pytest.fixture
def stored(hub):
    hub.create("ada/x", {"config.json": '{"a": 1}', "model.safetensors": WEIGHTS})


def statuses(hub, method, part):
    return [status for used, path, status in hub.requests if used == method and part in path]


def titles(hub):
    return [commit.title for commit in hub.repo("ada/x").commits()]


@pytest.mark.parametrize(
    ("fault", "seen", "waits"),
    [
        ({"status": 503}, [503, 200], [1]),
        ({"status": 503, "times": 2}, [503, 503, 200], [1, 2]),
        ({"status": 429, "retry_after": 7}, [429, 200], [8]),
        ({"drop": True}, [0, 200], [1]),
        ({"lose_answer": True}, [0, 200], [1]),
    ],
)
def test_storage_that_works_again(hub, upload, fault, seen, waits):
    hub.fail("PUT", "/uploads/", **fault)
    upload()
    assert statuses(hub, "PUT", "/uploads/") == seen and hub.waits == waits
    assert hub.repo("ada/x").files()["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize("fault", [{"drop": True}, {"status": 503}])
def test_storage_that_does_not_work(hub, upload, fault):
    hub.fail("PUT", "/uploads/", times=99, **fault)
    with pytest.raises(RuntimeError, match=r"Error while uploading 'model.safetensors' to the Hub"):
        upload()
    assert titles(hub) == ["initial commit"] and not hub.objects and len(hub.waits) == 5


def test_bit_flipped_in_an_upload(hub, upload):
    hub.fail("PUT", "/uploads/", flip=True)
    with pytest.raises(RuntimeError) as caught:
        upload()
    assert isinstance(caught.value.__cause__, BadRequestError) and "checksum" in str(caught.value.__cause__)
    assert titles(hub) == ["initial commit"] and not hub.objects


@pytest.mark.parametrize("fault", [{"status": 503}, {"drop": True}, {"lose_answer": True}])
@pytest.mark.parametrize("xet", [False, True])
def test_commit(hub, upload, fault, xet):
    """The commit is sent once only, unless the upload goes by xet; what was done may be done again."""
    hub.xet = xet
    hub.fail("POST", "/commit/main", **fault)
    if xet:
        upload()
        assert len(hub.waits) == 1
    else:
        with pytest.raises(Exception, match=rf"503|{SILENT}"):
            upload()
        assert titles(hub) == (["Weights"] if "lose_answer" in fault else []) + ["initial commit"] and not hub.waits
        upload()
    assert titles(hub) == ["Weights", "initial commit"] and len(statuses(hub, "PUT", "")) == (0 if xet else 1)


def test_bit_flipped_in_an_upload_by_xet(hub, upload):
    hub.xet = True
    hub.fail("POST", "/v1/xorbs/", flip=True, times=99)
    with pytest.raises(Exception, match=r"400|Bad Request"):
        upload()
    assert titles(hub) == ["initial commit"] and not hub.objects


@pytest.mark.parametrize("path", ["/api/repos/create", "/api/validate-yaml"])
def test_requests_that_are_sent_once(hub, folder, path):
    (folder / "README.md").write_text("---\ntags:\n- dna\n---\n")
    hub.fail("POST", path, status=503)
    with pytest.raises(HfHubHTTPError, match="503"):
        HfApi().create_repo("ada/x")
        HfApi().upload_folder(repo_id="ada/x", folder_path=folder)
    assert not hub.waits


def test_truncated_download_is_resumed(hub, stored, monkeypatch):
    # The client keeps whole pieces only, which are of 10 MiB by default.
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.fail("GET", "/objects/", truncate=70_000)
    with open(hf_hub_download("ada/x", "model.safetensors"), "rb") as file:
        assert file.read() == WEIGHTS
    assert statuses(hub, "GET", "/objects/") == [200, 206] and hub.waits == [1]


@pytest.mark.parametrize("fault", [{"truncate": 0}, {"drop": True}])
def test_download_that_never_arrives(hub, stored, fault):
    hub.fail("GET", "/objects/", times=99, **fault)
    with pytest.raises(Exception, match=rf"{SILENT}|without sending complete message body"):
        hf_hub_download("ada/x", "model.safetensors")
    assert len(hub.waits) == 5 and try_to_load_from_cache("ada/x", "model.safetensors") is None


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_download_of_the_wrong_size(hub, stored, name):
    hub.fail("GET", r"/objects/|config.json", short=5)
    with pytest.raises(OSError, match=r"Consistency check failed: file should be of size \d+ but has size 5"):
        hf_hub_download("ada/x", name)
    assert try_to_load_from_cache("ada/x", name) is None


def test_bit_flipped_in_a_download(hub, stored):
    """The client looks at sizes only; checksums tell."""
    hub.fail("GET", "/objects/", flip=True)
    with open(hf_hub_download("ada/x", "model.safetensors"), "rb") as file:
        read = file.read()
    assert sum(bin(a ^ b).count("1") for a, b in zip(read, WEIGHTS, strict=True)) == 1
    found = HfApi().verify_repo_checksums("ada/x")
    assert [mismatch["path"] for mismatch in found.mismatches] == ["model.safetensors"]


def test_hub_that_does_not_answer(hub, stored):
    hub.fail("HEAD", "config.json", status=503, times=2)
    path = hf_hub_download("ada/x", "config.json")
    assert hub.waits == [1] and statuses(hub, "HEAD", "config.json") == [503, 503, 200]
    # With the file in the cache there is no waiting.
    hub.fail("HEAD", "config.json", status=503)
    assert hf_hub_download("ada/x", "config.json") == path and hub.waits == [1]
    # A file itself is asked for once.
    hub.fail("GET", "/objects/", status=503)
    with pytest.raises(HfHubHTTPError, match="503"):
        hf_hub_download("ada/x", "model.safetensors")


def test_faults_are_for_what_they_name(hub, stored):
    hub.fail("GET", "/refs$", status=500)
    hub.fail(None, "/refs$", status=418)
    api = HfApi()
    assert api.model_info("ada/x")
    for status in (500, 418):
        with pytest.raises(HfHubHTTPError, match=str(status)):
            api.list_repo_refs("ada/x")
    assert api.list_repo_refs("ada/x").branches
    with pytest.raises(ValueError, match="a fault is one of"):
        hub.fail("GET", "/refs")
    with pytest.raises(ValueError, match="a fault is one of"):
        hub.fail("GET", "/refs", drop=True, flip=True)
