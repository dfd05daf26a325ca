"""Tables: formats, errors, splits by file, and pairs of texts."""

import gzip
import json
import logging

import pytest
from datasets import ClassLabel

from hf_ssm.data import load_sequences, tokenize
from hf_ssm.data.tables import as_numbers, read_cells
from hf_ssm.tokenization import build_byte_tokenizer

NO_CUT = {"validation_fraction": 0.0, "test_fraction": 0.0}
ROWS = 'sequence,label,score,note\nNAN,0,1.5,\nNA,1,nan,"a, ""b"""\n\nacgt,1,2,x\n'
COLUMNS = {
    "sequence": ["NAN", "NA", "acgt"],
    "label": [0, 1, 1],
    "score": [1.5, None, 2.0],
    "note": [None, 'a, "b"', "x"],
}
RECORDS = [{"sequence": "AC", "label": 0}, {"sequence": "GT", "label": 1, "more": "x"}]


def read_table(path, texts):
    """The columns of a table, those of csv and tsv files but `texts` as numbers where they are."""
    columns = read_cells(path)[0]
    is_text = "json" not in path.name
    return {name: as_numbers(of) if is_text and name not in texts else of for name, of in columns.items()}


@pytest.fixture
def write(tmp_path):
    """`write(name, content)`: the path of a new file, compressed if the name ends in .gz."""

    def write_file(name, content):
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.lower().endswith(".gz") else data)
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
def test_csv_and_tsv(write, name, content):
    columns = read_table(write(name, content), ["sequence"])
    assert columns == COLUMNS
    assert [type(value) for value in columns["label"]] == [int, int, int]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json.gz", json.dumps(RECORDS)),
        ("a.jsonl", "\n".join(map(json.dumps, RECORDS)) + "\n\n"),
        ("a.json", "\n".join(map(json.dumps, RECORDS))),
        ("a.json", json.dumps({"sequence": ["AC", "GT"], "label": [0, 1], "more": [None, "x"]})),
    ],
)
def test_json(write, name, content):
    assert read_table(write(name, content), []) == {"sequence": ["AC", "GT"], "label": [0, 1], "more": [None, "x"]}


def test_cells_are_numbers_only_if_written_as_such(write):
    columns = read_table(write("a.csv", "a,b,c\n1_000,1e3,12345678901234567890\n2,2,3\n"), [])
    assert columns == {"a": ["1_000", "2"], "b": [1000.0, 2.0], "c": [12345678901234567890.0, 3.0]}


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"", "no rows"),
        ("a.csv", b"sequence,label\n", "no rows"),
        ("a.csv", b"a,b,a\n1,2,3\n", r"\['a', 'b', 'a'\] are not unique"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"line 3 has 3 cells, but the columns are \['a', 'b'\]"),
        ("a.csv", b'a,b\n1,"x\n2,y\n', "line 2: unexpected end of data.*quoted=False"),
        ("a.json", b"[1, 2", "delimiter"),
        ("a.json", b"[1, 2]", "row 1 is not a json object"),
        ("a.json", b'{"a": [1, 2], "b": [1]}', "all lists must have the same length"),
        ("a.jsonl", b'{"a": 1}\n{"a": 1\n', "line 2 is not json"),
        ("a.json", b"[]", "no rows"),
    ],
)
def test_unreadable_tables(write, name, data, message):
    path = write(name, data)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path, [])
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.csv'.*no such file"):
        read_table(tmp_path / "absent.csv", [])
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="directory"):
        read_table(tmp_path / "folder.csv", [])


def test_a_file_per_split(write):
    train = write("train.tsv", "Source\tTarget\tmore\nA\t0\tx\nC\t1\ty\nG\t1\tz\n")
    test = write("test.tsv", "Target\tSource\n1\tT\n0\tTT\n")
    dev = write("dev.tsv", "Source\tTarget\tsplit\nGG\t1\ttrain\n")
    columns = {"sequence_column": "Source", "label_column": "Target"}
    data = load_sequences(train, validation_file=dev, test_file=str(test), **columns)
    assert {name: split.to_dict() for name, split in data.items()} == {
        "train": {"Source": ["A", "C", "G"], "Target": [0, 1, 1]},
        "validation": {"Source": ["GG"], "Target": [1]},
        "test": {"Source": ["T", "TT"], "Target": [1, 0]},
    }


