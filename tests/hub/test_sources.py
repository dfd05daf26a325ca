"""Names of checkpoints that do not exist, and pushes without a network: one clear error, and no waiting."""

import shutil
from contextlib import nullcontext

import pytest
from huggingface_hub import constants, hf_hub_download

from hf_ssm import S4Config, S4ForSequenceClassification
from hf_ssm import hub as hub_functions
from hf_ssm.cli import main
from hf_ssm.hub.sources import check_source
from hf_ssm.models.conversion import convert_checkpoint

# A port on which nothing listens.
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def runs(tmp_path, monkeypatch, saved_model):
    """`runs/mine` in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    (tmp_path / "x.csv").write_text("sequence,label\nACGT,a\n")
    return shutil.copytree(saved_model, tmp_path / "runs" / "mine")


@pytest.fixture
def disconnected(hub, monkeypatch):
    from huggingface_hub import hf_api

    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(hf_api.api, "endpoint", NOWHERE)
    return hub


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/mien", r"there is no folder 'runs/mien' \(did you mean 'runs/mine'\?\).*'runs' is a folder here"),
        ("./runs/mien", r"there is no folder './runs/mien' \(did you mean 'runs/mine'\?\)$"),
        ("rums/mine/deep", r"there is no folder 'rums/mine/deep'$"),
        ("~/nothing/such", r"there is no folder '~/nothing/such'$"),
        ("", r"there is no folder ''"),
    ],
)
def test_a_missing_folder_needs_no_request(hub, runs, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        check_source(name)
    assert hub.requests == []


@pytest.mark.usefixtures("runs")
def test_a_name_is_looked_up_once(hub):
    with pytest.raises(
        FileNotFoundError, match=r"'run/mine' \(did you mean 'runs/mine'\?\); the Hub has no repository"
    ):
        check_source("run/mine")
    assert [status for *_, status in hub.requests] == [404] and hub.waits == []
    hub.create("ada/x", {"config.json": "{}"})
    check_source("ada/x")
    hf_hub_download("ada/x", "config.json")
    hub.requests.clear()
    check_source("ada/x")  # in the cache
    check_source("runs/mine")
    assert hub.requests == []
    hub.fail("GET", "/api/models/ada/busy", status=503)
    check_source("ada/busy")  # the download is retried


COMMANDS = [
    ("predict", "{}", "x.fa", "--output", "out.csv"),
    ("verify", "{}"),
    ("report", "{}", "--dataset", "x.csv"),
    ("probe", "{}", "--dataset", "x.csv", "--output", "out"),
    ("export", "{}", "out"),
    ("convert", "{}", "out"),
    ("train", "--dataset", "planted-motifs", "--model", "{}", "--output", "out"),
    ("predict", "runs/mine", "x.fa", "--tokenizer", "{}", "--output", "out.csv"),
]


@pytest.mark.usefixtures("runs", "disconnected")
@pytest.mark.parametrize("words", COMMANDS)
def test_commands_name_a_missing_folder(capsys, words):
    for name, hint in (("runs/mien", "'runs' is a folder here"), ("rums/mine", f"cannot be reached at {NOWHERE}")):
        assert main([word.format(name) for word in words]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert f"there is no folder {name!r} (did you mean 'runs/mine'?)" in error and hint in error


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize(
    "words",
    [
        *COMMANDS,
        ("app", "{}"),
        ("push", "{}", "ada/x"),
        ("train", "--dataset", "planted-motifs", "--tokenizer", "{}", "--output", "out"),
    ],
)
def test_commands_follow_no_links_and_apply_no_adapters(runs, capsys, words):
    """What a link leads to would be saved as a file with the next model, and published by a push."""
    odd = shutil.copytree(runs, runs.with_name("odd"))
    words = [word.format("runs/odd") for word in words]
    refused = pytest.raises(SystemExit) if words[0] == "verify" else nullcontext()
    (runs.parent / "secret").write_text("{{ secret }}")
    (odd / "chat_template.jinja").symlink_to("../secret")
    with refused:
        assert main(words) == 2
    printed = "".join(capsys.readouterr())
    assert "chat_template.jinja" in printed and "is a symbolic link out of the folder" in printed
    (odd / "chat_template.jinja").unlink()
    (odd / "here.json").symlink_to("config.json")
    (odd / "data").symlink_to("..")  # a folder that no loader reads
    check_source("runs/odd")
    (odd / "data").unlink()
    (odd / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with refused:
        assert main(words) == 2
    printed = "".join(capsys.readouterr())
    assert "adapter_config.json" in printed and "is a PEFT adapter beside the model" in printed
    assert not (runs.parents[1] / "out").exists()


def test_adapters_in_repositories(hub):
    hub.create("ada/x", {"config.json": "{}", "adapter_config.json": "{}"})
    for _ in range(2):  # on the Hub, in the cache
        with pytest.raises(OSError, match=r"adapter_config\.json of 'ada/x' is a PEFT adapter beside the model"):
            check_source("ada/x")
        for name in ("config.json", "adapter_config.json"):
            hf_hub_download("ada/x", name)


@pytest.mark.usefixtures("disconnected")
def test_a_push_of_a_missing_folder(runs, capsys):
    assert main(["push", "runs/mien", "ada/x"]) == 2
    assert "there is no folder 'runs/mien' (did you mean 'runs/mine'?)" in capsys.readouterr().err


@pytest.mark.usefixtures("disconnected")
def test_pushes_without_a_network(runs, monkeypatch, capsys):
    model = S4ForSequenceClassification(S4Config(hidden_size=8, state_size=4, num_hidden_layers=1))
    expected = rf"^nothing was pushed to 'ada/x': the Hub cannot be reached at {NOWHERE}: .*HF_ENDPOINT"
    with pytest.raises(OSError, match=expected):
        hub_functions.push(model, None, "ada/x")
    assert main(["push", "runs/mine", "ada/x"]) == 2
    assert "error: nothing was pushed to 'ada/x'" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match=r"nothing was pushed to 'ada/x'.*unset HF_HUB_OFFLINE"):
        hub_functions.push(model, None, "ada/x")


def test_convert_checkpoint_itself_takes_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a file or folder"):
        convert_checkpoint(tmp_path / "none", tmp_path / "out")
