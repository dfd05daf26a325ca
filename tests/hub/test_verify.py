"""Whether damage to a checkpoint is found, and named."""

import json
import os
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants, snapshot_download
from safetensors.torch import load_file, save_file

import hf_ssm
from hf_ssm.cli import main
from hf_ssm.hub import client, verifying
from hf_ssm.hub.verifying import check_folder, verify

NAME = "ada/motifs"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(client, "WAITS", (0.001,) * 5)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """One file of weights, and the same in shards."""
    config = hf_ssm.S4Config(hidden_size=8, state_size=8, num_hidden_layers=2)
    model = hf_ssm.S4ForSequenceClassification(config)
    single, shards = (tmp_path_factory.mktemp(name) for name in ("single", "shards"))
    model.save_pretrained(single)
    model.save_pretrained(shards, max_shard_size="1KB")
    return single, shards


def copied(source: Path, target: Path) -> Path:
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


@pytest.fixture
def coded(saved, tmp_path):
    return copied(saved[0], tmp_path / "coded")


@pytest.fixture
def single(saved, tmp_path):
    return without_code(copied(saved[0], tmp_path / "single"))


@pytest.fixture
def shards(saved, tmp_path):
    return without_code(copied(saved[1], tmp_path / "shards"))


def without_code(folder: Path) -> Path:
    """Its many files take time."""
    config = json.loads((folder / "config.json").read_text())
    del config["auto_map"]
    (folder / "config.json").write_text(json.dumps(config))
    for path in folder.glob("*.py"):
        path.unlink()
    return folder


def flip(path: Path) -> None:
    """One bit of the last byte, so that sizes and headers stay right."""
    content = path.read_bytes()
    target = path.resolve()
    target.chmod(0o644)
    target.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_whole_folders(coded, single, shards):
    assert len(list(shards.glob("*.safetensors"))) > 2
    for folder in (coded, single, shards):
        found = verify(folder)
        assert found.problems == () and found.commit is None
        assert found.checked == len(list(folder.iterdir()))


def test_cut_off(single):
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (problem,) = check_folder(single)
    assert problem.path == "model.safetensors" and "cut off" in problem.what and str(single) not in problem.what


def test_no_safetensors_at_all(single):
    (single / "model.safetensors").write_bytes(b"<html>busy</html>")
    assert [problem.path for problem in check_folder(single)] == ["model.safetensors"]


def test_no_weights(single):
    (single / "model.safetensors").unlink()
    assert str(check_folder(single)[0]) == "model.safetensors: is not there, nor are there other weights"


def test_pickle(single):
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    (problem,) = check_folder(single)
    assert problem.path == "pytorch_model.bin" and "a pickle" in problem.what


def test_missing_shard(shards):
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    (problem,) = check_folder(shards)
    assert problem.path == gone.name and "is not there, but model.safetensors.index.json names it" in problem.what


def test_index_is_gone(shards):
    (shards / "model.safetensors.index.json").unlink()
    problems = check_folder(shards)
    assert [problem.path for problem in problems] == sorted(path.name for path in shards.glob("*.safetensors"))
    assert "there is no model.safetensors.index.json" in problems[0].what


@pytest.mark.parametrize("lost", [True, False])
def test_index_against_its_shards(shards, lost):
    path = sorted(shards.glob("*.safetensors"))[0]
    tensors = load_file(path)
    name = next(iter(tensors))
    if lost:
        tensors["instead"] = tensors.pop(name)
    else:
        tensors["zzz"] = torch.zeros(1)
    save_file(tensors, path, metadata={"format": "pt"})
    (problem,) = check_folder(shards)
    assert problem.path == path.name and "index" in problem.what


def test_two_kinds_of_weights(shards, single):
    (shards / "model.safetensors").write_bytes((single / "model.safetensors").read_bytes())
    (problem,) = check_folder(shards)
    assert problem.path == "model.safetensors" and "in the place of the shards" in problem.what


def test_shard_that_no_index_names(shards):
    extra = shards / "model-00009-of-00009.safetensors"
    save_file({"x": torch.zeros(1)}, extra)
    assert [problem.path for problem in check_folder(shards)] == [extra.name]


@pytest.mark.parametrize("change", [{"weight_map": 3}, {"metadata": 1}])
def test_bad_index(shards, change):
    path = shards / "model.safetensors.index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert path.name in [problem.path for problem in check_folder(shards)]


@pytest.mark.parametrize("change", [{"hidden_size": "many"}, {"num_hidden_layers": -1}])
def test_bad_value_in_the_configuration(single, change):
    path = single / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (problem,) = check_folder(single)
    assert problem.path == "config.json" and next(iter(change)) in problem.what


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_no_json(single, name):
    (single / name).write_text('{"a": ')
    assert [problem.path for problem in check_folder(single)] == [name]


def test_no_configuration(single):
    (single / "config.json").unlink()
    assert [str(problem) for problem in check_folder(single)] == ["config.json: is not there"]


def test_missing_code(coded):
    assert (coded / "configuration_hf_ssm_s4.py").unlink() is None
    (problem,) = check_folder(coded)
    assert str(problem) == "configuration_hf_ssm_s4.py: is not there, but the model's code needs it"


def test_code_that_is_cut_off(coded):
    path = coded / "modeling_hf_ssm_s4.py"
    source = path.read_text()
    path.write_text(source[: source.index("class ")] + "class S4(")
    (problem,) = check_folder(coded)
    assert problem.path == path.name and "cannot be read as code" in problem.what
    path.write_text(source[: source.index("class ")])
    assert all("has no class S4" in problem.what for problem in check_folder(coded)) and len(check_folder(coded)) == 6


