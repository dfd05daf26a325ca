"""Malicious and damaged checkpoints: a one-line error, no code run, nothing written, no memory allocated."""

import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from hf_ssm import HyenaConfig, S4Config, S4ForSequenceClassification, S4Model, SelectiveSSMModel, cli
from hf_ssm.models.base.files import check_inside, read_safetensors_header
from hf_ssm.models.base.state_dicts import load_state_dict


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A model of hf_ssm."""
    torch.manual_seed(0)
    config = S4Config(hidden_size=8, state_size=4, num_hidden_layers=2)
    folder = tmp_path_factory.mktemp("good")
    S4ForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def good_mamba(tmp_path_factory):
    """A Mamba of transformers, which `hf-ssm convert` reads."""
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=12, hidden_size=8, num_hidden_layers=2, state_size=4)
    folder = tmp_path_factory.mktemp("mamba")
    transformers.MambaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(good, tmp_path):
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


@pytest.fixture
def mamba(good_mamba, tmp_path):
    return Path(shutil.copytree(good_mamba, tmp_path / "mamba"))


class RunsCode:
    """Creates a folder when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def everything_below(path):
    return {found: found.lstat().st_mtime_ns for found in sorted(path.rglob("*"))}


def refuses_to_convert(source, capsys, *said):
    """`hf-ssm convert` fails with one line and writes nothing."""
    place = Path(source).parent
    before = everything_below(place)
    assert cli.main(["convert", str(source), str(place / "target")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if line.startswith("hf-ssm: error")]
    assert len(lines) == 1
    assert len(lines[0]) < 1000
    for part in said:
        assert part in lines[0]
    assert everything_below(place) == before


def refuses_to_load(folder, message, *classes):
    """Model class and Auto class fail with one line and write nothing."""
    before = everything_below(folder.parent)
    for model_class in classes or (S4ForSequenceClassification, AutoModelForSequenceClassification):
        with pytest.raises((ValueError, OSError), match=message) as caught:
            model_class.from_pretrained(folder)
        assert str(caught.value).strip().count("\n") == 0
    assert everything_below(folder.parent) == before


def with_header(path, header, data=b""):
    """Write a safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def entry(begin, end, shape=(2,), kind="F32"):
    return {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}


DAMAGED = {
    "cut off": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cut off or damaged"),
    "cut off in the header": (lambda path: path.write_bytes(path.read_bytes()[:300]), "claims a header"),
    "empty": (lambda path: path.write_bytes(b""), "0 bytes are too few"),
    "seven bytes": (lambda path: path.write_bytes(b"\0" * 7), "7 bytes are too few"),
    "2 GB claimed": (lambda path: path.write_bytes(struct.pack("<Q", 2 << 30) + b"{}"), "a header of 2147483648 bytes"),
    "all claimed": (lambda path: path.write_bytes(b"\xff" * 8 + b"{}"), "a header of 18446744073709551615 bytes"),
    "no JSON": (lambda path: with_header(path, b"not JSON"), "its header is no valid JSON"),
    "no text": (lambda path: with_header(path, b"\xff\xfe\xfd"), "its header is no valid JSON"),
    "a list": (lambda path: with_header(path, [1]), "must hold an object"),
    "deep": (lambda path: with_header(path, b'{"a":' * 50_000), "nested too deeply"),
    "no entry": (lambda path: with_header(path, {"a": 3}), "'a' has no shape"),
    "negative": (lambda path: with_header(path, {"a": entry(0, 8, (-2,))}, bytes(8)), "'a' has no shape"),
    "no numbers": (lambda path: with_header(path, {"a": entry("0", "8")}, bytes(8)), "'a' has no shape"),
    "beyond the end": (lambda path: with_header(path, {"a": entry(0, 8)}), "speaks of 8"),
    "huge shape": (lambda path: with_header(path, {"a": entry(0, 8, (1 << 40, 2))}, bytes(8)), "do not agree"),
    "huge and beyond": (
        lambda path: with_header(path, {"a": entry(0, 1 << 43, (1 << 40, 2))}, bytes(8)),
        "cut off or damaged",
    ),
    "overlap": (
        lambda path: with_header(path, {"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)),
        "'b' overlaps another",
    ),
    "gap": (lambda path: with_header(path, {"a": entry(0, 8), "b": entry(12, 20)}, bytes(20)), "'b' leaves a gap"),
    "rest": (lambda path: with_header(path, {"a": entry(0, 8)}, bytes(20)), "holds 20 bytes"),
    "backwards": (lambda path: with_header(path, {"a": entry(8, 0)}, bytes(8)), "do not agree"),
    "unknown type": (lambda path: with_header(path, {"a": entry(0, 8, kind="PICKLE")}, bytes(8)), "do not agree"),
    "twice": (
        lambda path: with_header(path, f'{{"a": {json.dumps(entry(0, 8))}, "a": {{}}}}'.encode(), bytes(8)),
        "stands there twice",
    ),
}


class TestSafetensors:
    @pytest.mark.parametrize("damage", DAMAGED)
    def test_damaged(self, damage, folder, mamba, tmp_path, capsys):
        spoil, said = DAMAGED[damage]
        for place in (folder, mamba):
            spoil(place / "model.safetensors")
        refuses_to_load(folder, f"weights of .*model.safetensors.* cannot be read.*{said}")
        refuses_to_convert(mamba, capsys, "cannot be read", said)
        (tmp_path / "alone").mkdir()
        shutil.copy(folder / "model.safetensors", tmp_path / "alone" / "state.safetensors")
        refuses_to_convert(tmp_path / "alone" / "state.safetensors", capsys, "cannot be read", said)

    def test_whole_files_pass(self, tmp_path):
        tensors = {
            **{"a": torch.ones(2, 3), "b": torch.ones(()), "c": torch.ones(0, 4), "d": torch.ones(5, dtype=torch.bool)},
            **{"e": torch.ones(3, dtype=torch.bfloat16), "f": torch.ones(3, dtype=torch.float8_e4m3fn)},
            **{"g": torch.ones(2, dtype=torch.complex64), "h": torch.ones(2, dtype=torch.int64)},
        }
        save_file(tensors, tmp_path / "all.safetensors", metadata={"format": "pt"})
        found = read_safetensors_header(tmp_path / "all.safetensors")
        assert {name: shape for name, (_, shape) in found.items()} == {
            name: tuple(tensor.shape) for name, tensor in tensors.items()
        }
        assert load_state_dict(tmp_path / "all.safetensors").keys() == tensors.keys()

    def test_a_pipe_does_not_block(self, folder, capsys):
        (folder / "model.safetensors").unlink()
        os.mkfifo(folder / "model.safetensors")
        with pytest.raises((ValueError, OSError), match=r"no regular file|no file named"):
            S4ForSequenceClassification.from_pretrained(folder)

    def test_memory_is_not_taken(self, tmp_path, folder):
        """Headers that claim 2 GB and 8 TB do not make the process allocate 200 MB."""
        with_header(folder / "model.safetensors", {"a": entry(0, 1 << 43, (1 << 41,))})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(2):
            with pytest.raises(ValueError, match="cannot be read"):
                S4ForSequenceClassification.from_pretrained(folder)
            (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2 << 30) + b"{}")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def as_shards(folder, names):
    """Replace the weights of a folder by an index that refers to this file name."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(tensors, names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors


class TestPaths:
    @pytest.mark.parametrize(
        "name",
        ["../x.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors", "a/x.safetensors", "..", "C:x", "a\\b"],
    )
    def test_an_index_that_leads_elsewhere(self, name, folder, mamba, tmp_path, capsys):
        for place in (folder, mamba):
            tensors = as_shards(place, name)
            # The index refers to an existing, valid file.
            save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
        refuses_to_load(folder, "weights must lie in the folder itself")
        refuses_to_convert(mamba, capsys, "weights must lie in the folder itself")

    def test_an_index_of_files_that_are_there(self, folder, good):
        tensors = as_shards(folder, "part.safetensors")
        save_file(tensors, folder / "part.safetensors", metadata={"format": "pt"})
        ids = torch.randint(0, 12, (2, 9))
        found, expected = (S4ForSequenceClassification.from_pretrained(place).eval() for place in (folder, good))
        assert torch.equal(found(ids).logits, expected(ids).logits)

    @pytest.mark.parametrize(
        ("index", "said"),
        [
            ("[]", "must hold an object"),
            ("{", "no valid JSON"),
            ('{"metadata": {}}', "no `weight_map`"),
            ('{"metadata": {}, "weight_map": ["a"]}', "no `weight_map`"),
            ('{"metadata": {}, "weight_map": {"a": 3}}', "no `weight_map`"),
            ('{"weight_map": {"a": "b.safetensors"}}', "no `metadata`"),
            ('{"metadata": {}, "weight_map": {"a": "b.safetensors"}}', "there is no file"),
            ("[" * 100_000, "nested too deeply"),
        ],
    )
    def test_an_index_that_is_none(self, index, said, folder, mamba, capsys):
        for place in (folder, mamba):
            as_shards(place, "part.safetensors")
            (place / "model.safetensors.index.json").write_text(index)
        refuses_to_load(folder, said)
        refuses_to_convert(mamba, capsys, said)

    @pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
    def test_a_link_that_leads_out(self, name, folder, mamba, tmp_path, capsys):
        for place in (folder, mamba):
            (place / name).rename(tmp_path / f"{place.name}-{name}")
            (place / name).symlink_to(tmp_path / f"{place.name}-{name}")
        refuses_to_load(folder, "a link that leads out of its folder")
        refuses_to_convert(mamba, capsys, "a link that leads out of its folder")

    def test_an_adapter_that_leads_elsewhere(self, mamba, capsys):
        adapter = {"peft_type": "LORA", "base_model_name_or_path": "../elsewhere"}
        (mamba / "adapter_config.json").write_text(json.dumps(adapter))
        refuses_to_convert(mamba, capsys, "holds an adapter of PEFT")

    def test_a_tokenizer_that_leads_out(self, mamba, tmp_path, capsys):
        (tmp_path / "secret").write_text("{}")
        (mamba / "tokenizer.json").symlink_to(tmp_path / "secret")
        refuses_to_convert(mamba, capsys, "tokenizer.json' is a link that leads out of its folder")

    def test_links_of_the_cache_and_within_the_folder(self, good, tmp_path):
        """Links from a snapshot of the cache to its blobs, a link to the folder, a link within the folder."""
        snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
        blobs = tmp_path / "models--a--b" / "blobs"
        for place in (snapshot / "below", blobs):
            place.mkdir(parents=True)
        for path in good.iterdir():
            shutil.copy(path, blobs / f"hash-{path.name}")
            (snapshot / path.name).symlink_to(Path("../../blobs") / f"hash-{path.name}")
            (snapshot / "below" / path.name).symlink_to(Path("../../../blobs") / f"hash-{path.name}")
        (tmp_path / "link").symlink_to(good, target_is_directory=True)
        inside = Path(shutil.copytree(good, tmp_path / "inside"))
        (inside / "model.safetensors").rename(inside / "other.safetensors")
        (inside / "model.safetensors").symlink_to("other.safetensors")
        for place in (snapshot, snapshot / "below", tmp_path / "link", inside):
            S4ForSequenceClassification.from_pretrained(place)
        S4ForSequenceClassification.from_pretrained(snapshot, subfolder="below")
        (snapshot / "config.json").unlink()
        (snapshot / "config.json").symlink_to(good / "config.json")
        with pytest.raises(ValueError, match="leads out"):
            check_inside(snapshot / "config.json", snapshot)


class TestPickles:
    def spoiled(self, path, marker):
        """Write pickles that run code, in all formats; returns their names."""
        torch.save({"embedding.weight": RunsCode(marker)}, path / "new.pth")
        torch.save({"a": RunsCode(marker)}, path / "old.pth", _use_new_zipfile_serialization=False)
        (path / "bare.pth").write_bytes(pickle.dumps(RunsCode(marker)))
        torch.save(RunsCode(marker), path / "model.ckpt")
        return ["new.pth", "old.pth", "bare.pth", "model.ckpt"]

    def test_code_in_a_state_dict(self, tmp_path, capsys):
        marker = tmp_path / "it-ran"
        (tmp_path / "files").mkdir()
        for name in self.spoiled(tmp_path / "files", marker):
            source = tmp_path / "files" / name
            refuses_to_convert(source, capsys, "no file of tensors that torch can load safely")
            assert not marker.exists()
        # The code does run with `weights_only=False`.
        torch.load(tmp_path / "files" / "model.ckpt", weights_only=False)
        assert marker.exists()

    def test_code_in_a_folder(self, folder, mamba, tmp_path, capsys):
        marker = tmp_path / "it-ran"
        for place in (folder, mamba):
            (place / "model.safetensors").unlink()
            torch.save({"weight": RunsCode(marker)}, place / "pytorch_model.bin")
        refuses_to_load(folder, "weights of .* cannot be read: a damaged pickle, or one that runs code")
        refuses_to_convert(mamba, capsys, "cannot be read: a damaged pickle, or one that runs code")
        assert not marker.exists()

    @pytest.mark.parametrize("length", [0, 1, 100, 500])
    def test_a_folder_with_a_cut_pickle(self, length, folder, mamba, capsys):
        for place in (folder, mamba):
            torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
            (place / "model.safetensors").unlink()
            whole = (place / "pytorch_model.bin").read_bytes()
            (place / "pytorch_model.bin").write_bytes(whole[:length])
        refuses_to_load(folder, "weights of .* cannot be read: a damaged pickle")
        refuses_to_convert(mamba, capsys, "cannot be read: a damaged pickle")

    def test_code_beside_the_weights_is_not_read(self, folder, mamba, tmp_path):
        marker = tmp_path / "it-ran"
        for place in (folder, mamba):
            for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
                torch.save({"weight": RunsCode(marker)}, place / name)
        S4ForSequenceClassification.from_pretrained(folder)
        assert cli.main(["convert", str(mamba), str(tmp_path / "target")]) == 0
        assert not marker.exists()

    def test_code_in_python_files_is_not_run(self, mamba, tmp_path, monkeypatch, capsys):
        marker = tmp_path / "it-ran"
        (mamba / "code.py").write_text(f"import os\nos.mkdir({str(marker)!r})\nclass Model: pass\nclass Tokens: pass\n")
        config = json.loads((mamba / "config.json").read_text())
        config["auto_map"] = {"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Model"}
        (mamba / "config.json").write_text(json.dumps(config))
        tokens = {"tokenizer_class": "Tokens", "auto_map": {"AutoTokenizer": ["code.Tokens", "code.Tokens"]}}
        (mamba / "tokenizer_config.json").write_text(json.dumps(tokens))
        # It never asks either.
        monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
        refuses_to_convert(mamba, capsys, "the tokenizer of")
        assert not marker.exists()
        (mamba / "tokenizer_config.json").unlink()
        assert cli.main(["convert", str(mamba), str(tmp_path / "target")]) == 0
        assert not marker.exists()

    def test_a_packed_file(self, tmp_path, capsys):
        (tmp_path / "files").mkdir()
        source = tmp_path / "files" / "packed.pth"
        torch.save({"a": torch.zeros(1 << 18)}, tmp_path / "plain.pth")
        with zipfile.ZipFile(tmp_path / "plain.pth") as plain, zipfile.ZipFile(source, "w") as packed:
            for item in plain.infolist():
                packed.writestr(item.filename, plain.read(item), compress_type=zipfile.ZIP_DEFLATED)
        assert source.stat().st_size < 1 << 14
        refuses_to_convert(source, capsys, "would unpack to")

    def test_a_tensor_that_repeats_itself(self, tmp_path, capsys):
        (tmp_path / "files").mkdir()
        source = tmp_path / "files" / "repeated.pth"
        torch.save({"embedding.weight": torch.ones(1, 1).expand(1 << 20, 1 << 20)}, source)
        assert source.stat().st_size < 1 << 14
        refuses_to_convert(source, capsys, "claims the shape (1048576, 1048576)")

    @pytest.mark.parametrize("found", [[1], 3, {"a": 1}, {1: torch.ones(1)}, {"model": {"a": "b"}}, torch.ones(2), {}])
    def test_no_state_dict(self, found, tmp_path, capsys):
        (tmp_path / "files").mkdir()
        torch.save(found, tmp_path / "files" / "other.pth")
        refuses_to_convert(tmp_path / "files" / "other.pth", capsys, "state dict")

    @pytest.mark.parametrize("length", [0, 1, 10, 100, 500])
    def test_cut_off(self, length, tmp_path, capsys):
        (tmp_path / "files").mkdir()
        torch.save({"a": torch.ones(100)}, tmp_path / "whole.pth")
        source = tmp_path / "files" / "cut.pth"
        source.write_bytes((tmp_path / "whole.pth").read_bytes()[:length])
        refuses_to_convert(source, capsys, "no file of tensors")


def configured(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in (config | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))


class TestConfigurations:
    @pytest.mark.parametrize("kind", ["bert", "mamba", "gpt2", "hf_ssm_hyena", "no_such_type", 3, ["mamba"], {}])
    def test_another_type(self, kind, folder):
        configured(folder, model_type=kind)
        refuses_to_load(folder, r"has the `model_type`", S4ForSequenceClassification, S4Model, S4Config)

    def test_no_type(self, folder, mamba, capsys):
        configured(folder, model_type=None)
        refuses_to_load(folder, "has the `model_type` None", S4ForSequenceClassification, S4Config)
        configured(mamba, model_type=None)
        refuses_to_convert(mamba, capsys, "no `model_type`")

    @pytest.mark.parametrize("kind", ["bert", "no_such_type", 3, ["mamba"], {}, "hf_ssm_s4"])
    def test_convert_reads_the_types_that_it_knows(self, kind, mamba, capsys):
        configured(mamba, model_type=kind)
        refuses_to_convert(mamba, capsys, "of type" if kind != "hf_ssm_s4" else "hf_ssm already")

    def test_weights_of_another_model(self, folder, tmp_path, capsys):
        """transformers would warn and initialise the weights at random."""
        bert = transformers.BertConfig(
            vocab_size=12, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
        transformers.BertModel(bert).save_pretrained(tmp_path / "bert")
        with pytest.raises(ValueError, match="has the `model_type` 'bert'"):
            S4Model.from_pretrained(tmp_path / "bert")
        config = S4Config(hidden_size=8, state_size=4)
        with pytest.raises(ValueError, match=r"holds no weight of a S4Model \(such as embed_tokens\.weight\)"):
            S4Model.from_pretrained(tmp_path / "bert", config=config)
        shutil.copy(tmp_path / "bert" / "model.safetensors", folder)
        refuses_to_load(folder, r"holds no weight of a S4ForSequenceClassification")

    def test_a_mamba_that_calls_itself_ours(self, mamba):
        configured(mamba, model_type="hf_ssm_s4", hidden_size=8, state_size=4, num_hidden_layers=2)
        refuses_to_load(mamba, "holds no weight of a S4Model|has no argument|does not know", S4Model)

    def test_mamba_is_mamba(self, mamba):
        SelectiveSSMModel.from_pretrained(mamba)
        with pytest.raises(ValueError, match="`model_type` 'mamba'"):
            HyenaConfig.from_pretrained(mamba)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "valid JSON"),
            ("not JSON", "valid JSON"),
            ("{", "valid JSON"),
            ("[1, 2]", "must hold an object"),
            ("3", "must hold an object"),
            ('{"a":' * 100_000, "nested too deeply"),
            ("[" * 100_000, "nested too deeply"),
        ],
    )
    def test_no_configuration(self, text, said, folder, mamba, capsys):
        for place in (folder, mamba):
            (place / "config.json").write_text(text)
        refuses_to_load(folder, said, S4ForSequenceClassification)
        refuses_to_convert(mamba, capsys, said)
        with pytest.raises((ValueError, OSError, RecursionError, TypeError, AttributeError)):
            AutoModel.from_pretrained(folder)

    def test_no_text(self, folder, mamba, capsys):
        for place in (folder, mamba):
            (place / "config.json").write_bytes(b"\xff\xfe\x00")
        refuses_to_load(folder, "valid JSON", S4ForSequenceClassification)
        refuses_to_convert(mamba, capsys, "valid JSON")

    @pytest.mark.parametrize(
        ("claim", "said"),
        [
            ({"num_hidden_layers": 10**9}, "is absurd"),
            ({"num_hidden_layers": 1000}, "claims 1000 layers"),
            ({"num_hidden_layers": 1e300}, "is absurd"),
            ({"num_labels": 10**12}, "is absurd"),
        ],
    )
    def test_absurd_sizes(self, claim, said, folder, mamba, capsys):
        for place in (folder, mamba):
            configured(place, **claim)
        refuses_to_load(folder, said)
        refuses_to_convert(mamba, capsys, said)

    def test_absurd_sizes_reach_no_configuration(self, folder):
        configured(folder, num_labels=10**12)
        for config_class in (AutoConfig, S4Config):
            with pytest.raises(ValueError, match="is absurd"):
                config_class.from_pretrained(folder)

    @pytest.mark.parametrize(
        "claim", [{"hidden_size": 1 << 40}, {"vocab_size": 1 << 50}, {"state_size": 1 << 62}, {"dtype": "no_such_type"}]
    )
    def test_sizes_that_are_not_those_of_the_weights(self, claim, mamba, capsys):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        configured(mamba, **claim)
        refuses_to_convert(mamba, capsys)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10

    def test_a_file_of_a_folder(self, mamba, capsys):
        """Weights without their configuration."""
        before = everything_below(mamba)
        assert cli.main(["convert", str(mamba / "model.safetensors"), str(mamba / "target")]) == 2
        assert "give their folder" in capsys.readouterr().err
        assert everything_below(mamba) == before

    def test_tensors_that_are_missing_or_too_many(self, mamba, capsys):
        tensors = load_file(mamba / "model.safetensors")
        given = {name: tensor for name, tensor in tensors.items() if "A_log" not in name}
        save_file(given | {"extra": torch.ones(1)}, mamba / "model.safetensors", metadata={"format": "pt"})
        lacking = ", ".join(f"model.layers.{layer}.mixer.scan.A_log" for layer in range(2))
        refuses_to_convert(mamba, capsys, f"it lacks {lacking}; it has unknown extra")


