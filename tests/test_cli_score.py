"""`hf-ssm score` from files to files."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

import hf_ssm
from hf_ssm.cli import main
from hf_ssm.data.genome import Genome
from hf_ssm.inference import evaluate_scores
from hf_ssm.inference.score import VariantScorer

pytest.importorskip("pysam", reason="pysam is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

GENOME = "".join(random.Random(0).choices("ACGT", k=300))
COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))


@pytest.fixture
def folder(tmp_path: Path, make_model, monkeypatch: pytest.MonkeyPatch) -> Path:
    tokenizer = hf_ssm.build_dna_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=12, bos_token_id=None, eos_token_id=None))
    for name, model in (("own", make_model("S4", "ForCausalLM")), ("llama", llama)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    (tmp_path / "g.fa").write_text(f">chr1\n{GENOME}\n")
    rows = [f"chr1,{n + 1},{GENOME[n]},{COMPLEMENT[GENOME[n]]},{n % 2}" for n in range(20, 80)]
    rows.insert(7, "chr1,9,<INS>,A,0")
    (tmp_path / "v.csv").write_text("chrom,pos,ref,alt,label\n" + "\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hf_ssm.inference.evaluation._BOOTSTRAPS", 10)
    return tmp_path


def arguments(model: str, output: str, *more: str) -> list[str]:
    return ["score", model, "v.csv", "--genome", "g.fa", "--window", "16", "--output", output, *more]


@pytest.mark.parametrize("model", ["own", "llama"])
def test_table_and_metrics(folder: Path, capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert main(arguments(model, "out.csv", "--label-column", "label")) == 0
    found = pd.read_csv("out.csv")
    assert list(found) == ["chrom", "pos", "ref", "alt", "label", "llr", "next_token", "reason"]
    assert found["llr"].isna().tolist() == [number == 7 for number in range(61)]
    assert "no DNA sequence" in found["reason"][7]
    printed = capsys.readouterr().out
    assert "out.csv holds 61 alleles, 60 of them with all scores" in printed
    metrics = json.loads(Path("out.metrics.json").read_text())
    assert [row["metric"] for row in metrics] == ["auroc", "auprc", "spearman"] * 2
    assert f"| llr | auroc | {metrics[0]['value']:.4f} |" in printed


def test_one_strand_and_metrics_by_group(folder: Path) -> None:
    table = pd.read_csv("v.csv")
    table["class"] = ["harmful" if label else "neutral" for label in table["label"]]
    table["block"] = table["pos"] // 40
    table.to_csv("v.csv", index=False)
    more = ["--label-column", "class", "--positive", "harmful", "--by", "block", "--one-strand"]
    assert main(arguments("own", "out.csv", *more)) == 0
    with Genome("g.fa") as genome:
        scored = hf_ssm.score_variants(
            hf_ssm.S4ForCausalLM.from_pretrained("own"),
            hf_ssm.build_dna_tokenizer(),
            table.to_dict("records"),
            genome,
            window=16,
            both_strands=False,
        )
    assert pd.read_csv("out.csv")["llr"][0] == pytest.approx(scored["llr"][0], rel=1e-4)
    expected = evaluate_scores(scored, "class", "harmful", "block")
    metrics = json.loads(Path("out.metrics.json").read_text())
    assert [row["groups"] for row in metrics] == expected["groups"]
    assert metrics[0]["value"] == pytest.approx(expected["value"][0], abs=1e-6)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_interrupted_commands_continue(folder: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("hf_ssm.cli.score._PART", 9)
    assert main(arguments("own", f"whole{suffix}")) == 0
    compute, calls = VariantScorer.table, [0]

    def interrupted(self: VariantScorer, variants: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2 == 0:
            raise KeyboardInterrupt
        return compute(self, variants)

    monkeypatch.setattr(VariantScorer, "table", interrupted)
    statuses = []
    while not Path(f"out{suffix}").exists():
        statuses.append(main(arguments("own", f"out{suffix}")))
    assert statuses == [130] * 6 + [0]
    assert Path(f"out{suffix}").read_bytes() == Path(f"whole{suffix}").read_bytes()
    assert not list(folder.glob(".out*"))


def test_saturation_with_a_picture(folder: Path) -> None:
    regions = ["chr1:101-110", "chr1:1-3"]
    options = ["--genome", "g.fa", "--window", "16", "--horizon", "4", "--svg", "--output", "out.tsv"]
    assert main(["score", "own", "--saturate", *regions, *options]) == 0
    found = pd.read_csv("out.tsv", sep="\t")
    assert found["pos"].unique().tolist() == [*range(101, 111), 1, 2, 3]
    assert all(GENOME[row.pos - 1] == row.ref != row.alt for row in found.itertuples())
    direct = hf_ssm.saturate(
        hf_ssm.S4ForCausalLM.from_pretrained("own"),
        hf_ssm.build_dna_tokenizer(),
        GENOME,
        100,
        110,
        window=16,
        horizon=4,
    )
    assert found["llr"][:30].tolist() == pytest.approx(direct["llr"], rel=1e-5, abs=1e-6)
    for form in ("png", "svg"):
        assert sorted(path.name for path in folder.glob(f"*.{form}")) == [
            f"out.{number}.{score}.{form}" for number in (1, 2) for score in ("llr", "next_token")
        ]


def test_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("v.csv", "v.txt")
    tokens = ["--genome", "g.fa", "--output"]
    for options, message in [
        (["own", *tokens, "o.csv"], "give either VARIANTS"),
        (["own", "v.csv", "--svg", *tokens, "o.csv"], "--svg is for the figures of --saturate"),
        (["own", "v.csv", *tokens, "o.xls"], "the suffix must be one of .csv"),
        (["own", "v.csv", "--output", "o.csv"], "--genome FASTA"),
        (["own", "v.txt", *tokens, "o.csv"], "the suffix must be one of .vcf"),
        (["own", "v.csv", *tokens, "o.csv", "--by", "chrom"], "give --label-column"),
        (["own", "--saturate", "chr1:0-5", *tokens, "o.csv"], "has the positions 1 to 300"),
        (["own", "--saturate", "chr1", *tokens, "o.csv"], "CONTIG:FIRST-LAST"),
        (["own", "v.csv", "--genome", "no.fa", "--output", "o.csv"], "no such file"),
        (["own", "v.csv", *tokens, "o.csv", "--scores", "masked_log_odds"], "needs a masked language model"),
    ]:
        assert main(["score", *options]) == 2, options
        assert message in capsys.readouterr().err
    assert not list(folder.glob("*o.csv*"))
    # Metrics that cannot be computed leave the table.
    assert main(arguments("own", "out.csv", "--label-column", "alt", "--scores", "llr")) == 0
    assert "no metrics: `label`='alt' has labels" in capsys.readouterr().err
    assert Path("out.csv").exists()