def test_a_split_column_and_a_file(write, caplog):
    train = write("train.csv", "sequence,label,split\nA,0,train\nC,1,train\nG,1,dev\nT,0,odd\n")
    test = write("test.csv", "sequence,label\nA,0\n")
    with caplog.at_level(logging.WARNING):
        data = load_sequences(train, test_file=test)
    texts = {name: split["sequence"][:] for name, split in data.items()}
    assert texts == {"train": ["A", "C"], "validation": ["G"], "test": ["A"]}
    assert "1 sequences of split 'test' also occur in 'train'" in caplog.text
    with pytest.raises(ValueError, match=r"validation_file=.*already marks validation rows.*split_column=None"):
        load_sequences(train, validation_file=test)


def test_names_of_classes_are_shared_by_all_files(write):
    train = write("train.csv", "sequence,label\nA,worm\nC,fly\n")
    test = write("test.csv", "sequence,label\nG,human\nT,fly\n")
    data = load_sequences(train, test_file=test, validation_fraction=0)
    assert data["test"].features["label"] == ClassLabel(names=["fly", "human", "worm"])
    assert (data["train"]["label"][:], data["test"]["label"][:]) == ([2, 0], [1, 0])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("sequence,label\nA,\nC,1", r"train.csv and test.csv has rows without a label \(line 2 of test.csv\)"),
        ("sequence,label\nA,0\n ,1", r"empty sequences \(line 3 of test.csv\)"),
        ("sequence,label\nA,3", r"classes of train.csv and test.csv are \[0, 1, 3\]"),
        ("sequence,group\nA,3", r"label_column='label': test.csv has no such column.*'group'"),
        ("sequence,label\nA,worm", r"train.csv and test.csv': the column 'label' has values of different types"),
    ],
)
def test_errors_name_the_file(write, lines, message):
    train = write("train.csv", "sequence,label\nA,0\nC,1\n")
    with pytest.raises(ValueError, match=message):
        load_sequences(train, test_file=write("test.csv", lines), **NO_CUT)


def test_several_columns_of_targets(write):
    train = write("train.csv", "name,b,sequence,a\nx,1,ACGT,0.5\ny,2,CC,1\n")
    test = write("test.csv", "sequence,a,b\nG,3,4\n")
    data = load_sequences(train, label_column=["a", "b"], targets=True, test_file=test, validation_fraction=0)
    assert data["train"].to_dict() == {"a, b": [[0.5, 1], [1, 2]], "sequence": ["ACGT", "CC"]}
    assert data["test"].to_dict() == {"a, b": [[3, 4]], "sequence": ["G"]}
    assert str(data["train"].features["a, b"].feature.dtype) == "float32"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["a", "none"], r"label_column\[1\]='none': train.csv has no such column"),
        (
            ["a", "text"],
            r"label_column='a, text': train.csv has \[0.5, 'x'\] in line 2 of train.csv; a regression target is",
        ),
    ],
)
def test_wrong_columns_of_targets(write, columns, message):
    train = write("train.csv", "sequence,a,text\nACGT,0.5,x\nCC,1,y\n")
    with pytest.raises(ValueError, match=message):
        load_sequences(train, label_column=columns, targets=True, **NO_CUT)
    with pytest.raises(ValueError, match=r"label_column=\['a', .*several label columns .*sequence-regr"):
        load_sequences(train, label_column=columns, **NO_CUT)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,dna,y\nx1,ACGT,0\nx2,CCGT,1\n", r"no such columns; .*sequence_column='dna', label_column='y'\.$"),
        ("a.csv", "id,my seq\nx1,ACGT\nx2,CCGT\n", r"Perhaps sequence_column='my seq'\.$"),
        ("a.csv", "id,sequence,y\nx1,ACGT,0\nx2,CC,0\n", r"Perhaps label_column='y'\.$"),
        ("a.json", '[{"sequence": "ACGT"}]', r"its columns are \['sequence'\]\.$"),
        ("a.csv", "sequence;label\nACGT;0\nC;1,5\n", r"separated by ';', not by ','; convert the file"),
        ("a.csv", "sequence\tlabel\nACGT\t0\n", r"separated by '.t', not by ','; rename the file to .tsv"),
        ("a.tsv.gz", "sequence,label\nACGT,0\n", r"separated by ',', not by '.t'; rename the file to .csv"),
    ],
)
def test_errors_name_the_way_out(write, name, content, message):
    with pytest.raises(ValueError, match=message):
        load_sequences(write(name, content), **NO_CUT)


