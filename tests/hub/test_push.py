"""What a push makes of a repository on a Hub of this machine: whole, in one commit, and nothing stale."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, constants
from safetensors.torch import save_file
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.cli import main
from hf_ssm.hub import client, exporting, pushing
from hf_ssm.models.bundle import HEADER
from hf_ssm.tokenization import build_dna_tokenizer

CARD = "---\nlibrary_name: transformers\n---\n\n# My own words\n"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(client, "WAITS", (0.001,) * 5)


@pytest.fixture
def unproved(monkeypatch):
    monkeypatch.setattr(pushing, "export", lambda *given: exporting.export(*given, prove=False))


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return build_dna_tokenizer()


@pytest.fixture
def model(make_model):
    return make_model("S4", "ForSequenceClassification", vocab_size=12)


@pytest.fixture
def folder(tmp_path):
    """As a run leaves it (the least that counts as a model), with things that must stay behind."""
    path = tmp_path / "run"
    path.mkdir()
    save_file({"weight": torch.arange(100.0)}, path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "something"}')
    (path / "README.md").write_text(CARD)
    for name in ("checkpoint-3/model.safetensors", "last-checkpoint/optimizer.pt", "training_args.bin", "_tmp/x"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("x")
    return path


def titles(hub, repo_id="ada/motifs", revision="main"):
    """Of the commits, oldest first."""
    return [commit.title for commit in reversed(hub.repo(repo_id).commits(revision))]


def test_push_is_proved_and_loads(hub, model, tokenizer):
    address = hf_ssm.hub.push(model, tokenizer, "ada/motifs", private=True, message="A model")
    assert address == f"{hub.endpoint}/ada/motifs"
    repo = hub.repo("ada/motifs")
    assert repo.private and titles(hub) == ["initial commit", "A model"]
    files = repo.files()
    assert {"modeling_hf_ssm_s4.py", "config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert len(json.loads(files["config.json"])["auto_map"]) == 7
    assert b'from_pretrained("ada/motifs"' in files["README.md"]
    loaded = AutoModelForSequenceClassification.from_pretrained("ada/motifs").eval()
    tokens = torch.randint(0, 12, (2, 9))
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_a_failing_proof_creates_nothing(hub, model, tokenizer, monkeypatch):
    def fail(*given, **options):
        raise OSError("the proof of the export failed")

    monkeypatch.setattr("hf_ssm.hub.reload.prove_export", fail)
    with pytest.raises(OSError, match="the proof of the export failed"):
        pushing.push(model, tokenizer, "ada/motifs")
    assert hub.repos == {}


def test_folder_without_the_run_s_leftovers(hub, folder):
    pushing.push_folder(folder, "ada/motifs", message="A run")
    files = hub.repo("ada/motifs").files()
    kept = {path.name for path in folder.iterdir() if path.is_file()} - {"training_args.bin"}
    assert files.keys() == kept | {".gitattributes"}
    assert all(files[name] == (folder / name).read_bytes() for name in kept)
    assert titles(hub) == ["initial commit", "A run"]


def test_pushing_the_same_again_changes_nothing(hub, folder):
    pushing.push_folder(folder, "ada/motifs")
    pushing.push_folder(folder, "ada/motifs", message="Again")
    assert titles(hub) == ["initial commit", "Add model"]


def test_one_changed_file_is_sent_alone(hub, folder):
    pushing.push_folder(folder, "ada/motifs")
    (folder / "README.md").write_text(CARD + "More.\n")
    hub.requests.clear()
    pushing.push_folder(folder, "ada/motifs", message="Words")
    assert titles(hub) == ["initial commit", "Add model", "Words"]
    assert not [path for method, path, _ in hub.requests if method == "PUT"]


@pytest.mark.parametrize("old_size", ["10KB", "10GB"])
def test_weights_of_another_sharding_do_not_survive(hub, model, tmp_path, proofs, old_size):
    """One file beside shards would be read in their place."""
    old, new = tmp_path / "old", tmp_path / "new"
    model.save_pretrained(old, max_shard_size=old_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    model.save_pretrained(new, max_shard_size="10KB" if old_size == "10GB" else "10GB")
    (tmp_path / "old" / "pytorch_model.bin").write_bytes(b"old")
    pushing.push_folder(old, "ada/motifs")
    hub.requests.clear()
    pushing.push_folder(new, "ada/motifs", message="Other shards")
    assert titles(hub) == ["initial commit", "Add model", "Other shards"]
    weights = {path.name for path in new.iterdir() if pushing.is_weights(path.name)}
    assert len({path.name for path in old.iterdir() if pushing.is_weights(path.name)}) != len(weights)
    assert {name for name in hub.repo("ada/motifs").files() if pushing.is_weights(name)} == weights
    loaded = AutoModelForSequenceClassification.from_pretrained("ada/motifs").eval()
    tokens = torch.randint(0, 12, (2, 9))
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


def test_only_what_is_stale_is_deleted(hub, folder):
    code = f"{HEADER} 0.0.1\n"
    stale = {"ops_gone.py": code, "model-00001-of-00002.safetensors": b"\0", "pytorch_model.bin.index.json": "{}"}
    others = {
        "handler.py": "import torch\n",
        "examples/ops_gone.py": code,
        "onnx/model.safetensors": b"\0",
        "notes.txt": "mine",
    }
    hub.create("ada/motifs", files={**stale, **others})
    pushing.push_folder(folder, "ada/motifs")
    files = hub.repo("ada/motifs").files()
    assert others.keys() <= files.keys() and not stale.keys() & files.keys()
    assert stale.keys() <= hub.repo("ada/motifs").files(hub.repo("ada/motifs").commit().parent).keys()


def test_what_brings_no_weights_deletes_none(hub, tmp_path):
    """An adapter, for one."""
    hub.create("ada/motifs", files={"model.safetensors": b"\0"})
    (tmp_path / "adapter_config.json").write_text("{}")
    pushing.push_files({"adapter_config.json": tmp_path / "adapter_config.json"}, "ada/motifs")
    assert {"model.safetensors", "adapter_config.json"} <= hub.repo("ada/motifs").files().keys()


def test_a_card_with_words_outlives_the_export_s(hub, model, tokenizer, unproved):
    hub.create("ada/motifs", files={"README.md": CARD})
    pushing.push(model, tokenizer, "ada/motifs")
    assert hub.repo("ada/motifs").files()["README.md"].decode() == CARD


def test_branch(hub, folder):
    hub.create("ada/motifs", files={"notes.txt": "mine"})
    pushing.push_folder(folder, "ada/motifs", revision="second/try")
    repo = hub.repo("ada/motifs")
    assert "config.json" not in repo.files() and {"config.json", "notes.txt"} <= repo.files("second/try").keys()
    pushing.push_folder(folder, "ada/motifs", revision="second/try")
    assert titles(hub, revision="second/try") == ["initial commit", "Files", "Add model"]


@pytest.mark.parametrize("revision", ["", " ", "0" * 40])
def test_what_is_no_branch_is_refused(hub, folder, revision):
    with pytest.raises(ValueError, match="revision must be the name of a branch"):
        pushing.push_folder(folder, "ada/motifs", revision=revision)
    assert hub.requests == []


@pytest.mark.parametrize("xet", [False, True])
def test_both_ways_for_large_files(hub, folder, xet):
    hub.xet = xet
    pushing.push_folder(folder, "ada/motifs")
    assert hub.repo("ada/motifs").files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert any("xet" in path for _, path, _ in hub.requests) == xet


def test_hub_without_xet(hub, folder, monkeypatch):
    """With hf_xet installed, the client asks such a Hub for xet all the same, and gives up."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    pushing.push_folder(folder, "ada/motifs")
    assert hub.repo("ada/motifs").files()["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert [status for _, path, status in hub.requests if "xet-write-token" in path] == [404]


@pytest.fixture
def proofs(monkeypatch):
    found = []
    monkeypatch.setattr(pushing.reload, "prove_export", lambda *given: found.append(given))
    return found


@pytest.mark.parametrize("with_code", [True, False])
def test_folder_is_proved(hub, model, tokenizer, tmp_path, proofs, with_code):
    path = tmp_path / "saved"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    if not with_code:
        stored = json.loads((path / "config.json").read_text())
        del stored["auto_map"]
        (path / "config.json").write_text(json.dumps(stored))
        for code in path.glob("*.py"):
            code.unlink()
    pushing.push_folder(path, "ada/motifs")
    ((where, proved, with_tokenizer, auto_class),) = proofs
    assert where == path and auto_class == "AutoModelForSequenceClassification"
    assert with_tokenizer.get_vocab() == tokenizer.get_vocab()
    for name, value in model.state_dict().items():
        assert torch.equal(proved.state_dict()[name], value)
    files = hub.repo("ada/motifs").files()
    assert "modeling_hf_ssm_s4.py" in files and len(json.loads(files["config.json"])["auto_map"]) == 7


def test_folder_that_cannot_be_proved(hub, model, tmp_path, monkeypatch):
    def fail(*given):
        raise OSError("the proof of the export failed")

    monkeypatch.setattr(pushing.reload, "prove_export", fail)
    model.save_pretrained(tmp_path / "saved")
    with pytest.raises(OSError, match="the proof of the export failed"):
        pushing.push_folder(tmp_path / "saved", "ada/motifs")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, "architectures": ["Other"]}))
    with pytest.raises(ValueError, match=r"has the architectures \['Other'\]"):
        pushing.push_folder(tmp_path / "saved", "ada/motifs")
    assert hub.repos == {}


