"""FASTA records, their windows, and malformed files."""

import gzip
import logging

import pytest

from hf_ssm.data.fasta import load_fasta, read_fasta, stream_windows

TEXT = "; a comment\n>chr1 first record\r\nACGT\nacgtn\n\n>chr2\nGGG\nC*\n"


@pytest.fixture
def fasta(tmp_path):
    """`fasta(text)`: the path of a file with that text."""

    def write(text, name="a.fa"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


@pytest.mark.parametrize("name", ["a.fa", "a.fna.gz"])
def test_records(fasta, name):
    assert list(read_fasta(fasta(TEXT, name))) == [("chr1", "ACGTacgtn"), ("chr2", "GGGC*")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n", "line 1: 'ACGT' is not a header"),
        (">a\nACGT\nchr2 second record\nACGT\n", "line 3: 'chr2 second record' is not a line of sequence"),
        (">a\nAC1GT\n", "line 2: 'AC1GT'"),
        (">a\n>b\nACGT\n", "the record 'a' has no sequence"),
        (">a\nACGT\n>b\n", "the record 'b' has no sequence"),
        (">\nACGT\n", "line 1: the header has no name"),
        ("\n\n", "no FASTA record"),
    ],
)
def test_malformed_files_are_refused(fasta, text, message):
    with pytest.raises(ValueError, match=message):
        list(read_fasta(fasta(text)))


def test_long_lines_are_cut_like_short_ones(fasta, monkeypatch):
    """A chromosome in one line: the windows are those of short lines."""
    letters = "".join("ACGT"[n * n % 7 % 4] for n in range(5000))
    short = fasta(">a x\n" + "\n".join(letters[n : n + 60] for n in range(0, 5000, 60)) + "\n>b\nGG\n", "short.fa")
    long = fasta(f">a x\n{letters}\n>b\nGG\n", "long.fa")
    monkeypatch.setattr("hf_ssm.data.fasta._PIECE", 64)
    assert list(read_fasta(long)) == list(read_fasta(short)) == [("a", letters), ("b", "GG")]
    assert list(stream_windows(long, 100, 10)) == list(stream_windows(short, 100, 10))
    with pytest.raises(ValueError, match="line 2: 'AAAA"):
        list(read_fasta(fasta(f">a\n{'A' * 64}1{'A' * 80}\n")))


def test_windows_cover_the_records_without_overlap(fasta):
    columns = load_fasta(fasta(">a\nACGTACGTAC\n>b\nGGG\n>c\nTT\n"), window=4, stride=4, min_window=3)
    assert columns.to_dict() == {"sequence": ["ACGT", "ACGT", "GGG"], "name": ["a", "a", "b"], "start": [0, 4, 0]}
    assert load_fasta(fasta(">a\nACGTAC\n"), window=4, stride=4, min_window=2)["sequence"][:] == ["ACGT", "AC"]


def test_windows_of_mostly_n_are_left_out_and_counted(fasta, caplog):
    with caplog.at_level(logging.WARNING):
        columns = load_fasta(fasta(">a\nACNNNNnnACGTnnnA\n"), window=4, stride=4, min_window=4)
    assert columns["start"][:] == [0, 8]
    assert "skipped 2 windows" in caplog.text


def test_windows_are_in_capitals_unless_the_case_is_kept(fasta, caplog):
    path = fasta(">a\nACgtacGT\n>b\nacgt\n", "soft_masked.fa")
    assert load_fasta(path, window=4, stride=4, min_window=4)["sequence"][:] == ["ACGT", "ACGT", "ACGT"]
    assert "soft_masked.fa: lower-case" in caplog.text and len(caplog.records) == 1
    assert load_fasta(path, window=4, stride=4, min_window=4, keep_case=True)["sequence"][:] == ["ACgt", "acGT", "acgt"]


def test_no_window_is_an_error(fasta):
    with pytest.raises(ValueError, match=r"min_window=4 .*longest record has 3 bases. .*--set data.min_window=1"):
        load_fasta(fasta(">a\nACG\n"), window=8, stride=8, min_window=4)


def test_real_genome(shared_data):
    records = dict(read_fasta(shared_data / "lambda_phage.fa.gz"))
    assert [len(sequence) for sequence in records.values()] == [48_502]
    columns = load_fasta(shared_data / "lambda_phage.fa.gz", window=1000, stride=1000, min_window=500)
    assert len(columns["sequence"]) == 49
    assert "".join(columns["sequence"][:]) == next(iter(records.values()))
