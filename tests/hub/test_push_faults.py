"""Faults of the Hub, the network and the login: transient ones are retried, the others give one line."""

import shlex
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, get_token
from huggingface_hub.errors import HfHubHTTPError

from hf_ssm.cli import main
from hf_ssm.hub import client, pushing

NAME = "ada/motifs"
OLD = {"config.json": "{}", "model.safetensors": b"\0old"}


@pytest.fixture(autouse=True)
def unproved(proofs):
    """A push without its proof."""


def titles(hub):
    return [commit.title for commit in reversed(hub.repo(NAME).commits())]


REQUESTS = {
    "who": ("GET", "/api/whoami-v2"),
    "creation": ("POST", "/api/repos/create"),
    "branch": ("POST", "/branch/"),
    "head": ("GET", "/api/models/ada/motifs(/revision/.*)?$"),
    "listing": ("GET", "/tree/"),
    "card": ("POST", "/api/validate-yaml"),
    "modes": ("POST", "/preupload/"),
    "large files": ("POST", "/info/lfs/objects/batch"),
    "upload": ("PUT", "/objects/|/uploads/"),
    "commit": ("POST", "/commit/"),
}


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}, {"drop": True}, {"lose_answer": True}], ids=str)
def test_transient_fault(hub, folder, request_, fault):
    hub.fail(*REQUESTS[request_], **fault)
    pushing.push_folder(folder, NAME, revision="next")
    repo = hub.repo(NAME)
    assert [commit.title for commit in repo.commits("next")] == ["Add model", "initial commit"]
    assert repo.files("next").keys() == {path.name for path in folder.iterdir()} | {".gitattributes"}
    assert repo.files("next")["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert [fault.times for fault in hub._faults] == [0]


def test_repeated_fault(hub, folder, waits):
    hub.fail(*REQUESTS["commit"], status=503, times=5)
    pushing.push_folder(folder, NAME)
    assert titles(hub) == ["initial commit", "Add model"]
    assert waits == [1, 2, 4, 8, 16]


def test_permanent_fault_leaves_the_old_commit(hub, folder, waits):
    hub.create(NAME, files=OLD)
    hub.fail(*REQUESTS["commit"], status=503, times=99)
    with pytest.raises(OSError, match=r"push to 'ada/motifs' failed, .* is unchanged .*503.*repeat with `hf-ssm push"):
        pushing.push_folder(folder, NAME)
    assert titles(hub) == ["initial commit", "Files"]
    assert len(waits) == 5


def test_the_command_to_repeat_is_quoted_for_the_shell(hub, folder):
    hub.fail(*REQUESTS["commit"], status=503, times=99)
    odd = folder.rename(folder.parent / "ada's $HOME; run")
    with pytest.raises(OSError, match="repeat with") as caught:
        pushing.push_folder(odd, NAME, revision="next", private=True)
    command = str(caught.value).partition("repeat with `")[2].partition("`")[0]
    assert shlex.split(command) == ["hf-ssm", "push", str(odd), NAME, "--revision", "next", "--private"]


@pytest.mark.parametrize("request_", ["upload", "commit"])
def test_connections_dropped_for_good_leave_the_old_commit(hub, folder, request_):
    hub.create(NAME, files=OLD)
    hub.fail(*REQUESTS[request_], drop=True, times=99)
    state = "is unchanged" if request_ == "upload" else "holds either all files of the push or none"
    with pytest.raises(OSError, match=f"failed, and the repository {state}") as caught:
        pushing.push_folder(folder, NAME)
    assert "\n" not in str(caught.value)
    files = hub.repo(NAME).files()
    assert titles(hub) == ["initial commit", "Files"] and files["model.safetensors"] == b"\0old"
    for fault in hub._faults:
        fault.times = 0
    pushing.push_folder(folder, NAME)
    assert titles(hub) == ["initial commit", "Files", "Add model"]


def test_every_answer_to_the_commit_is_lost(hub, folder):
    """The commit is made once: the next attempt recognises it."""
    hub.fail(*REQUESTS["commit"], lose_answer=True, times=99)
    pushing.push_folder(folder, NAME)
    assert titles(hub) == ["initial commit", "Add model"]
    assert sum("/commit/" in path for _, path, _ in hub.requests) == 1


def test_an_upload_that_changes_on_the_way_is_not_committed(hub, folder):
    hub.create(NAME, files=OLD)
    hub.fail(*REQUESTS["upload"], flip=True)
    with pytest.raises((OSError, ValueError), match="failed, and the repository is unchanged"):
        pushing.push_folder(folder, NAME)
    assert titles(hub) == ["initial commit", "Files"]


def test_the_hub_says_how_long_to_wait(hub, folder, waits):
    hub.fail(*REQUESTS["commit"], status=429, retry_after=7)
    pushing.push_folder(folder, NAME)
    assert waits == [7]


def test_a_demand_of_no_wait_does_not_replace_the_backoff(hub, folder, waits):
    hub.fail(*REQUESTS["commit"], status=429, retry_after=0, times=3)
    pushing.push_folder(folder, NAME)
    assert waits == [1, 2, 4]


def failed_upload(cause: Exception) -> Exception:
    """As the client raises it."""
    try:
        raise RuntimeError("Error while uploading 'model.safetensors' to the Hub.") from cause
    except RuntimeError as error:
        return error


def answer(status: int, text: str) -> HfHubHTTPError:
    return HfHubHTTPError(text, response=SimpleNamespace(status_code=status, headers={}, request=None))


@pytest.mark.parametrize(
    ("error", "kind", "transient", "parts"),
    [
        (failed_upload(answer(503, "no room")), OSError, True, ("uploading 'model.safetensors'", "503", "no room")),
        (failed_upload(ConnectionError("reset")), OSError, True, ("'model.safetensors'", "cannot be reached", "reset")),
        (failed_upload(OSError(28, "No space left")), OSError, False, ("'model.safetensors'", "No space left")),
        (failed_upload(failed_upload(answer(418, "tea"))), OSError, False, ("418", "tea")),
        (
            answer(403, "storage limit reached"),
            ValueError,
            False,
            ("no write access to 'a/b'", "storage limit reached"),
        ),
        (answer(401, "token expired"), ValueError, False, ("rejects the token", "token expired")),
        (RuntimeError("of something else"), OSError, False, ("of something else",)),
    ],
)
def test_the_cause_of_a_failure_is_told(error, kind, transient, parts):
    found = client.user_error(error, "a/b")
    assert isinstance(found, kind) and "\n" not in str(found)
    assert all(part in str(found) for part in parts), found
    assert client.is_transient(error) is transient


def test_a_failed_upload_tells_file_and_cause(hub, folder):
    hub.fail(*REQUESTS["upload"], status=418, times=99)
    with pytest.raises(OSError, match=r"is unchanged \(Error while uploading 'model\.safetensors'.* 418: "):
        pushing.push_folder(folder, NAME)


def test_a_wait_that_is_too_long(hub, folder, waits):
    hub.fail(*REQUESTS["commit"], status=429, retry_after=3600)
    with pytest.raises(OSError, match=r"demands a wait of 3600 seconds.*repeat with"):
        pushing.push_folder(folder, NAME)
    assert waits == [] and titles(hub) == ["initial commit"]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3),
        ({"Retry-After": "0"}, 1),
        ({"ratelimit": '"api";r=0;t=0'}, 1),
        ({"Retry-After": "soon"}, 1),
        ({"ratelimit": '"api";r=0;t=55'}, 55),
        ({"ratelimit": '"api";r=12;t=55'}, 1),
        ({}, 1),
    ],
)
def test_waiting_times(waits, headers, seconds):
    answers = [HfHubHTTPError("busy", response=SimpleNamespace(status_code=429, headers=headers, request=None))]

    def action() -> str:
        if answers:
            raise answers.pop()
        return "done"

    assert client.retry(action) == "done" and waits == [seconds]


