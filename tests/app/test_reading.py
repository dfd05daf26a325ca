"""The input field and uploaded files."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gradio")

from hf_ssm.app.reading import MOST_BYTES, MOST_LETTERS, MOST_SEQUENCES, read_numbers, read_sequences, read_upload


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
        ("MKVLE", "'L' at position 4, which is not a letter of DNA"),
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
        # Infinite in single precision, in which models compute.
        ("1, 1e39", "Line 1: '1e39'"),
        ("1" * 400, "is not a finite number"),
        ("1 1\n" * MOST_BYTES, "more than 2,000,000 letters"),
        ("1 1\n" * (MOST_LETTERS + 1), "more than 200,000 positions"),
    ],
)
def test_bad_numbers(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_numbers(text, 2)


@pytest.mark.parametrize(
    ("table", "names"),
    [
        ("Sequence,ID\nAC,007\nGT,x y", ["007", "x_y"]),
        ("label,seq,name\n0,AC,b\n1,GT,b", ["b", "b"]),
        ("score,kind,sequence\n0.5,k,AC\n0.7,k,GT", ["row_1", "row_2"]),
        ("sequence,label\nAC,coding\nGT,other", ["row_1", "row_2"]),
        ("id,sequence\n,AC\nb,GT", ["row_1", "b"]),
    ],
)
def test_names_of_the_rows_of_a_table_are_kept(tmp_path: Path, table: str, names: list[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(table)
    assert read_upload(path) == "\n".join(
        f">{name}\n{letters}" for name, letters in zip(names, ("AC", "GT"), strict=True)
    )


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
    with pytest.raises(ValueError, match="not a text file"):
        read_upload(tmp_path / "e.txt")


def test_numbers_in_one_line_are_limited() -> None:
    with pytest.raises(ValueError, match="more than 200,000 positions"):
        read_numbers("1 " * (MOST_LETTERS + 1), 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv.gz", gzip.compress(b"sequence,note\nACGT," + b"A" * 10 * MOST_BYTES, mtime=0), "more than 2 MB"),
        ("a.txt.gz", gzip.compress(b"A" * 10 * MOST_BYTES, mtime=0), "more than 2 MB"),
        ("a.fa.gz", gzip.compress(b">a\nA\n;" + b" " * 10 * MOST_BYTES, mtime=0), "more than 2 MB"),
        ("a.csv", b"sequence,note\nACGT," + b"A" * MOST_BYTES, "more than 2 MB"),
        ("a.csv", b"sequence,x" + b"\nA,x" * 101, "more than 100 sequences"),
        ("a.csv", "sequence\nACGT\n".encode("utf-16"), "not a text file in UTF-8"),
        ("a.csv", gzip.compress(b"sequence\nACGT\n", mtime=0), "not a text file in UTF-8"),
        ("a.csv.gz", gzip.compress(os.urandom(1000))[:-20], "cannot be read: Compressed file ended"),
        ("a.csv.gz", b"sequence\nACGT\n", "cannot be read: Not a gzipped file"),
        ("a.csv", b'sequence\n"ACGT\n>b\nACGT"\n', "line 2 has a line that begins with '>'"),
        ("a.csv", b"sequence" + b",x" * 900 + b"\nA" + b",x" * 900, "are not unique|[.][.][.]"),
    ],
)
def test_uploads_beyond_the_limits(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_upload(tmp_path / name)
    assert str(tmp_path) not in str(error.value) and len(str(error.value)) < 500


def test_the_largest_uploads(tmp_path: Path) -> None:
    """Long cells, many columns, and compressed text."""
    letters = "ACGT" * (MOST_LETTERS // 4)
    cells = "x," * 998 + "x"
    (tmp_path / "a.csv").write_text(f"sequence,{','.join(map(str, range(999)))}\n{letters},{cells}\n")
    assert read_upload(tmp_path / "a.csv") == f">row_1\n{letters}"
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfAC\r\nGT"))
    assert read_upload(tmp_path / "a.txt.gz") == "AC\nGT"
