"""FASTA in the Arrow cache and by lazy windows: equal rows, splits without leaks, nothing stale, nothing partial."""

import gzip
import logging
import os
import pickle
import random

import pytest
import torch
from torch.utils.data import DataLoader

from hf_ssm.data import FastaWindows, fasta, load_sequences, tokenize, with_random_reverse_complement
from hf_ssm.data.signals import fingerprint
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer
from hf_ssm.training.inputs import load_data
from hf_ssm.training.run import _fingerprints
from hf_ssm.training.settings import resolve

pysam = pytest.importorskip("pysam")

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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 50, "keep_case": True},
        {"validation_contigs": ["chr2"], "test_contigs": ["chr3"], "min_window": 1},
        {"stride": 64, "validation_contigs": ["chr2"], "test_fraction": 0.0},
    ],
)
def test_lazy_windows_are_the_rows_of_the_cache(genome, options):
    cached, lazy = (load_sequences(genome, window=128, lazy=lazy, **options) for lazy in (False, True))
    assert rows_of(cached) == rows_of(lazy)
    assert isinstance(lazy["train"], FastaWindows)
    for tokenizer in (build_dna_tokenizer(add_eos=True), build_byte_tokenizer()):
        tokens = (tokenize(splits, tokenizer, label_column=None, max_length=100) for splits in (cached, lazy))
        expected, found = map(rows_of, tokens)
        assert expected == found


@pytest.mark.parametrize("compressed", ["gzip", "bgzip"])
def test_workers_read_lazy_windows_of_compressed_files(genome, compressed):
    path = genome.with_name("genome.fa.gz")
    if compressed == "gzip":
        path.write_bytes(gzip.compress(genome.read_bytes()))
    else:
        pysam.tabix_compress(str(genome), str(path))
    tokens = tokenize(load_sequences(path, window=128, lazy=True), build_dna_tokenizer(), label_column=None)["train"]
    expected = run_data(genome).splits["train"]["input_ids"][:]
    batches = DataLoader(tokens, batch_size=4, num_workers=2, collate_fn=list)
    assert [row["input_ids"] for batch in batches for row in batch] == expected
    # As a worker that is spawned receives it.
    assert pickle.loads(pickle.dumps(tokens.select([3, 1])._genome)).fetch("chr3", 0, 10) == tokens._genome.fetch(
        "chr3", 0, 10
    )
    assert [path.name for path in genome.parent.iterdir() if path.suffix in (".fai", ".gzi")] == []


def test_strands_are_drawn_alike(genome):
    tokens = []
    for lazy in (False, True):
        torch.manual_seed(1)
        rows = with_random_reverse_complement(run_data(genome, lazy=lazy).splits["train"], build_dna_tokenizer())
        tokens.append([rows[index]["input_ids"] for index in range(10)])
    assert tokens[0] == tokens[1]
    assert tokens[0] != run_data(genome).splits["train"]["input_ids"][:10]


def test_a_run_on_lazy_windows_knows_its_lengths_and_its_rows(genome):
    data = run_data(genome, lazy=True)
    assert data.longest == run_data(genome).longest == 128
    assert data.batch(data.splits["train"].select([0, 2]))["input_ids"].shape == (2, 128)
    hashes = _fingerprints(data.splits)
    assert hashes == _fingerprints(run_data(genome, lazy=True).splits)
    assert hashes["train"] != _fingerprints(run_data(genome, lazy=True, seed=1).splits)["train"]
    assert hashes["train"] != _fingerprints(run_data(genome, lazy=True, tokenizer="byte").splits)["train"]


@pytest.mark.parametrize("window, stride", [(128, 128), (128, 50), (7, 3), (1000, 999), (4000, 4000)])
def test_windows_cut_from_pieces_are_those_of_whole_records(genome, monkeypatch, window, stride):
    monkeypatch.setattr(fasta, "_PIECE", 100)
    facts = {}
    found = list(fasta.fasta_rows(genome, window, stride, 1, True, facts))
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
    for options in ({"lazy": True}, {"stride": 5}, {"test_contigs": ["chr1"]}):
        with pytest.raises(ValueError, match=r"is for FASTA files .*omit "):
            load_sequences(path, **options)


