"""`hf-ssm embed`: tables and tensors as from Python, resuming, linear probe, and errors for bad input."""

import datetime
import decimal
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

import hf_ssm
from hf_ssm import cli
from hf_ssm.inference import parts, tensor_file, windows
from hf_ssm.tokenization import build_dna_tokenizer

TEXTS = ["ACGTTGCATCGA", "gattacannn", "C", "TTGACGTNNACGATA", "CATGCAT", "ACGT", "GGGT"]
NAMES = [f"record{number}" for number in range(len(TEXTS))]


def run(*arguments: object) -> int:
    return cli.main(["embed", *(str(argument) for argument in arguments)])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of a model of hf_ssm and one of transformers, with a tokenizer of DNA."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    models = {
        "ours": hf_ssm.S4ForSequenceClassification(
            hf_ssm.S4Config(vocab_size=12, hidden_size=8, state_size=4, num_hidden_layers=2, pad_token_id=4)
        ),
        "llama": LlamaForCausalLM(
            LlamaConfig(
                vocab_size=12, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
                num_key_value_heads=2, max_position_embeddings=40, pad_token_id=4,
            )
        ),
    }  # fmt: skip
    for name, model in models.items():
        model.save_pretrained(folder / name)
        build_dna_tokenizer().save_pretrained(folder / name)
    return {name: folder / name for name in models}


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    path = tmp_path / "in.fa"
    path.write_text("".join(f">{name}\n{text}\n" for name, text in zip(NAMES, TEXTS, strict=True)))
    return path


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "_MOST_ITEMS", 2)


def expected_table(checkpoint: Path, **arguments: object) -> pa.Table:
    model_class = LlamaForCausalLM if checkpoint.name == "llama" else hf_ssm.S4ForSequenceClassification
    inputs = [{"name": name, "sequence": text} for name, text in zip(NAMES, TEXTS, strict=True)]
    model = model_class.from_pretrained(checkpoint)
    return hf_ssm.embed(model, build_dna_tokenizer(), inputs, **arguments).data.table


CHOICES = {
    "mean": ([], {}),
    "layers": (["--layers", 0, -1, "--both-strands"], {"layers": [0, -1], "both_strands": True}),
    "token": (["--pooling", "token"], {"pooling": "token"}),
    "windows": (["--window", 6, "--stride", 4, "--pooling", "last"], {"window": 6, "stride": 4, "pooling": "last"}),
    "windows of tokens": (
        ["--window", 6, "--pooling", "token", "--layers", 1, 2],
        {"window": 6, "pooling": "token", "layers": [1, 2]},
    ),
}


@pytest.mark.parametrize(
    ("name", "choice"), [*(("ours", choice) for choice in CHOICES), ("llama", "layers"), ("llama", "windows of tokens")]
)
@pytest.mark.usefixtures("small_parts")
def test_parquet_and_safetensors(checkpoints, fasta, tmp_path, name, choice):
    options, arguments = CHOICES[choice]
    expected = expected_table(checkpoints[name], **arguments)
    table_file, tensor_file = tmp_path / "out.parquet", tmp_path / "out.safetensors"
    for file in (table_file, tensor_file):
        assert run(checkpoints[name], fasta, "--output", file, *options) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.fa", "out.parquet", "out.safetensors"]
    table = pa.parquet.read_table(table_file)
    assert table.schema.remove_metadata() == expected.schema.remove_metadata()
    columns = [column for column in expected.column_names if column.startswith("embedding")]
    found = np.stack([np.array(table[column].to_pylist()) for column in columns], 1)
    np.testing.assert_allclose(
        found, np.stack([np.array(expected[column].to_pylist()) for column in columns], 1), rtol=1e-6, atol=1e-6
    )
    check_tensors(tensor_file, table.drop_columns(columns), found.astype(np.float32))


