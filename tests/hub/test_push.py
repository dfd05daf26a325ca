"""What goes to the Hub, and what is refused before any work; the Hub itself is a stand-in."""

from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils import filter_repo_objects

from hf_ssm.hub import push


class FakeApi:
    """Records the calls; `whoami` answers or raises what it is given."""

    def __init__(self, identity=None):
        self.identity = identity
        self.calls = []

    def whoami(self):
        if isinstance(self.identity, Exception):
            raise self.identity
        return self.identity

    def create_repo(self, repo_id, **options):
        self.calls.append(("create_repo", repo_id, options))
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, **options):
        self.calls.append(("upload_folder", options))


def refusal(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("no", response=SimpleNamespace(status_code=status, headers={}, request=None))


@pytest.mark.parametrize("name", ["model", "/model", "me/", "me/a b", "a/b/c", "me/..x", ""])
def test_names_the_hub_would_refuse(name):
    with pytest.raises(ValueError, match="--push-to-hub takes USER/NAME"):
        push.check_repo_id(name)


@pytest.mark.parametrize(
    ("identity", "error", "message"),
    [
        (LocalTokenNotFoundError("none"), ValueError, "hf auth login"),
        (OfflineModeIsEnabled("offline"), ValueError, "unset HF_HUB_OFFLINE"),
        (refusal(401), ValueError, "refuses the stored token"),
        (refusal(500), OSError, "does not answer"),
        (ConnectionError("down"), OSError, "cannot be reached: down"),
        ({"name": "you", "orgs": [{"name": "lab"}]}, ValueError, "login is for you and lab.*use you/"),
    ],
)
def test_a_push_that_cannot_work_is_refused_early(identity, error, message):
    api = FakeApi(identity)
    with pytest.raises(error, match=message):
        push.check_can_push("me/model", api)
    assert api.calls == []


@pytest.mark.parametrize("identity", [{"name": "me"}, {"name": "you", "orgs": [{"name": "me"}]}])
def test_own_and_organisation_namespaces_are_let_through(identity):
    push.check_can_push("me/model", FakeApi(identity))


def test_push_sends_the_model_and_leaves_the_run_behind(tmp_path):
    sent = ["config.json", "model.safetensors", "README.md", "tokenizer.json", "training_log.png"]
    kept = ["checkpoint-12/model.safetensors", "checkpoint-12/optimizer.pt", "training_args.bin"]
    for name in sent + kept:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    api = FakeApi()
    assert push.push_folder(tmp_path, "me/model", private=True, api=api) == "https://huggingface.co/me/model"
    (create, upload) = api.calls
    assert create == ("create_repo", "me/model", {"private": True, "exist_ok": True})
    assert upload[1]["repo_id"] == "me/model"
    assert upload[1]["folder_path"] == tmp_path
    left = filter_repo_objects(sent + kept, ignore_patterns=upload[1]["ignore_patterns"])
    assert sorted(left) == sorted(sent)


def test_failed_push_says_how_to_repeat_it(tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("x")
    api = FakeApi()
    api.upload_folder = _no_connection
    with pytest.raises(OSError, match=r"failed \(no route\), but .* is complete: repeat with `hf upload me/m "):
        push.push_folder(tmp_path, "me/m", api=api)


def _no_connection(**options):
    raise RuntimeError("no route")


@pytest.mark.parametrize("present", [[], ["config.json"], ["model.safetensors"]])
def test_folder_without_a_model_is_refused(tmp_path, present):
    for name in present:
        (tmp_path / name).write_text("x")
    api = FakeApi()
    with pytest.raises(ValueError, match="output folder of a finished run"):
        push.push_folder(tmp_path, "me/model", api=api)
    assert api.calls == []
