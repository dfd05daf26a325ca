"""Reading csv, tsv and json files, and what is said of those that cannot be read."""

import gzip
import json

import pytest

from hf_ssm.data.tables import read_table

ROWS = 'sequence,label,score,note\nNAN,0,1.5,\nNA,1,nan,"a, ""b"""\n\nacgt,1,2,x\n'
COLUMNS = {
    "sequence": ["NAN", "NA", "acgt"],
    "label": [0, 1, 1],
    "score": [1.5, None, 2.0],
    "note": [None, 'a, "b"', "x"],
}


@pytest.fixture
def write(tmp_path):
    """`write(name, content)`: the path of a new file; content for a name in .gz is compressed."""

    def write_file(name, content):
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", ROWS),
        ("a.CSV.gz", ROWS),
        ("a.csv", ROWS.replace("\n", "\r\n")),
        ("a.csv", "\ufeff" + ROWS),
        ("a.tsv", 'sequence\tlabel\tscore\tnote\nNAN\t0\t1.5\t\nNA\t1\tnan\ta, "b"\nacgt\t1\t2\tx\n'),
    ],
)
def test_delimited_files(write, name, content):
    columns = read_table(write(name, content), ["sequence"])
    assert columns == COLUMNS
    assert [type(value) for value in columns["label"]] == [int, int, int]


RECORDS = [{"sequence": "AC", "label": 0}, {"sequence": "GT", "label": 1, "more": "x"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(RECORDS)),
        ("a.json.gz", json.dumps(RECORDS)),
        ("a.jsonl", "\n".join(map(json.dumps, RECORDS)) + "\n\n"),
        ("a.jsonl.gz", "\n".join(map(json.dumps, RECORDS))),
        ("a.json", "\n".join(map(json.dumps, RECORDS))),  # lines under the name .json, as many have them
        ("a.json", json.dumps({"sequence": ["AC", "GT"], "label": [0, 1], "more": [None, "x"]})),
    ],
)
def test_json_files(write, name, content):
    assert read_table(write(name, content), []) == {"sequence": ["AC", "GT"], "label": [0, 1], "more": [None, "x"]}


def test_fields_longer_than_csvs_limit(write):
    sequence = "ACGT" * 100_000
    assert read_table(write("a.csv", f"sequence,label\n{sequence},0\n"), [])["sequence"] == [sequence]


def test_cells_that_only_look_like_numbers_stay_text(write):
    columns = read_table(write("a.csv", "a,b,c\n1_000,1e3,12345678901234567890\n2,2,3\n"), [])
    assert columns == {"a": ["1_000", "2"], "b": [1000.0, 2.0], "c": [12345678901234567890.0, 3.0]}


COMPRESSED = gzip.compress(ROWS.encode() * 100, mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "is empty"),
        ("a.csv", gzip.compress(b"", mtime=0), "no rows"),
        ("a.csv", b"sequence,label\n", "no rows"),
        ("a.csv", b"\x89PNG\xff\xfe\x00" * 50, "not UTF-8 text"),
        ("a.csv", b"a\x00b,label\n1,2\n", "NUL"),
        ("a.csv", b"a,b,a\n1,2,3\n", r"names \['a'\] more than once"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"line 3: 3 cells where the header has 2"),
        ("a.csv", b"a,b\n1,2\n1\n", r"line 3: 1 cells where the header has 2"),
        ("a.csv", b'a,b\n1,"x\n2,y\n', "unexpected end"),
        ("a.json", b"[1, 2", "not JSON"),
        ("a.json", b"[1, 2]", "row 1: int where an object"),
        ("a.json", b'{"a": [1, 2], "b": [1]}', "different lengths"),
        ("a.json", b'{"a": [1, 2], "b": 1}', "not all lists"),
        ("a.jsonl", b'{"a": 1}\n{"a": 1\n', "line 2: not JSON"),
        ("a.json", b"[]", "no rows"),
    ],
)
def test_unreadable_content_is_refused(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path, [])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (COMPRESSED[:-30], "truncated"),
        (COMPRESSED[:40] + b"\xff" * 40 + COMPRESSED[80:], "damaged"),
        (ROWS.encode(), "not gzip"),
    ],
)
def test_bad_gzip_is_refused(tmp_path, data, message):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_table(path, [])


def test_gzip_under_another_name_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(ROWS.encode()))
    assert read_table(path, ["sequence"]) == COLUMNS


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.csv"):
        read_table(tmp_path / "absent.csv", [])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        read_table(tmp_path / "folder.csv", [])