@pytest.mark.parametrize("choice", ["mean", "layers", "windows of tokens"])
@pytest.mark.usefixtures("small_parts")
def test_numpy_and_anndata(checkpoints, tmp_path, choice):
    """The arrays of both are the columns of the parquet file, also where cells of the input are missing."""
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    source = tmp_path / "in.csv"
    cells = ["a,1,x", ",2,y", "a,,z", "b,4,x", "b,5,", "c,6,x", ",7,w"]
    lines = [f"{text},{row}" for text, row in zip(TEXTS, cells, strict=True)]
    source.write_text("sequence,group,count,code\n" + "\n".join(lines) + "\n")
    options = CHOICES[choice][0]
    files = {suffix: tmp_path / f"out{suffix}" for suffix in (".parquet", ".npz", ".h5ad")}
    for file in files.values():
        assert run(checkpoints["ours"], source, "--output", file, *options) == 0
    table = pa.parquet.read_table(files[".parquet"])
    names = [name for name in table.column_names if name.startswith("embedding")]
    arrays = np.load(files[".npz"])
    data = anndata.read_h5ad(files[".h5ad"])
    assert sorted(arrays) == sorted([*table.column_names, "facts"])
    assert list(data.obs) == [name for name in table.column_names if name not in names]
    assert (data.X is None) == (len(names) > 1) and len(data.obs_names) == table.num_rows
    for name in table.column_names:
        expected = table[name].to_pylist()
        stored = (data.X if len(names) == 1 else data.obsm[name]) if name in names else None
        if stored is not None:
            np.testing.assert_array_equal(arrays[name], np.array(expected, np.float32))
            np.testing.assert_array_equal(stored, np.array(expected, np.float32))
            continue
        column = [None if value != value else value for value in data.obs[name].tolist()]
        assert column == expected, name
        if arrays[name].dtype.kind == "U":
            assert arrays[name].tolist() == ["" if value is None else value for value in expected], name
        else:
            np.testing.assert_array_equal(arrays[name], np.array(expected, arrays[name].dtype))
    facts = json.loads(str(arrays["facts"]))
    assert facts["model"] == "ours" and facts["pooling"] == CHOICES[choice][1].get("pooling", "mean")
    assert data.uns["pooling"] == facts["pooling"] and list(data.uns["layers"]) == facts["layers"]


def test_anndata_of_columns_of_other_types(checkpoints, tmp_path):
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    columns = {
        "day": pa.array([datetime.datetime(2026, 1, 2), None]),
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.00")]),
        "tags": pa.array([["x", "y"], []]),
        "raw": pa.array([b"ab", b"c"]),
    }
    source, output = tmp_path / "in.parquet", tmp_path / "out.h5ad"
    pa.parquet.write_table(pa.table({"sequence": ["ACGT", "GATTACA"], **columns}), source)
    assert run(checkpoints["ours"], source, "--output", output) == 0
    cells = anndata.read_h5ad(output).obs.astype(object).where(lambda frame: frame.notna(), None)
    assert cells.to_dict("list") == {
        "day": ["2026-01-02 00:00:00", None],
        "price": ["1.50", "2.00"],
        "tags": ['["x", "y"]', "[]"],
        "raw": ["b'ab'", "b'c'"],
    }


@pytest.mark.parametrize(("name", "suffix"), [("facts", ".npz"), ("a/b", ".h5ad"), ("_index", ".h5ad")])
def test_names_that_a_format_cannot_have(checkpoints, tmp_path, error_of, monkeypatch, name, suffix):
    """The error comes before the model runs, for sequences and for variants."""
    pytest.importorskip("anndata", reason="anndata is not installed")
    monkeypatch.setattr("hf_ssm.cli.embed.write_in_parts", None)
    for header, row in (("sequence", "ACGT"), ("ref_sequence,alt_sequence", "ACGT,ACGA")):
        source = tmp_path / "in.csv"
        source.write_text(f"{header},{name}\n{row},1\n")
        error = error_of("embed", checkpoints["ours"], source, "--output", tmp_path / f"out{suffix}")
        assert f"the input has a column {name!r}" in error and "rename the column" in error


VCF = "##fileformat=VCFv4.2\n##contig=<ID=c>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"


def test_variants(error_of, checkpoints, tmp_path, capsys):
    pytest.importorskip("pysam", reason="pysam is not installed")
    genome, vcf, table = tmp_path / "g.fa", tmp_path / "v.vcf", tmp_path / "v.csv"
    genome.write_text(">c\nACGTTGCATCGAggcttaACGTACGT\n")
    vcf.write_text(VCF + "c\t5\t.\tT\tG,<INS>\t.\t.\t.\nc\t9\t.\tTC\tT\t.\t.\t.\n")
    table.write_text("chrom,pos,ref,alt\nc,5,T,G\nc,5,T,<INS>\nc,9,TC,T\n")
    options = ("--genome", genome, "--window", 12, "--pooling", "center", "--both-strands")
    for source, name in ((vcf, "a.parquet"), (table, "b.safetensors")):
        assert run(checkpoints["ours"], source, *options, "--output", tmp_path / name) == 0
        assert "holds 3 alleles, 2 of them with hidden states" in capsys.readouterr().out
    found = pa.parquet.read_table(tmp_path / "a.parquet")
    model = hf_ssm.S4ForSequenceClassification.from_pretrained(checkpoints["ours"])
    rows = [{"chrom": "c", "pos": 5, "ref": "T", "alt": "G"}, {"chrom": "c", "pos": 9, "ref": "TC", "alt": "T"}]
    with hf_ssm.data.genome.Genome(genome) as reference:
        expected = hf_ssm.embed_variants(
            model, build_dna_tokenizer(), rows, reference, window=12, pooling="center", both_strands=True
        )
    vectors = [name for name in found.column_names if name.startswith("embedding")]
    assert found["reason"].to_pylist() == ["", "symbolic allele <INS>", ""]
    with safe_open(tmp_path / "b.safetensors", "np") as file:
        tensors, names = file.get_tensor("embeddings"), json.loads(file.metadata()["names"])
    assert names == vectors == ["embedding_ref", "embedding_alt", "embedding_delta"]
    for number, name in enumerate(vectors):
        values = np.array(found[name].to_pylist())
        np.testing.assert_allclose(values[[0, 2]], np.array(expected[name][:]), rtol=1e-6, atol=1e-7)
        assert np.isnan(values[1]).all()
        np.testing.assert_array_equal(tensors[:, number], values.astype(np.float32))
    output = tmp_path / "o.parquet"
    for more, message in (
        (["--stride", 3], "--stride is for sequences, and v.vcf holds variants"),
        (["--linear-probe", "x"], "--linear-probe is for sequences"),
        (["--pooling", "token"], "the alleles may have different tokens"),
    ):
        assert message in error_of("embed", checkpoints["ours"], vcf, *options, "--output", output, *more)
    assert "give `genome` (--genome FASTA)" in error_of("embed", checkpoints["ours"], vcf, "--output", output)
    assert not output.exists()


