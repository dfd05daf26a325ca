"""The input field and uploaded files."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gradio")

from hf_ssm.app.reading import MOST_LETTERS, MOST_SEQUENCES, read_numbers, read_sequences, read_upload


def test_one_sequence_and_fasta() -> None:
    (record,) = read_sequences(" ACG\nTTn \n", True)
    assert record.sequence == "ACGTTn"
    assert [own.sequence for own in read_sequences(">a b\nAC\nGT\n>c\nTT\n", True)] == ["ACGT", "TT"]
    (text,) = read_sequences(" two words ", False)
    assert text.sequence == "two words"
    assert [own.sequence for own in read_sequences(">a\nA fine film,\nno?\n>b\nTT\n", False)] == [
        "A fine film,\nno?",
        "TT",
    ]
    with pytest.raises(ValueError, match="FASTA text cannot be read"):
        read_sequences(">a\n>b\nwords here", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no sequence: paste one"),
        ("  \n", "no sequence: paste one"),
        ("MKVLE", "'L' at position 4, which is no letter of DNA"),
        (">a\nMKVLE", "Record 'a' has 'L'"),
        (">\nACGT", "FASTA text cannot be read: line 1: the header has no name"),
        (">a\n>b\nAC", "record 'a' has no sequence"),
        ("A" * (MOST_LETTERS + 1), "more than 200,000 letters"),
    ],
)
def test_bad_sequences(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_sequences(text, True)


def test_numbers() -> None:
    assert np.array_equal(read_numbers("1, 2\n3;4\n", 2), [[1, 2], [3, 4]])
    assert np.array_equal(read_numbers("x, y\n1 2\n", 2), [[1, 2]])
    assert np.array_equal(read_numbers("1 2 3", 1), [[1], [2], [3]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no numbers"),
        ("1\n2, x\n", "Line 2: 'x'"),
        ("1, 2\n3\n", "Line 2 has 1 numbers"),
        ("nan, 1", "Line 1: 'nan'"),
    ],
)
def test_bad_numbers(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_numbers(text, 2)


def test_uploads(tmp_path: Path) -> None:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    assert read_upload(written("a.fa", ">x\nAC\nGT\n")) == ">x\nACGT"
    assert read_upload(written("a.csv", "seq,name\nACGT,first one\nTT,b\n")) == ">first_one\nACGT\n>b\nTT"
    assert read_upload(written("u.csv", "seq,name\nACGT,\nTT, \n")) == ">row_1\nACGT\n>row_2\nTT"
    reviews = read_upload(written("r.csv", "text,label\nA fine film.,1\nToo long!,0\n"))
    assert [own.sequence for own in read_sequences(reviews, False)] == ["A fine film.", "Too long!"]
    assert read_upload(written("a.txt", "ACGT")) == "ACGT"
    assert read_upload(written("n.csv", "1,2\n"), reads_numbers=True) == "1,2\n"
    bad = [
        (written("b.fa", "no header\n"), "'b.fa' cannot be read: line 1"),
        (written("b.csv", "name,label\na,1\n"), "no such column"),
        (written("b.pdf", "x"), "upload a FASTA file"),
        (written("c.fa", "".join(f">r{n}\nA\n" for n in range(MOST_SEQUENCES + 1))), "more than 100 sequences"),
        (written("d.fa", f">r\n{'A' * (MOST_LETTERS + 1)}\n"), "more than 200,000 letters"),
    ]
    for path, message in bad:
        with pytest.raises(ValueError, match=message) as error:
            read_upload(path)
        # The path on the server is nobody's business.
        assert str(tmp_path) not in str(error.value)
    (tmp_path / "e.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="no text file"):
        read_upload(tmp_path / "e.txt")