@pytest.mark.parametrize("name", ["model", "/model", "ada/", "ada/a b", "a/b/c", "ada/..x", ""])
def test_names_the_hub_would_refuse(name):
    with pytest.raises(ValueError, match="a Hub repository is named USER/NAME"):
        client.check_repo_id(name)


def _no_login(hub, patch):
    patch.delenv("HF_TOKEN")


def _wrong_token(hub, patch):
    patch.setenv("HF_TOKEN", "hf_" + "x" * 34)


def _offline(hub, patch):
    patch.setattr(constants, "HF_HUB_OFFLINE", True)


def _reads_only(hub, patch):
    hub.read_only.add(hub.token)


def _unreachable(hub, patch):
    patch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def _busy(hub, patch):
    hub.fail(*REQUESTS["who"], status=503, times=99)


@pytest.mark.parametrize(
    ("break_it", "name", "error", "message"),
    [
        (_no_login, NAME, ValueError, "needs a login for this: run `hf auth login`, or set HF_TOKEN"),
        (_wrong_token, NAME, ValueError, "rejects the token"),
        (_offline, NAME, ValueError, "unset HF_HUB_OFFLINE"),
        (_reads_only, NAME, ValueError, "no write access"),
        (lambda hub, patch: None, "ben/motifs", ValueError, "login of ada has no write access to .*: use ada/"),
        (lambda hub, patch: hub.orgs.update(lab={"ben"}), "lab/motifs", ValueError, "no write access"),
        (_unreachable, NAME, OSError, "the Hub cannot be reached"),
        (_busy, NAME, OSError, "the Hub answered 503"),
    ],
)
def test_a_push_that_cannot_work_creates_nothing(hub, folder, monkeypatch, capsys, break_it, name, error, message):
    break_it(hub, monkeypatch)
    token = get_token()
    with pytest.raises(error, match=message) as caught:
        pushing.push_folder(folder, name)
    assert hub.repos == {}
    assert main(["push", "--debug", str(folder), name]) == 2
    written = capsys.readouterr().err
    assert written.splitlines()[-1].startswith("hf-ssm: error: ")
    if token is not None:
        assert token not in written + str(caught.value)