def test_proteins_are_refused_by_both_routes(tmp_path):
    path = tmp_path / "proteins.fa"
    path.write_text(">a\n" + "ACGT" * 10 + "\n>b\n" + "MKLFWPEQ" * 5 + "\n")
    for lazy in (False, True):
        with pytest.raises(ValueError, match=r"row 2 of 'train': .* letters of 'MKLF"):
            run_data(path, window=40, lazy=lazy, validation_fraction=0.0, test_fraction=0.0)


class TestCache:
    def test_a_second_run_reads_the_cache(self, genome, monkeypatch, caplog):
        first, first_lazy = run_data(genome), run_data(genome, lazy=True)
        monkeypatch.setattr(fasta, "_lines", None)
        monkeypatch.setattr("hf_ssm.data.tokenized._Encoder.__call__", None)
        with caplog.at_level(logging.WARNING):
            assert rows_of(run_data(genome).splits) == rows_of(first.splits)
        # What the first run found is told again.
        assert "skipped 6 windows that consist of more than half N" in caplog.text
        assert len(run_data(genome, lazy=True).splits["train"]) == len(first_lazy.splits["train"])
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
        for lazy in (False, True):
            changed = run_data(genome, lazy=lazy).splits
            rows = [row for name in first for row in first[name]]
            assert sum(row not in rows for split in changed.values() for row in split) == 1

    def test_processes_make_the_same_tokens(self, genome):
        expected = rows_of(run_data(genome, max_length=90).splits)
        # The number of processes changes neither rows nor their order, and files of another number are used again.
        genome.write_text(genome.read_text() + ">more\n" + "ACGTTGCA" * 16 + "\n")
        parallel = run_data(genome, max_length=90, num_proc=2)
        assert rows_of(parallel.splits) == rows_of(run_data(genome, max_length=90).splits) != expected

    def test_an_interrupted_run_leaves_nothing_that_counts(self, genome, monkeypatch):
        genome.write_text(genome.read_text() + ">last\n" + "ACGT" * 64 + "\n")
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
        assert sum(map(len, run_data(genome).splits.values())) == sum(
            map(len, run_data(genome, lazy=True).splits.values())
        )

    def test_large_tables_have_their_tokens_on_disk(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hf_ssm.data.tokenized._MOST_IN_MEMORY", 100)
        path = tmp_path / "rows.csv"
        path.write_text("sequence,label\n" + "".join(f"{'ACGT' * (5 + row)},{row % 2}\n" for row in range(20)))
        data = load_sequences(path)
        tokens = tokenize(data, build_dna_tokenizer())
        assert tokens["train"].cache_files
        assert [len(ids) for ids in tokens["train"]["input_ids"]] == [len(text) for text in data["train"]["sequence"]]


def test_other_letters_than_those_of_the_file_are_not_read(tmp_path):
    """An index of another file that is not older, and letters in comments, which faidx counts."""
    path = tmp_path / "a.fa"
    path.write_text(">a\n" + "ACGTTGCA\n" * 20)
    pysam.faidx(str(path))
    path.write_text(">a longer\n" + "ACGTTGCA\n" * 20)
    os.utime(path, (0, 0))
    commented = tmp_path / "b.fa"
    commented.write_text(">a\n" + "ACGTTGCA\n" * 9 + ";CCCCCCC\n" + "ACGTTGCA\n" * 11)
    for source in (path, commented):
        windows = load_sequences(source, window=16, lazy=True, validation_fraction=0.0, test_fraction=0.0)["train"]
        with pytest.raises(ValueError, match=r"has other letters than when the file was loaded: .* index \(.fai\)"):
            list(windows)
