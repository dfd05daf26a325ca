"""`examples/get_data.py`: the data of the experiments."""

import gzip
import random
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from hf_ssm.data import load_sequences
from hf_ssm.data.records import read_records, reverse_complement

DATA = Path(__file__).parents[2] / "examples" / "data"


def test_the_shipped_table_is_balanced_dna() -> None:
    path = DATA / "coding_or_intergenic.csv.gz"
    data = load_sequences(path, validation_fraction=0.0)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 2229, "test": 771}
    rows = [row for split in data.values() for row in split]
    assert all(len(row["sequence"]) == 200 and not row["sequence"].strip("ACGT") for row in rows)
    groups = [(row["label"], row["species"]) for row in rows]
    assert len(set(groups)) == 6
    assert {groups.count(group) for group in set(groups)} == {500}
    assert len({row["sequence"] for row in rows}) == 3000
    assert path.stat().st_size < 200_000


def test_the_shipped_variants_are_of_the_shipped_genome(script: ModuleType, tmp_path: Path) -> None:
    genome, shipped = DATA / "lambda_phage.fa.gz", DATA / "lambda_phage_variants.vcf"
    script.main(["random_variants", "--output", str(tmp_path)])
    assert (tmp_path / shipped.name).read_text() == shipped.read_text()
    sequence = next(iter(read_records(genome))).sequence
    rows = [line.split("\t") for line in shipped.read_text().splitlines() if not line.startswith("#")]
    assert len(rows) == 50
    assert all(sequence[int(place) - 1] == ref != alt for _, place, _, ref, alt, *_ in rows)


def test_the_shipped_operon_has_a_promoter_and_genes() -> None:
    operon = next(iter(read_records(DATA / "lac_operon.fa.gz"))).sequence
    parts = [line.split("\t") for line in (DATA / "lac_promoter.bed").read_text().splitlines()]
    bases = {name: operon[int(start) : int(end)] for _, start, end, name, *_ in parts}
    assert (bases["CRP"], bases["-35"], bases["-10"]) == ("TGTGAGTTAGCTCACT", "TTTACA", "TATGTT")
    # The parts follow one another, and the last one ends before the first base of the transcript.
    promoter = "".join(bases.values())
    assert len(promoter) == 75 and operon.count(f"{promoter}AATTGTGAGCGG") == 1
    genes = [line.split("\t") for line in (DATA / "lac_genes.bed").read_text().splitlines()]
    assert [name for *_, name, _, _ in genes] == ["lacI", "lacZ", "lacY", "lacA"]
    for _, start, end, *_ in genes:
        assert operon[int(start) : int(start) + 3] in ("ATG", "GTG", "TTG")
        assert operon[int(end) - 3 : int(end)] in ("TAA", "TAG", "TGA")


@pytest.mark.slow
def test_the_promoters_are_mutants_of_the_operon(script: ModuleType, tmp_path: Path) -> None:
    from _lac_promoter import LAC_PROMOTER

    try:
        script.lac_promoter(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("the package with the data cannot be downloaded from the package index")
    operon = next(iter(read_records(DATA / "lac_operon.fa.gz"))).sequence
    promoter = operon[slice(*LAC_PROMOTER)]
    data = load_sequences(tmp_path / "lac_promoter.csv.gz", validation_fraction=0.0)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 6000, "validation": 500, "test": 2000}
    rows = [row for split in data.values() for row in split]
    assert len({row["sequence"] for row in rows}) == 8500 and sum(row["label"] for row in rows) == 4250
    assert all(len(row["sequence"]) == 75 and not row["sequence"].strip("ACGT") for row in rows)
    mutations = [sum(a != b for a, b in zip(row["sequence"], promoter, strict=True)) for row in rows]
    assert 7 < sum(mutations) / len(mutations) < 10


def test_the_shipped_variants_lie_in_the_promoter() -> None:
    operon = next(iter(read_records(DATA / "lac_operon.fa.gz"))).sequence
    lines = (DATA / "lac_promoter_variants.vcf").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    wrong = [name for _, place, name, ref, *_ in rows if not operon.startswith(ref, int(place) - 1)]
    assert len(rows) == 20 and wrong == ["wrong_reference"]
    assert all(1382 < int(place) <= 1457 for _, place, *_ in rows)
    (place,) = (int(place) for _, place, name, *_ in rows if name == "UV5")
    # The -10 box of the consensus.
    assert operon[1445 : place - 1] + "AA" + operon[place + 1 : 1451] == "TATAAT"


def test_windows_follow_the_annotation(script: ModuleType, tmp_path: Path) -> None:
    chance = random.Random(0)
    genome = "".join(chance.choices("ACGT", k=2000))
    genome = genome[:1700] + "N" + genome[1701:]
    with gzip.open(tmp_path / "g.fa.gz", "wt") as file:
        file.write(f">one\n{genome}\n")
    features = ["region\t1\t2000\t.\t+", "gene\t301\t900\t.\t-", "CDS\t401\t850\t.\t-", "CDS\t1001\t1200\t.\t+"]
    with gzip.open(tmp_path / "g.gff.gz", "wt") as file:
        file.write("##gff-version 3\n" + "".join(f"one\tx\t{feature}\t0\tID=1\n" for feature in features))
    found = list(script.windows(tmp_path / "g.fa.gz", tmp_path / "g.gff.gz"))
    assert [(label, start) for label, _, _, start in found] == [
        *(("coding", start) for start in (400, 600, 1000)),
        *(("intergenic", start) for start in (0, 1200, 1400, 1800)),
    ]
    assert found[0][1] == reverse_complement(genome[400:600])
    assert found[2][1] == genome[1000:1200]


def test_a_download_with_other_content_is_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "genome.gz").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"genome\.gz has the SHA-256 d9298a10.* begins with 00: delete the file"):
        script.download("https://example.org/genome.gz", tmp_path, "00")


def test_listops_of_the_arena_follows_its_rules(script: ModuleType, tmp_path: Path) -> None:
    script.listops_lra(tmp_path, counts=(30, 6, 6))
    files = {split: tmp_path / f"listops_lra_{split}.tsv.gz" for split in ("train", "val", "test")}
    columns = {"sequence_column": "Source", "label_column": "Target"}
    options = {"validation_file": str(files["val"]), "test_file": str(files["test"])}
    data = load_sequences(str(files["train"]), **options, **columns)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 30, "validation": 6, "test": 6}
    rows = [row for split in data.values() for row in split]
    assert len({row["Source"] for row in rows}) == 42
    deepest, most = 0, 0
    for row in rows:
        tokens = row["Source"].split()
        assert 500 < len(tokens) < 2000
        # The evaluator of the short expressions is independent of the generator.
        assert script.value_of(tokens) == int(row["Target"])
        counts: list[int] = []
        for token in tokens:
            if token == "]":
                assert 2 <= counts[-1] <= 10
                most = max(most, counts.pop())
            if counts and token not in script.OPERATORS:
                counts[-1] += 1
            if token in script.OPERATORS:
                counts.append(0)
            deepest = max(deepest, len(counts))
        assert not counts
    assert most == 10
    assert 7 <= deepest <= 9