def test_own_and_organisation_namespaces_are_accepted(hub):
    hub.orgs["lab"] = {"ada"}
    client.check_can_push(NAME)
    client.check_can_push("lab/motifs")
    assert hub.repos == {}


def test_a_token_with_a_line_end_is_not_shown(hub, folder, capsys, monkeypatch):
    """The HTTP library shows the whole header that it refuses."""
    token = f"{hub.token}\nx"
    with pytest.raises((OSError, ValueError)) as caught:
        pushing.push_folder(folder, NAME, token=token)
    assert hub.token not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "text", ["token hf_" + "aB3" * 12, "Bearer secret-of-mine", "with mine-own in it", "api_org_" + "a" * 34]
)
def test_redact(text):
    found = client.redact(text, "mine-own")
    assert "[token]" in found and not any(part in found for part in ("aB3", "secret", "mine", "aaa"))
    assert client.redact("the package hf_ssm has hf_ssm_hyena") == "the package hf_ssm has hf_ssm_hyena"


def test_missing_right_in_the_middle(hub, folder):
    """The token may be taken back after the check."""
    hub.fail(*REQUESTS["commit"], status=403)
    with pytest.raises(ValueError, match=r"no write access to 'ada/motifs'"):
        pushing.push_folder(folder, NAME)


def test_warnings_of_retries_have_no_token(hub, folder, caplog):
    hub.fail(*REQUESTS["commit"], status=503)
    pushing.push_folder(folder, NAME)
    assert "the Hub answered 503" in caplog.text and "trying again in 1 s" in caplog.text
    assert hub.token not in caplog.text


def test_the_client_given_is_the_one_asked():
    asked = SimpleNamespace(whoami=lambda: {"name": "eve"}, token=None)
    with pytest.raises(ValueError, match="login of eve has"):
        client.check_can_push(NAME, asked)