def test_code_is_not_run(coded, tmp_path):
    path = coded / "modeling_hf_ssm_s4.py"
    path.write_text(f"open({str(tmp_path / 'run')!r}, 'w')\n" + path.read_text())
    assert check_folder(coded) == [] and not (tmp_path / "run").exists()


@pytest.fixture
def pushed(hub, single):
    return hub.create(NAME, files={path.name: path.read_bytes() for path in single.iterdir()})


def test_repository_is_downloaded_and_compared(hub, pushed):
    found = verify(NAME)
    assert found.problems == () and found.commit == pushed.commit().oid
    assert found.checked == len(pushed.files())
    hub.requests.clear()
    assert verify(NAME) == found
    assert not [path for _, path, _ in hub.requests if "/resolve/" in path]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_flipped_byte_in_the_cache(pushed, name):
    flip(Path(snapshot_download(NAME), name))
    assert name in [problem.path for problem in verify(NAME).problems]


def test_flipped_byte_on_the_way(hub, pushed):
    """The client sees the size only."""
    hub.fail("GET", "/objects/", flip=True)
    (problem,) = verify(NAME).problems
    assert str(problem) == "model.safetensors: its sha256 is not the one on the Hub"


@pytest.mark.parametrize("fault", [{"truncate": 0}, {"short": 500}], ids=str)
def test_truncated_download_is_never_loaded(hub, pushed, fault):
    hub.fail("GET", "/objects/", **fault, times=99)
    with pytest.raises(OSError):
        verify(NAME)
    with pytest.raises(OSError):
        hf_ssm.S4ForSequenceClassification.from_pretrained(NAME)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("snapshots/*/model.safetensors"))


def test_only_part_of_it_is_in_the_cache(pushed):
    """As after `from_pretrained`, which takes what it needs."""
    hf_ssm.S4ForSequenceClassification.from_pretrained(NAME)
    found = verify(NAME)
    assert found.problems == () and found.checked + len(found.absent) == len(pushed.files())
    assert ".gitattributes" in found.absent and "model.safetensors" not in found.absent


def test_file_that_is_not_the_repository_s(pushed):
    folder = Path(snapshot_download(NAME))
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"x")
    assert "model-00001-of-00001.safetensors: it is not in the repository" in map(str, verify(NAME).problems)


def test_old_revision(hub, pushed, single):
    old = pushed.commit().oid
    snapshot_download(NAME, revision=old)
    blobs = dict(pushed.commit().blobs)
    del blobs["model.safetensors"]
    pushed.write("main", blobs, "New", "", "ada")
    assert verify(NAME, old).problems == ()
    assert [problem.path for problem in verify(NAME, "main").problems] == ["model.safetensors"]


@pytest.mark.parametrize("path", ["/tree/", "/api/models/"])
def test_busy_hub(hub, pushed, path):
    hub.fail("GET", path, status=503, times=2)
    assert verify(NAME).problems == ()


def _gated(hub, patch):
    hub.create("ben/motifs", files={"config.json": "{}"}, gated="manual")


def _private(hub, patch):
    hub.create("ben/motifs", files={"config.json": "{}"}, private=True)


def _wrong_token(hub, patch):
    _gated(hub, patch)
    patch.setenv("HF_TOKEN", "hf_" + "x" * 34)


def _offline(hub, patch):
    patch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        (lambda hub, patch: None, ValueError, "no repository 'ben/motifs' that this login may see"),
        (_private, ValueError, "no repository 'ben/motifs' that this login may see"),
        (_gated, ValueError, "'ben/motifs' is gated"),
        (_wrong_token, ValueError, "refuses the token"),
        (_offline, ValueError, "offline"),
    ],
)
def test_what_cannot_be_asked(hub, monkeypatch, capsys, break_it, error, message):
    break_it(hub, monkeypatch)
    with pytest.raises(error, match=message) as caught:
        verify("ben/motifs")
    assert "\n" not in str(caught.value) and os.environ["HF_TOKEN"] not in str(caught.value)
    assert main(["verify", "ben/motifs"]) == 2
    assert f"hf-ssm: error: {caught.value}" == capsys.readouterr().err.splitlines()[-1]


def test_missing_revision(hub, pushed):
    with pytest.raises(ValueError, match="'ada/motifs' has no revision 'v2'"):
        verify(NAME, "v2")


@pytest.mark.parametrize("source", ["./nowhere", "/nowhere", "a/b/c", "~/nowhere", Path("nowhere")])
def test_no_folder(source):
    with pytest.raises(ValueError, match="is no folder"):
        verify(source)


def test_revision_of_a_folder(single):
    with pytest.raises(ValueError, match="is for a repository on the Hub"):
        verify(single, "main")


def test_command(hub, pushed, single, capsys):
    assert main(["verify", str(single)]) == 0
    assert "nothing found wrong" in capsys.readouterr().out
    (single / "model.safetensors").unlink()
    (single / "generation_config.json").write_text("{")
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(single)])
    other, bad, last = capsys.readouterr().out.splitlines()
    assert caught.value.code == 1
    assert bad.startswith("generation_config.json: ") and other.startswith("model.safetensors: ") and "2 found" in last
    flip(Path(snapshot_download(NAME), "model.safetensors"))
    with pytest.raises(SystemExit):
        main(["verify", NAME, "--revision", "main"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("model.safetensors: ") and "hf download --force-download" in lines[2]


def test_public_name():
    assert hf_ssm.hub.verify is verifying.verify