def test_a_column_of_texts_with_semicolons(write):
    path = write("a.csv", "one; two\n")
    assert read_cells(path, ["text"]) == ({"text": ["one; two"]}, [1])
    assert read_table(write("b.csv", 'text,"a;b"\none,2\n'), []) == {"text": ["one"], "a;b": [2]}


def test_files_that_are_not_tables(write):
    fasta = write("train.fa", ">a\n" + "ACGT" * 10)
    train = write("train.csv", "sequence,label\nA,0\nC,1\n")
    with pytest.raises(ValueError, match=r"test_file=.*give a table \(.csv"):
        load_sequences(train, test_file=write("test.xlsx", ""))
    for arguments in ({"test_file": train}, {"column_names": ["a"]}, {"quoted": False}):
        with pytest.raises(ValueError, match=rf"{next(iter(arguments))}=.* is for tables, but source="):
            load_sequences(fasta, **arguments)


def test_pairs_without_a_header_and_with_literal_quotes(write):
    """The format of the pairs of the Long Range Arena."""
    rows = ["1.0\tid1\tid2\tb'a \"b\" c'\tdef", '0.0\tid3\tid4\t"open\tend"', '1.0\tid3\tid4\t"open\tother']
    options = {"column_names": ["label", "id1", "id2", "one", "two"], "quoted": False, "sequence_column": "one"}
    data = load_sequences(write("pairs.tsv", "\n".join(rows)), pair_column="two", **options, **NO_CUT)["train"]
    assert data["one"][:] == ["b'a \"b\" c'", '"open', '"open']
    assert data["two"][:] == ["def", 'end"', "other"]
    assert data["label"][:] == [1, 0, 1]


def test_equal_pairs_are_in_one_split_and_equal_first_texts_are_not(write):
    path = write("pairs.csv", "label,one,two\n" + "".join(f"{n % 2},same,text{n // 2}\n" for n in range(80)))
    data = load_sequences(path, test_fraction=0.25, validation_fraction=0.0, sequence_column="one", pair_column="two")
    assert data["test"].num_rows == 20
    assert not set(data["train"]["two"]) & set(data["test"]["two"])


def test_a_second_text_is_required(write):
    path = write("pairs.csv", "label,sequence,two\n0,a,b\n1,c,\n")
    with pytest.raises(ValueError, match=r"pair_column='two': pairs.csv has empty sequences \(line 3 of pairs.csv\)"):
        load_sequences(path, pair_column="two")
    with pytest.raises(ValueError, match=r"pair_column='tow'.*Perhaps pair_column='two'"):
        load_sequences(path, pair_column="tow")


def test_pairs_become_one_sequence_with_a_separator(write, caplog):
    path = write("pairs.csv", "label,sequence,two\n0,ab,c\n1,abcdefgh,xyz\n1,ab,tuvwxyz\n")
    data = load_sequences(path, pair_column="two", **NO_CUT)
    tokenizer = build_byte_tokenizer()
    with caplog.at_level(logging.WARNING):
        rows = tokenize(data, tokenizer, max_length=7, pair_column="two")["train"]
    assert "truncated 2 of 3" in caplog.text
    expected = [("ab", "c"), ("abc", "xyz"), ("ab", "tuvw")]  # the longer text is truncated first
    assert rows["input_ids"][:] == [[*a.encode(), tokenizer.sep_token_id, *b.encode()] for a, b in expected]
    assert rows["labels"][:] == [0, 1, 1]
    assert set(rows.column_names) == {"labels", "input_ids"}
    with pytest.raises(ValueError, match=r"pair_column='twos'.*did you mean 'two'"):
        tokenize(data, tokenizer, pair_column="twos")


@pytest.mark.parametrize("text", ["1", "1.", "1.5", ".5", "+1.5e-3", "1e5", "-.5E+2"])
def test_forms_of_numbers(write, text):
    assert read_table(write("a.csv", f"x,y\n{text},a\n"), [])["x"] == [float(text)]


@pytest.mark.parametrize("text", [".", "1.5.2", "1_000", "e5", "1e", "1e5.", "+-1", "0x1"])
def test_forms_of_texts(write, text):
    assert read_table(write("a.csv", f"x,y\n{text},a\n"), [])["x"] == [text]
