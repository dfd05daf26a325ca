"""`hf-ssm marginalize`, `motifs` and `modisco` from files to files."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hf_ssm
from hf_ssm.cli import main
from hf_ssm.data.motif_files import motif_of_letters, read_motifs
from hf_ssm.inference.marginalize import Marginalizer, shuffled
from hf_ssm.inference.modisco import BaseAttributor

pytest.importorskip("tangermeme", reason="tangermeme is not installed (the extra `genomics`)")
pytest.importorskip("pysam", reason="pysam is not installed")

ROWS = ["".join(random.Random(seed).choices("ACGTacgt", k=30 + seed % 2)) for seed in range(20)]
GENOME = "".join(random.Random(50).choices("ACGT", k=200))
JASPAR = ">M1 AP1\nA [0 0 9 0 0 1 9]\nC [0 0 0 3 0 8 0]\nG [0 9 0 6 1 0 0]\nT [9 0 0 0 8 0 0]\n"


@pytest.fixture
def folder(tmp_path: Path, make_model: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, head in (("classes", "ForSequenceClassification"), ("lm", "ForCausalLM")):
        make_model("S4", head).save_pretrained(tmp_path / name)
        hf_ssm.build_dna_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "g.fa").write_text(f">chr1\n{GENOME}\n")
    (tmp_path / "b.bed").write_text("".join(f"chr1\t{n}\t{n + 25}\t.\t0\t{'+-'[n % 2]}\n" for n in range(0, 100, 9)))
    (tmp_path / "s.csv").write_text("name,sequence\n" + "".join(f"s{n},{row}\n" for n, row in enumerate(ROWS)))
    (tmp_path / "m.jaspar").write_text(JASPAR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_ssm.cli.motifs._PART", 4)
    return tmp_path


def model(name: str = "classes") -> Any:
    kind = hf_ssm.S4ForSequenceClassification if name == "classes" else hf_ssm.S4ForCausalLM
    return kind.from_pretrained(name)


def middles(length: int) -> list[str]:
    return [row[(len(row) - length) // 2 :][:length].upper() for row in ROWS]


def test_effects_of_a_file_of_motifs_and_of_letters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["marginalize", "classes", "m.jaspar", "--backgrounds", "s.csv", "--length", "29", "--output", "out.csv"]
    assert main([*line, "--reverse-complement", "--position", "3", "--svg"]) == 0
    found = pd.read_csv("out.csv").to_dict("records")
    expected = hf_ssm.marginalize(
        model(),
        hf_ssm.build_dna_tokenizer(),
        read_motifs("m.jaspar"),
        middles(29),
        position=3,
        reverse_complement=True,
    ).to_list()
    assert len(found) == 2 and found[0]["inserted"] == "TGAGTCA"
    for one, two in zip(found, expected, strict=True):
        for name, number in two.items():
            assert one[name] == (number if isinstance(number, str) else pytest.approx(number, rel=1e-4))
    assert f"| M1 AP1 | + | 3 | LABEL_1 | {found[0]['effect']:.4f} |" in capsys.readouterr().out
    assert Path("out.png").stat().st_size > 5_000 and Path("out.svg").exists()
    line = ["marginalize", "lm", "TGASTCA,GATAA", "--backgrounds", "b.bed", "--genome", "g.fa", "--shuffle", "2"]
    assert main([*line, "--scan", "6", "--seed", "3", "--output", "scan.parquet"]) == 0
    scanned = pd.read_parquet("scan.parquet")
    assert scanned["backgrounds"].unique().tolist() == [24] and len(scanned) == 4 + 4
    starts = range(0, 100, 9)
    complement = str.maketrans("ACGT", "TGCA")
    regions = [GENOME[n : n + 25] if n % 2 == 0 else GENOME[n : n + 25].translate(complement)[::-1] for n in starts]
    direct = hf_ssm.marginalize(
        model("lm"), hf_ssm.build_dna_tokenizer(), ["TGASTCA", "GATAA"], shuffled(regions, 2, 3), scan=6
    )
    np.testing.assert_allclose(scanned["effect"], direct["effect"], rtol=1e-3, atol=1e-4)


def test_options_are_those_of_the_functions(folder: Path) -> None:
    tokenizer = hf_ssm.build_dna_tokenizer()
    line = ["marginalize", "classes", "m.jaspar", "--backgrounds", "s.csv", "--length", "29", "--output", "out.parquet"]
    assert main([*line, "--samples", "2", "--seed", "3", "--both-strands", "--target", "LABEL_0"]) == 0
    found = pd.read_parquet("out.parquet")
    options = {"samples": 2, "seed": 3, "both_strands": True, "target": "LABEL_0"}
    expected = hf_ssm.marginalize(model(), tokenizer, read_motifs("m.jaspar"), middles(29), **options)
    assert found["output"].tolist() == ["LABEL_0"]
    np.testing.assert_allclose(found["effect"], expected["effect"], rtol=1e-3, atol=1e-6)
    for name in options:
        other = hf_ssm.marginalize(
            model(), tokenizer, read_motifs("m.jaspar"), middles(29), **{**options, name: {"seed": 4}.get(name)}
        )
        assert abs(other["effect"][-1] - expected["effect"][0]) > 1e-5, name
    line = ["modisco", "classes", "s.csv", "--length", "9", "--target", "0", "--method", "in_silico_mutagenesis"]
    assert main([*line, "--output", "out"]) == 0
    attributions = hf_ssm.base_attributions(model(), tokenizer, middles(9), 0, method="in_silico_mutagenesis")
    with np.load("out/shap.npz") as contributions:
        np.testing.assert_allclose(contributions["arr_0"], attributions.hypothetical, rtol=1e-3, atol=1e-6)
    line = ["modisco", "classes", "s.csv", "--length", "9", "--references", "2", "--seed", "5"]
    assert main([*line, "--output", "other"]) == 0
    attributions = hf_ssm.base_attributions(model(), tokenizer, middles(9), references=2, seed=5)
    table = pd.read_csv("other/completeness.csv")
    np.testing.assert_allclose(table["difference"], attributions.difference, rtol=1e-3, atol=1e-6)


def test_attributions_in_the_layout_of_modisco(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modisco", "classes", "s.csv", "--length", "20", "--references", "3", "--output", "out"]) == 0
    expected = hf_ssm.base_attributions(model(), hf_ssm.build_dna_tokenizer(), middles(20), references=3)
    with np.load("out/ohe.npz") as one_hot, np.load("out/shap.npz") as contributions:
        assert one_hot.files == contributions.files == ["arr_0"]
        assert one_hot["arr_0"].shape == contributions["arr_0"].shape == (20, 4, 20)
        np.testing.assert_array_equal(one_hot["arr_0"], expected.one_hot)
        np.testing.assert_allclose(contributions["arr_0"], expected.hypothetical, rtol=1e-3, atol=1e-5)
    table = pd.read_csv("out/completeness.csv")
    np.testing.assert_allclose(table["total"], table["difference"], atol=1e-4)
    assert table["missed"].abs().max() < 1e-4 and list(table["sequence"]) == list(range(20))
    assert "miss the difference of the output from that of 3 shuffles by" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "output", "owner", "method"),
    [
        (
            ["marginalize", "classes", "TGASTCA", "--backgrounds", "b.bed", "--genome", "g.fa", "--scan", "4"],
            "{}.csv",
            Marginalizer,
            "table",
        ),
        (
            ["modisco", "classes", "b.bed", "--genome", "g.fa", "--references", "2"],
            "{}",
            BaseAttributor,
            "attributions",
        ),
    ],
)
def test_interrupted_commands_continue(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: list[str], output: str, owner: type, method: str
) -> None:
    assert main([*line, "--output", output.format("whole")]) == 0
    compute, calls = getattr(owner, method), [0]

    def interrupted(self: Any, items: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2 == 0:
            raise KeyboardInterrupt
        return compute(self, items)

    monkeypatch.setattr(owner, method, interrupted)
    statuses: list[int] = []
    while not statuses or statuses[-1]:
        statuses.append(main([*line, "--output", output.format("out")]))
    assert set(statuses[:-1]) == {130} and len(statuses) > 2
    names = [path.name for path in folder.glob("whole/*")] or ["whole.csv"]
    for name in names:
        one, two = (folder / (f"{kind}/{name}" if name != "whole.csv" else f"{kind}.csv") for kind in ("whole", "out"))
        assert one.read_bytes() == two.read_bytes()
    assert not list(folder.rglob(".*out*")) and not list(folder.rglob(".shap*parts"))


def test_occurrences_in_substitutions_and_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    region = ["--saturate", "chr1:21-80", "--genome", "g.fa", "--window", "20", "--horizon", "5"]
    assert main(["score", "lm", *region, "--output", "region.tsv"]) == 0
    word = GENOME[49:56]
    assert main(["motifs", f"{word},GGGGGGGGG", "region.tsv", "--output", "hits.csv"]) == 0
    hits = pd.read_csv("hits.csv")
    ((_, hit),) = hits[hits["start"] == 50].iterrows()
    assert (hit["sequence"], hit["end"], hit["strand"], hit["bases"], hit["motif"]) == ("chr1", 56, "+", word, word)
    table = pd.read_csv("region.tsv", sep="\t")
    inside = table[(table["pos"] >= 50) & (table["pos"] <= 56)]
    assert hit["importance"] == pytest.approx(-inside["llr"].mean(), rel=1e-6)
    assert f"| chr1:50-56 | + | {word} |" in capsys.readouterr().out
    direct = hf_ssm.motif_hits(table, {word: motif_of_letters(word)}, score="next_token")
    assert main(["motifs", word, "region.tsv", "--score", "next_token", "--output", "other.parquet"]) == 0
    found = pd.read_parquet("other.parquet")
    np.testing.assert_allclose(found["importance"], direct["importance"], rtol=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("marginalize classes m.jaspar --backgrounds s.csv --output o.csv", "31 bases, but the first sequence has 30"),
        ("marginalize classes m.jaspar --backgrounds s.csv --length 31 --output o.csv", "--length must be from 1"),
        ("marginalize classes n.meme --backgrounds s.csv --length 9 --output o.csv", "MOTIFS 'n.meme': there is no"),
        ("marginalize classes TGQ --backgrounds s.csv --length 9 --output o.csv", "motif 'TGQ': give letters of DNA"),
        ("marginalize classes TG --backgrounds s.csv --length 9 --position 8 --output o.csv", "give 0 to 7"),
        ("marginalize classes TG --backgrounds s.csv --length 9 --target x --output o.csv", "`target`='x': the model"),
        ("marginalize classes TG --backgrounds s.csv --length 9 --shuffle 0 --output o.csv", "--shuffle must be"),
        ("marginalize classes TG --backgrounds s.csv --length 9 --output o.txt", "the suffix must be one of"),
        ("marginalize classes s.csv --backgrounds s.csv --length 9 --output o.csv", "s.csv holds no motif"),
        ("modisco lm s.csv --length 20 --output o", "'deep_lift' needs a classifier"),
        ("modisco classes s.csv --length 20 --target 2 --output o", "`target`=2: give a number from 0 to 1"),
        ("motifs TG s.csv --output o.csv", "the table has no column of positions"),
        ("motifs TG s.csv --output s.csv", "would"),
    ],
)
def test_errors(folder: Path, capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    before = Path("s.csv").read_bytes()
    assert main(line.split()) != 0
    assert message in capsys.readouterr().err
    assert not list(folder.glob("o.*")) and not list(folder.rglob(".*.parts")) and Path("s.csv").read_bytes() == before
