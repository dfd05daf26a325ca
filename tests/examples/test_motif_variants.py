"""Variants in planted motifs: the files of the experiment, and a tiny run that separates them without labels."""

import json
from pathlib import Path

import pytest

from hf_ssm.data import load_sequences


def test_variants_are_inside_and_outside_of_motifs(script, tmp_path: Path) -> None:
    sizes = {"num_train": 4, "num_validation": 0, "num_test": 6}
    rows = load_sequences("planted-motifs", motif=script.MOTIF, length=100, **sizes)["test"]
    rows = [row for row in rows if row["label"] == 1]
    script.write_variants(tmp_path, rows, seed=0)
    lines = [line.split("\t") for line in (tmp_path / "variants.vcf").read_text().splitlines() if line[0] != "#"]
    assert len(lines) == 2 * len(rows)
    for contig, pos, _, ref, alt, *_, info in lines:
        text, place = rows[int(contig.removeprefix("seq"))]["sequence"], int(pos) - 1
        assert text[place] == ref != alt
        starts = rows[int(contig.removeprefix("seq"))]["motif_positions"]
        assert any(start <= place < start + 12 for start in starts) == (info == "BREAKS=1")


@pytest.mark.slow
def test_tiny_run_separates_without_labels(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    output = tmp_path / "results.json"
    monkeypatch.setattr("sys.argv", ["motif_variants.py", "--tiny", "--output", str(output)])
    script.main()
    assert json.loads(output.read_text())["auroc"]["SelectiveSSM"][0] > 0.95