def test_precision_and_estimate(checkpoints, fasta, tmp_path, capsys):
    """--dtype is that of the weights; --estimate writes nothing."""
    values = {}
    for dtype in ("auto", "float32", "bfloat16", "float64"):
        output = tmp_path / f"{dtype}.parquet"
        assert run(checkpoints["llama"], fasta, "--output", output, "--dtype", dtype) == 0
        column = pa.parquet.read_table(output)["embedding"]
        assert column.type.value_type == (pa.float64() if dtype == "float64" else pa.float32())
        values[dtype] = np.array(column.to_pylist())
    np.testing.assert_array_equal(values["auto"], values["float32"])
    np.testing.assert_allclose(values["float32"], values["float64"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(values["bfloat16"], values["float64"], rtol=0.1, atol=0.02)
    assert np.abs(values["bfloat16"] - values["float32"]).max() > 1e-4
    capsys.readouterr()
    assert run(checkpoints["ours"], fasta, "--output", tmp_path / "none.parquet", "--estimate") == 0
    assert "letters per second, timed on" in capsys.readouterr().out
    assert not list(tmp_path.glob("*none*"))


def check_tensors(path: Path, others: pa.Table, embeddings: np.ndarray) -> None:
    with safe_open(path, "np") as file:
        np.testing.assert_array_equal(file.get_tensor("embeddings"), embeddings)
        columns = json.loads(file.metadata()["columns"])
        if "token_start" not in others.column_names:
            assert file.keys() == ["embeddings"] and columns == others.to_pydict()
            return
        letters = np.array([others["token_start"].to_pylist(), others["token_end"].to_pylist()]).T
        np.testing.assert_array_equal(file.get_tensor("letters"), letters)
        repeated = {name: np.repeat(values, file.get_tensor("lengths")).tolist() for name, values in columns.items()}
        assert repeated == others.drop_columns(["token_start", "token_end"]).to_pydict()


@pytest.mark.parametrize("suffix", [".parquet", ".safetensors", ".npz", ".h5ad"])
@pytest.mark.usefixtures("small_parts")
def test_interrupted_after_each_part(error_of, checkpoints, fasta, tmp_path, monkeypatch, capsys, suffix):
    if suffix == ".h5ad":
        pytest.importorskip("anndata", reason="anndata is not installed")
    whole, output = tmp_path / f"whole{suffix}", tmp_path / f"out{suffix}"
    command = (checkpoints["ours"], fasta, "--layers", 0, 1, "--output")
    assert run(*command, whole) == 0
    add, computed = parts.Parts.add, []

    def add_and_stop(self, number, table):
        add(self, number, table)
        computed.append(table.num_rows)
        raise KeyboardInterrupt

    monkeypatch.setattr(parts.Parts, "add", add_and_stop)
    for _ in range(4):
        assert run(*command, output) == 130
        assert not output.exists()
    assert "the same command continues" in capsys.readouterr().err
    assert computed == [2, 2, 2, 1]
    # Then while the parts are joined.
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*command, output) == 130
    assert not output.exists()
    assert run(*command, output) == 0
    assert len(computed) == 4
    assert output.read_bytes() == whole.read_bytes()
    assert "exists" in error_of("embed", *command, output)
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small_parts")
def test_parts_of_another_command_are_refused(checkpoints, fasta, tmp_path, monkeypatch, error_of):
    output = tmp_path / "out.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(parts.Parts, "join", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(checkpoints["ours"], fasta, "--output", output) == 130
    message = error_of("embed", checkpoints["ours"], fasta, "--output", output, "--pooling", "last")
    assert "other settings (pooling)" in message
    assert "other settings (checkpoint)" in error_of("embed", checkpoints["llama"], fasta, "--output", output)
    assert run(checkpoints["ours"], fasta, "--output", output, "--pooling", "last", "--overwrite-output") == 0


def test_columns_that_exceed_the_header_of_safetensors(checkpoints, fasta, tmp_path, monkeypatch, error_of):
    monkeypatch.setattr(tensor_file, "_LONGEST_HEADER", 200)
    output = tmp_path / "out.safetensors"
    assert "write a .parquet file" in error_of("embed", checkpoints["ours"], fasta, "--output", output)
    assert not output.exists()


def labelled(tmp_path: Path) -> tuple[Path, Path]:
    """Sequences of two classes, AT and GC rich, as a table with labels and as FASTA beside a table of labels."""
    rng = np.random.default_rng(0)
    sequences = ["".join(rng.choice(list(letters), 30)) for letters in ("AATTC", "GGCCA") * 10]
    table = tmp_path / "in.csv"
    table.write_text("sequence,class\n" + "".join(f"{text},{n % 2}\n" for n, text in enumerate(sequences)))
    fasta = tmp_path / "both.fa"
    fasta.write_text("".join(f">s{n}\n{text}\n" for n, text in enumerate(sequences)))
    names = "".join(f"s{n},{n % 2}\n" for n in reversed(range(-3, 20)))
    (tmp_path / "labels.csv").write_text("name,label\n" + names)
    return table, fasta


def test_linear_probe(checkpoints, tmp_path, capsys):
    table, fasta = labelled(tmp_path)
    scores = {}
    for source, labels, output in ((table, "class", "a.parquet"), (fasta, tmp_path / "labels.csv", "b.safetensors")):
        assert run(checkpoints["ours"], source, "--output", tmp_path / output, "--linear-probe", labels) == 0
        assert "embedding     accuracy" in capsys.readouterr().out
        path = (tmp_path / output).with_suffix(".linear_probe.json")
        scores[output] = json.loads(path.read_text())
    assert scores["a.parquet"] == scores["b.safetensors"]
    assert scores["a.parquet"]["embedding"]["accuracy"]["mean"] > 0.9
    data = Dataset(pa.parquet.read_table(tmp_path / "a.parquet"))
    assert hf_ssm.inference.linear_probe(data, "class") == scores["a.parquet"]
    of_windows = (checkpoints["ours"], fasta, "--window", 10, "--linear-probe", tmp_path / "labels.csv")
    assert run(*of_windows, "--folds", 4, "--output", tmp_path / "c.parquet") == 0
    assert json.loads((tmp_path / "c.linear_probe.json").read_text())["rows"] == 60


def test_bad_labels_are_found_before_the_model_runs(checkpoints, tmp_path, error_of):
    table, fasta = labelled(tmp_path)

    def probe_error(source: Path, labels: object, *more: str) -> str:
        return error_of(
            "embed", checkpoints["ours"], source, "--output", tmp_path / "o.parquet", "--linear-probe", labels, *more
        )

    assert "did you mean 'class'" in probe_error(table, "clas")
    assert "choose --pooling mean or --pooling last" in probe_error(table, "class", "--pooling", "token")
    assert "no such file" in probe_error(fasta, tmp_path / "none.csv")
    assert "has 10 rows, fewer than `folds`=11" in probe_error(table, "class", "--folds", "11")
    for text, message in (("name,label\ns0,1\n", "record 's1': "), ("name,label\ns0,1\ns0,1\n", "'s0' occurs twice")):
        (tmp_path / "bad.csv").write_text(text)
        assert message in probe_error(fasta, tmp_path / "bad.csv")
    fasta.write_text(">s0\nACGT\n>s0\nACC\n")
    assert "occurs twice, so the label of this sequence is not known" in probe_error(fasta, tmp_path / "labels.csv")
    assert not list(tmp_path.glob("*o.parquet*"))


def test_bad_input(checkpoints, fasta, tmp_path, error_of):
    output = tmp_path / "out.parquet"
    assert "suffix must be one of .parquet, .safetensors, .npz, .h5ad" in error_of(
        "embed", checkpoints["ours"], fasta, "--output", tmp_path / "out.csv"
    )
    for options, message in (
        (["--layers", 5], "the model has 3 hidden states"),
        (["--stride", 5], "needs `window` (--window)"),
    ):
        assert message in error_of("embed", checkpoints["ours"], fasta, "--output", output, *options)
    fasta.write_text(">short\nACGT\n>long\n" + "ACGT" * 11 + "\n")
    message = error_of("embed", checkpoints["llama"], fasta, "--output", output)
    assert "record 'long' has 44 tokens, but the model takes at most 40: cut the sequence into windows" in message
    assert not output.exists()
