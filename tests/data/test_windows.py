"""FASTA in the Arrow cache: equal rows, splits without leaks, nothing stale, nothing partial."""

import logging
import os
import random

import pytest
import torch

from hf_ssm.data import fasta, load_sequences, tokenize, with_random_reverse_complement
from hf_ssm.data.signals import fingerprint
from hf_ssm.tokenization import build_dna_tokenizer
from hf_ssm.training.inputs import load_data
from hf_ssm.training.settings import resolve

CONTIGS = {"chr1": 5003, "chr2": 1024, "chr3": 200, "scaffold": 2600}

# Rows and hashes of the splits, by the code before there was a cache.
RECORDED = {
    ("dna", ()): {
        "train": (50, "3349f45f6f92003878fcaba9b4c56844"),
        "validation": (6, "8f38c413f855512c84a5f63f711b0026"),
        "test": (7, "bc37349e3cbbf74cf9e3bb6bca15fc7c"),
    },
    ("byte", (("keep_case", True), ("max_length", 100))): {
        "train": (50, "e8a043f6d832da4545f83b2e6da01c35"),
        "validation": (6, "558811147ac6938aea9fa71222e6ce35"),
        "test": (7, "b3839309de192ba1dc13e2b4c52fe82f"),
    },
    ("dna", (("min_window", 10), ("seed", 3))): {
        "train": (53, "f6d16e36ccf76e77aaf33e5e4c562b43"),
        "validation": (6, "e89f73cb949e85bf3e78515522a643e8"),
        "test": (6, "a977215f7ca5dbce403a5d33f0f247ae"),
    },
}


@pytest.fixture
def genome(tmp_path):
    """Four contigs with runs of N, soft-masked and ambiguous letters, and equal windows."""
    rng = random.Random(7)
    lines = []
    for name, length in CONTIGS.items():
        letters = rng.choices("ACGT", k=length)
        for begin, size in ((300, 150), (900, 40)):
            letters[begin : begin + size] = "N" * len(letters[begin : begin + size])
        letters[100:180] = [letter.lower() for letter in letters[100:180]]
        letters[40:42] = "RY"
        if length > 2000:
            letters[1280:1408] = letters[1152:1280]
        text = "".join(letters)
        lines += [f">{name} of a test"] + [text[start : start + 60] for start in range(0, length, 60)]
    path = tmp_path / "genome.fa"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_data(path, **data):
    data = {"dataset": str(path), "window": 128, "tokenizer": "dna", **data}
    return load_data(resolve({"data": data, "model": {"task": "causal-lm"}}))


def rows_of(splits):
    return {name: list(split) for name, split in splits.items()}


@pytest.mark.parametrize(("tokenizer", "options"), RECORDED)
def test_tokens_splits_and_order_are_those_of_earlier_versions(genome, tokenizer, options):
    splits = run_data(genome, tokenizer=tokenizer, **dict(options)).splits
    assert {name: (len(rows), fingerprint(rows)) for name, rows in splits.items()} == RECORDED[tokenizer, options]


def test_strands_are_drawn_when_rows_are_read(genome):
    tokens, drawn = run_data(genome).splits["train"], []
    for _ in range(2):
        torch.manual_seed(1)
        rows = with_random_reverse_complement(tokens, build_dna_tokenizer())
        drawn.append([rows[index]["input_ids"] for index in range(10)])
    assert drawn[0] == drawn[1] != tokens["input_ids"][:10]


def test_a_setting_of_earlier_versions_is_ignored(genome):
    """`data.lazy` read the same rows."""
    assert rows_of(run_data(genome, lazy=True).splits) == rows_of(run_data(genome).splits)


@pytest.mark.parametrize("window, stride", [(128, 128), (128, 50), (7, 3), (1000, 999), (4000, 4000)])
def test_windows_cut_from_pieces_are_those_of_whole_records(genome, monkeypatch, window, stride):
    monkeypatch.setattr(fasta, "_PIECE", 100)
    facts = {}
    found = list(fasta.fasta_windows(genome, window, stride, 1, True, facts))
    expected = [
        {"sequence": sequence[first:stop], "name": name, "start": first}
        for name, sequence in fasta.read_fasta(genome)
        for first, stop in fasta.spans(len(sequence), window, stride)
    ]
    kept = [row for row in expected if row["sequence"].upper().count("N") <= len(row["sequence"]) / 2]
    assert found == kept
    assert (facts["skipped"], facts["in_lower_case"]) == (len(expected) - len(kept), False)


def test_overlapping_windows_of_two_splits_share_no_base(genome, caplog):
    with caplog.at_level(logging.WARNING):
        splits = load_sequences(genome, window=128, stride=32, keep_case=True)
    assert "which overlap windows of another split" in caplog.text
    covered = {}
    for name, rows in splits.items():
        covered[name] = {
            (row["name"], base) for row in rows for base in range(row["start"], row["start"] + len(row["sequence"]))
        }
        assert len(rows) > 5
    names = list(covered)
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            assert not covered[name] & covered[other]


