"""transformers and the `hf` command against the Hub on this machine, as users meet them."""

import subprocess
import sys

import pytest
import torch
from huggingface_hub import HfApi
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast


@pytest.fixture
def model():
    config = BertConfig(vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    return BertModel(config).eval()


@pytest.fixture
def tokenizer():
    words = {word: place for place, word in enumerate(["[UNK]", "[PAD]", "A", "C", "G", "T"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")


def same(first, second):
    return all(torch.equal(first.state_dict()[name], value) for name, value in second.state_dict().items())


@pytest.mark.parametrize("xet", [False, True])
def test_models_go_up_and_come_back(hub, model, tokenizer, xet):
    hub.xet = xet
    model.push_to_hub("ada/bert", private=True, commit_message="Weights")
    tokenizer.push_to_hub("ada/bert")
    repo = hub.repo("ada/bert")
    assert repo.private and {"config.json", "model.safetensors", "tokenizer.json"} <= set(repo.files())
    HfApi().create_tag("ada/bert", tag="v1")
    changed = BertModel(model.config).eval()
    changed.push_to_hub("ada/bert", revision="try", create_pr=False)
    assert repo.branches.keys() == {"main", "try"}
    assert same(AutoModel.from_pretrained("ada/bert"), model)
    assert same(AutoModel.from_pretrained("ada/bert", revision="v1"), model)
    assert same(AutoModel.from_pretrained("ada/bert", revision="try"), changed)
    assert AutoTokenizer.from_pretrained("ada/bert")("GAT").input_ids == [4, 2, 5]
    hub.requests.clear()
    AutoModel.from_pretrained("ada/bert", local_files_only=True)
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("ada/none", {}, r"is not a local folder and is not a valid model identifier"),
        ("ada/secret", {"token": False}, r"is not a local folder and is not a valid model identifier"),
        ("ada/asked", {"token": False}, r"trying to access a gated repo"),
        ("ada/open", {"revision": "v9"}, r"v9 is not a valid git identifier"),
        ("ada/empty", {}, r"Should have a `model_type` key in its config.json"),
    ],
)
def test_what_transformers_says(hub, name, arguments, message):
    files = {"config.json": '{"model_type": "bert"}'}
    hub.create("ada/open", files)
    hub.create("ada/empty")
    hub.create("ada/secret", files, private=True)
    hub.create("ada/asked", files, gated="auto")
    with pytest.raises((OSError, ValueError), match=message):
        AutoConfig.from_pretrained(name, **arguments)


def test_the_hf_command(hub, tmp_path):
    env = hub.env()
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "model.safetensors").write_bytes(bytes(range(256)) * 100)

    def hf(*words, **changes):
        command = [sys.executable, "-m", "huggingface_hub.cli.hf", *map(str, words)]
        return subprocess.run(command, env=env | changes, capture_output=True, text=True, timeout=600)

    made = hf("repos", "create", "ada/x", "--private")
    assert made.returncode == 0, made.stderr
    sent = hf("upload", "ada/x", tmp_path / "up", "--commit-message", "By hand")
    assert sent.returncode == 0 and hub.token not in sent.stdout + sent.stderr, sent.stderr
    repo = hub.repo("ada/x")
    assert repo.private and repo.commit().title == "By hand"
    got = hf("download", "ada/x", "--local-dir", tmp_path / "down")
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "down" / "model.safetensors").read_bytes() == bytes(range(256)) * 100
    refused = hf("download", "ada/x", HF_TOKEN="hf_wrong")
    assert refused.returncode != 0 and "hf_wrong" not in refused.stdout + refused.stderr
    assert all(status for _, _, status in hub.requests)


def test_environments(hub, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    first, second = hub.env(), hub.env(HF_TOKEN=None, MORE="1")
    assert first["HF_ENDPOINT"] == hub.endpoint and first["HF_TOKEN"] == hub.token
    assert first["HF_HOME"] != second["HF_HOME"] and "HF_TOKEN" not in second and second["MORE"] == "1"
    assert not {"HTTPS_PROXY", "HF_HUB_OFFLINE"} & first.keys() and first["HF_HUB_DISABLE_XET"] == "1"
    hub.xet = True
    assert hub.env()["HF_HUB_DISABLE_XET"] == "0"
