"""The genuine client against the Hub on this machine: what it can rely on, who may do what, and what stays apart."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    get_session,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

WEIGHTS = numpy.linspace(-1, 1, 100_000, dtype=numpy.float32).tobytes()
FILES = {
    "config.json": b'{"model_type": "none"}',
    "README.md": b"---\ntags:\n- dna\npipeline_tag: fill-mask\n---\n# A card\n",
    "model.safetensors": WEIGHTS,
    "sub/zeros.bin": bytes(300_000),
    "empty.txt": b"",
    "sub/größe α.txt": "τ".encode(),
}


@pytest.fixture
def api(hub):
    return HfApi(endpoint=hub.endpoint, token=hub.token)


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    return tmp_path / "folder"


def of(hub, method, pattern=""):
    """The paths of the requests with this method, in order."""
    return [path for used, path, _ in hub.requests if used == method and pattern in path]


def add(path, content):
    return CommitOperationAdd(path, content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize("way", ["lfs", "parts", "xet"])
def test_upload_and_download(hub, api, folder, tmp_path, way):
    hub.xet = way == "xet"
    hub.part_size = 150_000 if way == "parts" else hub.part_size
    url = api.create_repo("ada/motifs", private=True)
    assert (str(url), url.repo_id) == (f"{hub.endpoint}/ada/motifs", "ada/motifs")
    made = api.upload_folder(repo_id="ada/motifs", folder_path=folder, commit_message="All of it")
    repo = hub.repo("ada/motifs")
    assert repo.private and repo.branches == {"main": made.oid}
    assert {name: content for name, content in repo.files().items() if name != ".gitattributes"} == FILES
    assert [commit.title for commit in repo.commits()] == ["All of it", "initial commit"]
    assert len(of(hub, "PUT", "/uploads/")) == {"lfs": 2, "parts": 5, "xet": 0}[way]
    assert bool(of(hub, "POST", "/v1/xorbs/")) == (way == "xet")

    back = tmp_path / "back"
    api.snapshot_download("ada/motifs", local_dir=back)
    assert {name: (back / name).read_bytes() for name in FILES} == FILES
    assert len(of(hub, "GET", "/objects/")) == (0 if way == "xet" else 2)
    verified = api.verify_repo_checksums("ada/motifs", local_dir=back)
    assert verified.checked_count == 7 and not verified.mismatches
    (back / "model.safetensors").write_bytes(WEIGHTS[:-1] + b"\1")
    assert [found["path"] for found in api.verify_repo_checksums("ada/motifs", local_dir=back).mismatches] == [
        "model.safetensors"
    ]


def test_without_xet_on_the_server(hub, api, folder):
    """huggingface_hub 2.4 does not fall back to LFS by itself once hf_xet is there: HF_HUB_DISABLE_XET=1 is the way."""
    api.create_repo("ada/motifs")
    start = hub.repo("ada/motifs").commit()
    constants.HF_HUB_DISABLE_XET = False
    with pytest.raises(ConnectionError, match=r"404.*xet-write-token"):
        api.upload_folder(repo_id="ada/motifs", folder_path=folder)
    assert hub.repo("ada/motifs").commit() is start
    # What needs no large storage goes its way, and what came by LFS is downloaded as ever.
    api.upload_file(repo_id="ada/motifs", path_in_repo="a.txt", path_or_fileobj=b"text")
    hub.create("ada/other", {"model.bin": WEIGHTS})
    assert api.hf_hub_download("ada/other", "model.bin").encode() and of(hub, "GET", "/objects/")
    constants.HF_HUB_DISABLE_XET = True
    api.upload_folder(repo_id="ada/motifs", folder_path=folder)
    assert hub.repo("ada/motifs").files()["model.safetensors"] == WEIGHTS


def test_content_that_is_there_is_not_sent_again(hub, api, folder):
    api.create_repo("ada/first")
    made = api.upload_folder(repo_id="ada/first", folder_path=folder)
    hub.requests.clear()
    again = api.upload_folder(repo_id="ada/first", folder_path=folder)
    assert again.oid == made.oid and not of(hub, "POST", "/commit/") and not of(hub, "PUT")
    api.create_repo("ada/second")
    api.upload_folder(repo_id="ada/second", folder_path=folder)
    assert of(hub, "POST", "/commit/") and not of(hub, "PUT")
    # The server itself does not make a commit that changes nothing either.
    lines = [{"key": "header", "value": {"summary": "Nothing"}}, {"key": "deletedFile", "value": {"path": "empty.txt"}}]
    lines.append({"key": "file", "value": {"path": "empty.txt", "content": "", "encoding": "base64"}})
    url = f"{hub.endpoint}/api/models/ada/first/commit/main"
    body = "\n".join(json.dumps(line) for line in lines)
    answer = get_session().post(url, content=body, headers={"Authorization": f"Bearer {hub.token}"})
    assert answer.json()["commitOid"] == made.oid and len(hub.repo("ada/first").commits()) == 2


def test_history(hub, api):
    api.create_repo("ada/x")
    first = api.create_commit("ada/x", [add("a.txt", "one"), add("b/c.txt", "old")], commit_message="First")
    api.create_tag("ada/x", tag="v1", tag_message="The first")
    api.create_branch("ada/x", branch="try/out")
    second = api.create_commit(
        "ada/x",
        [add("a.txt", "two"), CommitOperationDelete("b/", is_folder=True)],
        commit_message="Second",
        commit_description="With words",
    )
    repo = hub.repo("ada/x")
    assert [commit.oid for commit in repo.commits()][:2] == [second.oid, first.oid]
    assert repo.branches == {"main": second.oid, "try/out": first.oid} and repo.tags == {"v1": first.oid}
    listed = api.list_repo_commits("ada/x")
    assert [(commit.title, commit.authors) for commit in listed] == [
        ("Second", ["ada"]),
        ("First", ["ada"]),
        ("initial commit", ["ada"]),
    ]
    assert listed[0].message == "With words" and listed[0].created_at >= listed[1].created_at
    for revision, content in {
        "main": "two",
        "v1": "one",
        "try/out": "one",
        first.oid: "one",
        second.oid[:8]: "two",
    }.items():
        with open(hf_hub_download("ada/x", "a.txt", revision=revision)) as file:
            assert file.read() == content, revision
    refs = api.list_repo_refs("ada/x")
    assert {ref.name: ref.target_commit for ref in refs.branches} == repo.branches
    assert [(ref.name, ref.ref) for ref in refs.tags] == [("v1", "refs/tags/v1")]
    api.delete_tag("ada/x", tag="v1")
    api.delete_branch("ada/x", branch="try/out")
    assert not repo.tags and list(repo.branches) == ["main"]
    api.super_squash_history("ada/x")
    assert len(repo.commits()) == 1 and set(repo.files()) == {".gitattributes", "a.txt"}


def test_a_commit_is_done_whole_or_not_at_all(hub, api):
    hub.create("ada/x", {"a.txt": "one"})
    start = hub.repo("ada/x").commit()
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        api.create_commit("ada/x", [add("a.txt", "two"), CommitOperationDelete("none.txt")], commit_message="Half")
    with pytest.raises(HfHubHTTPError, match=r"412[\s\S]*A commit has happened since"):
        api.create_commit("ada/x", [add("a.txt", "two")], commit_message="Late", parent_commit="0" * 40)
    with pytest.raises(BadRequestError, match="no pull requests"):
        api.create_commit("ada/x", [add("a.txt", "two")], commit_message="Proposed", create_pr=True)
    with pytest.raises(ValueError, match=r"Invalid metadata in README.md"):
        api.create_commit("ada/x", [add("README.md", "---\ntags: [a\n-- never closed")], commit_message="Card")
    assert hub.repo("ada/x").commit() is start
    api.create_commit("ada/x", [add("a.txt", "two")], commit_message="In time", parent_commit=start.oid)
    assert hub.repo("ada/x").files()["a.txt"] == b"two" and start.blobs["a.txt"].content == b"one"


def test_commits_at_the_same_time_are_all_there(hub, api):
    hub.create("ada/x")
    names = [f"{number}.txt" for number in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda name: api.create_commit("ada/x", [add(name, name)], commit_message=name), names))
    repo = hub.repo("ada/x")
    assert {*names, ".gitattributes"} == set(repo.files()) and len(repo.commits()) == 13
    # Every commit has one file more than the one before it.
    assert [len(commit.blobs) for commit in repo.commits()] == list(range(13, 0, -1))


@pytest.mark.parametrize("path", ["../x", "/x", "a//b", "a/./b", ".git/config"])
def test_paths_out_of_the_repository_are_refused(hub, path):
    hub.create("ada/x")
    line = {"key": "file", "value": {"path": path, "content": "", "encoding": "base64"}}
    body = "\n".join(json.dumps(part) for part in ({"key": "header", "value": {"summary": "s"}}, line))
    url = f"{hub.endpoint}/api/models/ada/x/commit/main"
    answer = get_session().post(url, content=body, headers={"Authorization": f"Bearer {hub.token}"})
    assert answer.status_code == 400 and "Invalid file path" in answer.text


def test_listings(hub, api):
    hub.page_size = 2
    hub.create("ada/x", FILES)
    hub.create("ada/hidden", private=True)
    hub.create("ben/y")
    entries = {entry.path: entry for entry in api.list_repo_tree("ada/x", recursive=True, expand=True)}
    assert set(entries) == {*FILES, ".gitattributes", "sub"}
    weights, card = entries["model.safetensors"], entries["README.md"]
    assert weights.lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest() and weights.size == len(WEIGHTS)
    git = hashlib.sha1(b"blob %d\0" % len(FILES["README.md"]) + FILES["README.md"]).hexdigest()
    assert card.blob_id == git and card.lfs is None and card.last_commit.oid == hub.repo("ada/x").commit().oid
    assert len(of(hub, "GET", "/tree/")) == 4
    assert [entry.path for entry in api.list_repo_tree("ada/x", "sub")] == ["sub/größe α.txt", "sub/zeros.bin"]
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree("ada/x", "nowhere"))
    found = api.get_paths_info("ada/x", ["sub", "config.json", "none"])
    assert [entry.path for entry in found] == ["sub", "config.json"]
    info = api.model_info("ada/x", files_metadata=True)
    sizes = {sibling.rfilename: sibling.size for sibling in info.siblings}
    assert sizes["model.safetensors"] == len(WEIGHTS) and info.sha == hub.repo("ada/x").commit().oid
    assert (info.pipeline_tag, info.tags, info.private, info.gated) == ("fill-mask", ["dna"], False, False)
    assert api.model_info("ada/x", expand=["sha"]).siblings is None
    assert {model.id for model in api.list_models()} == {"ada/x", "ada/hidden", "ben/y"}
    assert {model.id for model in api.list_models(author="ben", token=False)} == {"ben/y"}
    assert [model.id for model in HfApi(hub.endpoint, token=False).list_models(search="x")] == ["ada/x"]


def test_repositories(hub, api):
    hub.orgs["lab"] = {"ada"}
    who = api.whoami()
    assert who["name"] == "ada" and [org["name"] for org in who["orgs"]] == ["lab"]
    api.create_repo("lab/x")
    api.create_repo("lab/x", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="already created"):
        api.create_repo("lab/x")
    for name in ("ben/x", "nobody/x"):
        with pytest.raises(HfHubHTTPError, match=r"403 Forbidden.*rights"):
            api.create_repo(name)
    api.create_repo("ada/tau", repo_type="space", space_sdk="gradio")
    api.upload_file(repo_id="ada/tau", repo_type="space", path_in_repo="app.py", path_or_fileobj=b"print()\n")
    api.create_repo("ada/reads", repo_type="dataset")
    api.upload_file(repo_id="ada/reads", repo_type="dataset", path_in_repo="a.parquet", path_or_fileobj=b"PAR1")
    assert hub.repo("ada/tau", "space").sdk == "gradio" and "app.py" in hub.repo("ada/tau", "space").files()
    with open(hf_hub_download("ada/reads", "a.parquet", repo_type="dataset"), "rb") as file:
        assert file.read() == b"PAR1"
    assert api.space_info("ada/tau").sdk == "gradio" and api.repo_exists("ada/reads", repo_type="dataset")
    api.update_repo_settings("lab/x", private=True, gated="auto")
    assert hub.repo("lab/x").private and hub.repo("lab/x").gated == "auto"
    api.move_repo("lab/x", "ada/moved")
    api.delete_repo("ada/moved")
    assert not api.repo_exists("lab/x") and not api.repo_exists("ada/moved")
    with pytest.raises(RepositoryNotFoundError):
        api.delete_repo("ada/moved")


def test_who_may_read(hub, monkeypatch):
    hub.create("ada/open", {"a.txt": "open"})
    hub.create("ada/secret", {"a.txt": "secret"}, private=True)
    hub.create("ada/asked", {"a.txt": "asked", "model.bin": WEIGHTS}, gated="manual")
    ben = next(token for token, name in hub.users.items() if name == "ben")
    for token in (False, ben):
        assert hf_hub_download("ada/open", "a.txt", token=token)
        for missing in ("ada/secret", "ada/none"):
            with pytest.raises(RepositoryNotFoundError, match="Repository Not Found"):
                hf_hub_download(missing, "a.txt", token=token)
            with pytest.raises(RepositoryNotFoundError):
                HfApi(hub.endpoint, token=token).model_info(missing)
        with pytest.raises(GatedRepoError, match="Access to model ada/asked is restricted"):
            hf_hub_download("ada/asked", "a.txt", token=token)
        assert HfApi(hub.endpoint, token=token).model_info("ada/asked").gated == "manual"
    hub.repo("ada/asked").granted.add("ben")
    assert hf_hub_download("ada/asked", "model.bin", token=ben)
    assert hf_hub_download("ada/secret", "a.txt")
    for ask in (
        lambda: hf_hub_download("ada/open", ".gitattributes", token="hf_wrong"),
        HfApi(token="hf_wrong").whoami,
    ):
        with pytest.raises(HfHubHTTPError, match="Invalid") as caught:
            ask()
        assert caught.value.response.status_code == 401 and "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", ben)
    assert HfApi().whoami()["name"] == "ben"


def test_who_may_write(hub, api):
    hub.create("ada/x")
    ben = next(token for token, name in hub.users.items() if name == "ben")
    hub.users["hf_reader"] = "ada"
    hub.read_only.add("hf_reader")
    for token, message in {False: "Invalid username", ben: "rights", "hf_reader": "write access"}.items():
        with pytest.raises(HfHubHTTPError, match=message):
            HfApi(hub.endpoint, token=token).upload_file(repo_id="ada/x", path_in_repo="a", path_or_fileobj=b"a")
    assert len(hub.repo("ada/x").commits()) == 1
    assert api.auth_check("ada/x", write=True) is None
    with pytest.raises(HfHubHTTPError):
        HfApi(hub.endpoint, token=ben).auth_check("ada/x", write=True)


def test_what_is_missing(hub):
    hub.create("ada/x", {"a.txt": "one"})
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("ada/x", "β\n.txt")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("ada/x", "b.txt")
    # That it is missing is remembered, for the commit the answer named.
    assert try_to_load_from_cache("ada/x", "b.txt") is not None
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("ada/x", "a.txt", revision="v9")
    with pytest.raises(RevisionNotFoundError):
        HfApi().upload_file(repo_id="ada/x", path_in_repo="a", path_or_fileobj=b"a", revision="v9")


def test_cache_and_offline(hub, monkeypatch):
    repo = hub.create("ada/x", {"a.txt": "one", "model.bin": WEIGHTS})
    paths = [hf_hub_download("ada/x", name) for name in ("a.txt", "model.bin")]
    hub.requests.clear()
    assert [hf_hub_download("ada/x", name) for name in ("a.txt", "model.bin")] == paths
    assert not of(hub, "GET") and len(of(hub, "HEAD")) == 2
    # The new commit has a new text and the same weights: only the text is fetched.
    HfApi().upload_file(repo_id="ada/x", path_in_repo="a.txt", path_or_fileobj=b"two")
    hub.requests.clear()
    new = [hf_hub_download("ada/x", name) for name in ("a.txt", "model.bin")]
    assert of(hub, "GET") == ["/ada/x/resolve/main/a.txt"] and new[0] != paths[0]
    hub.requests.clear()
    hf_hub_download("ada/x", "a.txt", revision=repo.commits()[1].oid)
    assert not hub.requests
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hf_hub_download("ada/x", "a.txt") == new[0]
    with pytest.raises(LocalEntryNotFoundError, match=r"cannot find the requested files in the local cache"):
        hf_hub_download("ada/x", "b.txt")
    assert not hub.requests


def test_ranges_and_the_storage(hub):
    hub.create("ada/x", {"a.txt": "0123456789", "model.bin": WEIGHTS}, private=True)
    token = {"Authorization": f"Bearer {hub.token}"}
    client = get_session()
    text = hf_hub_url("ada/x", "a.txt")
    for asked, got in {"2-5": "2345", "7-": "789", "-3": "789", "8-99": "89"}.items():
        answer = client.get(text, headers=token | {"Range": f"bytes={asked}"})
        assert (answer.status_code, answer.text) == (206, got)
    assert answer.headers["Content-Range"] == "bytes 8-9/10"
    assert client.get(text, headers=token | {"Range": "bytes=10-"}).status_code == 416
    # A large file lies elsewhere: behind an address that needs no token, refuses one, and cannot be guessed.
    answer = client.head(hf_hub_url("ada/x", "model.bin"), headers=token, follow_redirects=False)
    address = answer.headers["Location"]
    assert answer.status_code == 302 and answer.headers["X-Linked-Size"] == str(len(WEIGHTS))
    assert answer.headers["X-Linked-ETag"] == f'"{hashlib.sha256(WEIGHTS).hexdigest()}"'
    assert client.get(address, headers={"Range": "bytes=4-7"}).content == WEIGHTS[4:8]
    assert client.get(address, headers=token).status_code == 400
    assert client.get(address.split("?")[0]).status_code == 403
    assert client.get(text).status_code == 401