def test_contigs_are_splits(genome):
    splits = load_sequences(genome, window=128, validation_contigs=["chr2", "chr3"], test_fraction=0.0)
    assert set(splits["validation"]["name"]) == {"chr2", "chr3"}
    assert set(splits["train"]["name"]) == {"chr1", "scaffold"}
    assert "test" not in splits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation_contigs": ["chr22"]}, r"validation_contigs=\['chr22'\]: .* contig 'chr22' \(did you mean"),
        ({"validation_contigs": ["chr2"], "test_contigs": ["chr2"]}, "'chr2' is named twice"),
        ({"test_contigs": list(CONTIGS)}, "no contig is left for 'train'"),
        ({"stride": 200}, "stride=200: give a whole number from 1 to 128"),
        ({"window": 4000, "stride": 2000}, "split by blocks of 16000 bases, and there are"),
    ],
)
def test_unfit_windows_are_refused(genome, options, message):
    with pytest.raises(ValueError, match=message):
        load_sequences(genome, **{"window": 128, **options})


def test_options_of_fasta_are_refused_for_tables(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("sequence,label\nACGT,0\nAC,1\n")
    for options in ({"stride": 5}, {"test_contigs": ["chr1"]}):
        with pytest.raises(ValueError, match=r"is for FASTA files .*omit "):
            load_sequences(path, **options)


def test_proteins_are_refused(tmp_path):
    path = tmp_path / "proteins.fa"
    path.write_text(">a\n" + "ACGT" * 10 + "\n>b\n" + "MKLFWPEQ" * 5 + "\n")
    with pytest.raises(ValueError, match=r"row 2 of 'train': .* letters of 'MKLF"):
        run_data(path, window=40, validation_fraction=0.0, test_fraction=0.0)


class TestCache:
    def test_a_second_run_reads_the_cache(self, genome, monkeypatch, caplog):
        first = run_data(genome)
        monkeypatch.setattr(fasta, "_lines", None)
        monkeypatch.setattr("hf_ssm.data.tokenized._Encoder.__call__", None)
        with caplog.at_level(logging.WARNING):
            assert rows_of(run_data(genome).splits) == rows_of(first.splits)
        # What the first run found is told again.
        assert "skipped 6 windows that consist of more than half N" in caplog.text
        assert first.splits["train"].cache_files

    def test_other_arguments_tokenizers_and_contents_make_other_rows(self, genome):
        first = rows_of(run_data(genome).splits)
        assert rows_of(run_data(genome, max_length=60).splits) != first
        assert rows_of(run_data(genome, tokenizer="byte").splits) != first
        assert rows_of(run_data(genome, window=64).splits) != first
        before = genome.stat()
        text = genome.read_text()
        genome.write_text(text.replace("A", "C", 1))
        os.utime(genome, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert genome.stat().st_size == before.st_size and genome.stat().st_mtime_ns == before.st_mtime_ns
        rows = [row for name in first for row in first[name]]
        assert sum(row not in rows for split in run_data(genome).splits.values() for row in split) == 1

    def test_processes_make_the_same_tokens(self, genome):
        expected = rows_of(run_data(genome, max_length=90).splits)
        # The number of processes changes neither rows nor their order, and files of another number are used again.
        genome.write_text(genome.read_text() + ">more\n" + "ACGTTGCA" * 16 + "\n")
        parallel = run_data(genome, max_length=90, num_proc=2)
        assert rows_of(parallel.splits) == rows_of(run_data(genome, max_length=90).splits) != expected

    def test_an_interrupted_run_leaves_nothing_that_counts(self, genome, monkeypatch):
        genome.write_text(genome.read_text() + ">last\n" + "ACGT" * 64 + "\n")
        expected = sum(map(len, load_sequences(genome, window=128).values()))
        genome.write_text(genome.read_text().replace(">last", ">latest"))
        lines = fasta._lines

        def interrupted(path):
            for number, line in enumerate(lines(path)):
                if number == 100:
                    raise KeyboardInterrupt
                yield line

        with monkeypatch.context() as patch:
            patch.setattr(fasta, "_lines", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run_data(genome)
        assert sum(map(len, run_data(genome).splits.values())) == expected

    def test_large_tables_have_their_tokens_on_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hf_ssm.data.tokenized._MOST_IN_MEMORY", 100)
        path = tmp_path / "rows.csv"
        path.write_text("sequence,label\n" + "".join(f"{'ACGT' * (5 + row)},{row % 2}\n" for row in range(20)))
        data = load_sequences(path)
        tokens = tokenize(data, build_dna_tokenizer())
        assert tokens["train"].cache_files
        assert [len(ids) for ids in tokens["train"]["input_ids"]] == [len(text) for text in data["train"]["sequence"]]