def spoil_index(place, tmp_path):
    tensors = as_shards(place, "../../escaped.safetensors")
    save_file(tensors, tmp_path / "escaped.safetensors", metadata={"format": "pt"})


def spoil_pickle(place, tmp_path):
    (place / "model.safetensors").unlink()
    torch.save({"weight": RunsCode(tmp_path / "it-ran")}, place / "pytorch_model.bin")


def spoil_code(place, tmp_path):
    """An unknown model whose configuration refers to code in the folder."""
    (place / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'it-ran')!r})\nclass Model: pass\n")
    configured(place, model_type="no_such_type", auto_map={"AutoConfig": "code.Model", "AutoModel": "code.Model"})


FROM_THE_HUB = {
    "path in the index": spoil_index,
    "pickle with code": spoil_pickle,
    "code in a file": spoil_code,
    "wrong type": lambda place, tmp_path: configured(place, model_type="bert"),
    "deep configuration": lambda place, tmp_path: (place / "config.json").write_text('{"a":' * 100_000),
    "cut off": lambda place, tmp_path: DAMAGED["cut off"][0](place / "model.safetensors"),
    "2 GB claimed": lambda place, tmp_path: DAMAGED["2 GB claimed"][0](place / "model.safetensors"),
}


class TestFromTheHub:
    @pytest.mark.parametrize("how", FROM_THE_HUB)
    def test_refused(self, how, hub, folder, mamba, tmp_path, capsys):
        for place in (folder, mamba):
            FROM_THE_HUB[how](place, tmp_path)
            hub.create(f"ada/{place.name}", {path.name: path.read_bytes() for path in place.iterdir()})
        before = everything_below(tmp_path / "mamba")
        with pytest.raises((ValueError, OSError)) as caught:
            S4ForSequenceClassification.from_pretrained("ada/checkpoint")
        assert "\n" not in str(caught.value)
        assert cli.main(["convert", "ada/mamba", str(tmp_path / "target")]) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hf-ssm: error")]
        assert len(lines) == 1
        assert len(lines[0]) < 1000
        assert everything_below(tmp_path / "mamba") == before
        assert not (tmp_path / "it-ran").exists()
        assert not (tmp_path / "target").exists()
        # Downloads are in the cache and nowhere else.
        names = {"checkpoint", "hub", "mamba"} | ({"escaped.safetensors"} if how == "path in the index" else set())
        assert {path.name for path in tmp_path.iterdir()} == names
        assert not list((tmp_path / "hub").rglob("escaped*"))

    def test_a_good_one_passes(self, hub, folder, mamba, tmp_path):
        for place in (folder, mamba):
            hub.create(f"ada/{place.name}", {path.name: path.read_bytes() for path in place.iterdir()})
        S4ForSequenceClassification.from_pretrained("ada/checkpoint")
        assert cli.main(["convert", "ada/mamba", str(tmp_path / "target")]) == 0
        assert (tmp_path / "target" / "model.safetensors").is_file()