@pytest.mark.parametrize("present", [[], ["config.json"], ["model.safetensors"]])
def test_folder_without_a_model_is_refused(hub, tmp_path, present):
    for name in present:
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match="output folder of a finished run"):
        pushing.push_folder(tmp_path, "ada/motifs")
    assert hub.requests == []


def test_damaged_folder_is_refused(hub, folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"is not whole: model\.safetensors: .*cut off"):
        pushing.push_folder(folder, "ada/motifs")
    assert hub.requests == []


def test_card_with_bad_metadata_is_refused(hub, folder):
    (folder / "README.md").write_text("---\ntags: [a\n---\n")
    with pytest.raises(ValueError, match=r"README\.md has metadata that cannot be read"):
        pushing.push_folder(folder, "ada/motifs")
    assert hub.repos == {}


@pytest.mark.parametrize("name", ["README.md", "notes/settings.json"])
def test_a_token_in_a_file_is_not_published(hub, folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(f"hub_token: {hub.token}")
    with pytest.raises(ValueError, match=f"{name} has the token of the login in it") as caught:
        pushing.push_folder(folder, "ada/motifs")
    assert hub.token not in str(caught.value)
    assert hub.repos == {}


def test_somebody_else_s_commit_in_between_survives(hub, folder, monkeypatch):
    repo, send = hub.create("ada/motifs"), HfApi.create_commit

    def overtaken(self, *given, **options):
        monkeypatch.setattr(HfApi, "create_commit", send)
        blobs = dict(repo.commit().blobs)
        # What is stale is so from now on.
        blobs["other.txt"] = blobs["pytorch_model.bin"] = blobs[".gitattributes"]
        repo.write("main", blobs, "Somebody else", "", "ada")
        return send(self, *given, **options)

    monkeypatch.setattr(HfApi, "create_commit", overtaken)
    pushing.push_folder(folder, "ada/motifs")
    assert titles(hub) == ["initial commit", "Somebody else", "Add model"]
    assert "other.txt" in repo.files() and "pytorch_model.bin" not in repo.files()


def test_command(hub, folder, capsys):
    assert main(["push", str(folder), "ada/motifs", "--private", "--revision", "next"]) == 0
    assert capsys.readouterr().out == f"Pushed to {hub.endpoint}/ada/motifs\n"
    assert hub.repo("ada/motifs").private and "config.json" in hub.repo("ada/motifs").files("next")


def test_the_readme_runs(hub, model, tokenizer, unproved):
    readme = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    pushes, loads = (part.split("```")[0] for part in readme.split("## The Hub")[1].split("```python\n")[1:3])
    exec(pushes.replace("user/name", "ada/name"), {"model": model, "tokenizer": tokenizer})
    assert titles(hub, "ada/name") == ["initial commit", "Add model"]
    assert 'from_pretrained("user/name", trust_remote_code=True)' in loads
    again = AutoModelForSequenceClassification.from_pretrained("ada/name")
    assert torch.equal(again.classifier.weight, model.classifier.weight)
