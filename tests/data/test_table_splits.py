"""A file for each split, files without a header, quotes that are letters, and pairs of texts."""

import logging

import pytest
from datasets import ClassLabel

from hf_ssm.data import load_sequences, tokenize
from hf_ssm.data.tables import read_table
from hf_ssm.tokenization import build_byte_tokenizer

NO_CUT = {"validation_fraction": 0.0, "test_fraction": 0.0}


@pytest.fixture
def write(tmp_path):
    """`write(name, *lines)`: the path of a new file."""

    def write_file(name, *lines):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write_file


def test_a_file_for_each_split(write):
    train = write("train.tsv", "Source\tTarget\tmore", "A\t0\tx", "C\t1\ty", "G\t1\tz")
    test = write("test.tsv", "Target\tSource", "1\tT", "0\tTT")
    dev = write("dev.tsv", "Source\tTarget\tsplit", "GG\t1\ttrain")
    columns = {"sequence_column": "Source", "label_column": "Target"}
    data = load_sequences(train, validation_file=dev, test_file=str(test), **columns)
    assert list(data) == ["train", "validation", "test"]
    assert data["train"].to_dict() == {"Source": ["A", "C", "G"], "Target": [0, 1, 1]}
    assert data["validation"].to_dict() == {"Source": ["GG"], "Target": [1]}
    assert data["test"].to_dict() == {"Source": ["T", "TT"], "Target": [1, 0]}


def test_a_split_without_a_file_is_cut_from_training(write):
    train = write("train.csv", "sequence,label", *(f"{'A' * n},{n % 2}" for n in range(1, 41)))
    test = write("test.csv", "sequence,label", "C,0", "CC,1")
    data = load_sequences(train, test_file=test, validation_fraction=0.2)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 32, "validation": 8, "test": 2}


def test_a_column_of_other_kinds_in_another_file_is_named(write):
    train = write("train.csv", "sequence,label,id", *(f"{'A' * n},{n % 2},{n}" for n in range(1, 21)))
    test = write("test.csv", "sequence,label,id", "C,0,n1", "CC,1,n2")
    with pytest.raises(ValueError, match=r"train.csv and test.csv': the column 'id' mixes kinds"):
        load_sequences(train, test_file=test)


def test_a_split_column_and_a_file_go_together(write, caplog):
    train = write("train.csv", "sequence,label,split", "A,0,train", "C,1,train", "G,1,dev", "T,0,odd")
    test = write("test.csv", "sequence,label", "A,0")
    with caplog.at_level(logging.WARNING):
        data = load_sequences(train, test_file=test)
    assert {name: split["sequence"][:] for name, split in data.items()} == {
        "train": ["A", "C"],
        "validation": ["G"],
        "test": ["A"],
    }
    assert "1 sequences of split 'test' also stand in 'train'" in caplog.text
    with pytest.raises(ValueError, match=r"validation_file=.*marks validation rows already.*split_column=None"):
        load_sequences(train, validation_file=test)


def test_labels_are_names_over_all_files(write):
    train = write("train.csv", "sequence,label", "A,worm", "C,fly")
    test = write("test.csv", "sequence,label", "G,human", "T,fly")
    data = load_sequences(train, test_file=test, validation_fraction=0)
    assert data["test"].features["label"] == ClassLabel(names=["fly", "human", "worm"])
    assert (data["train"]["label"][:], data["test"]["label"][:]) == ([2, 0], [1, 0])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["sequence,label", "A,", "C,1"], r"train.csv and test.csv has rows without a label \(row 1 of test.csv\)"),
        (["sequence,label", "A,0", " ,1"], r"empty sequences \(row 2 of test.csv\)"),
        (["sequence,label", "A,0.5"], r"label 0.5 in row 1 of test.csv"),
        (["sequence,label", "A,3"], r"classes of train.csv and test.csv are \[0, 1, 3\]"),
        (["sequence,labels", "A,3"], r"label_column='label': test.csv has no such column.*'labels'"),
    ],
)
def test_errors_name_the_file(write, lines, message):
    train = write("train.csv", "sequence,label", "A,0", "C,1")
    with pytest.raises(ValueError, match=message):
        load_sequences(train, test_file=write("test.csv", *lines), **NO_CUT)


def test_files_that_cannot_be_splits_are_refused(write, tmp_path):
    train = write("train.csv", "sequence,label", "A,0", "C,1")
    with pytest.raises(FileNotFoundError, match=r"absent.csv"):
        load_sequences(train, test_file=tmp_path / "absent.csv")
    with pytest.raises(ValueError, match=r"test_file=.*give a table \(.csv"):
        load_sequences(train, test_file=write("test.fa", ">a", "ACGT"))
    fasta = write("train.fa", ">a", "ACGT" * 10)
    for arguments in ({"test_file": train}, {"column_names": ["a"]}, {"quoted": False}):
        with pytest.raises(ValueError, match=rf"{next(iter(arguments))}=.* is for tables, but source="):
            load_sequences(fasta, **arguments)


# As the pairs of the Long Range Arena are written: no header, labels with a point, quotes that mean nothing.
PAIRS = ["1.0\tid1\tid2\tb'a \"b\" c'\tdef", '0.0\tid3\tid4\t"open\tend"', '1.0\tid3\tid4\t"open\tother']
LRA = {"column_names": ["label", "id1", "id2", "one", "two"], "quoted": False, "sequence_column": "one"}


def test_pairs_without_a_header(write):
    data = load_sequences(write("pairs.tsv", *PAIRS), pair_column="two", **LRA, **NO_CUT)["train"]
    assert data["one"][:] == ["b'a \"b\" c'", '"open', '"open']
    assert data["two"][:] == ["def", 'end"', "other"]
    assert data["label"][:] == [1, 0, 1]


def test_quotes_are_read_by_default(write):
    path = write("a.csv", "a,b", '"x,y",1')
    assert read_table(path, [])["a"] == ["x,y"]
    with pytest.raises(ValueError, match="3 cells where the header has 2"):
        read_table(path, [], quoted=False)
    with pytest.raises(ValueError, match=r"line 2.*quoted=False"):
        read_table(write("pairs.tsv", PAIRS[0], PAIRS[2]), ["a"], list("abcde"))


@pytest.mark.parametrize("names", ["abc", [], ["a", "a"]])
def test_bad_column_names_are_refused(write, names):
    with pytest.raises(ValueError, match="column_names"):
        read_table(write("a.csv", "1,2"), [], names)
    with pytest.raises(ValueError, match=r"column_names.*\['a'\]"):
        read_table(write("a.json", "[]"), [], ["a"])
    with pytest.raises(ValueError, match="2 cells where column_names has 3"):
        read_table(write("a.csv", "1,2"), [], ["a", "b", "c"])


def test_equal_pairs_stay_on_one_side_and_equal_first_texts_do_not(write, caplog):
    rows = [f"{n % 2},same,text{n // 2}" for n in range(80)]
    path = write("pairs.csv", "label,one,two", *rows)
    columns = {"sequence_column": "one", "pair_column": "two"}
    with caplog.at_level(logging.WARNING):
        data = load_sequences(path, test_fraction=0.25, validation_fraction=0.0, **columns)
    assert data["test"].num_rows == 20
    assert not set(data["train"]["two"]) & set(data["test"]["two"])
    test = write("test.csv", "label,one,two", "0,same,text1", "1,same,new")
    with caplog.at_level(logging.WARNING):
        load_sequences(path, test_file=test, validation_fraction=0, **columns)
    assert "1 sequences of split 'test' also stand in 'train'" in caplog.text


def test_a_second_text_must_be_one(write):
    path = write("pairs.csv", "label,sequence,two", "0,a,b", "1,c,")
    with pytest.raises(ValueError, match=r"pair_column='two': pairs.csv has empty sequences \(row 2\)"):
        load_sequences(path, pair_column="two")
    with pytest.raises(ValueError, match=r"pair_column='tow'.*did you mean 'two'"):
        load_sequences(path, pair_column="tow")


def test_pairs_become_one_sequence_with_a_separator(write, caplog):
    path = write("pairs.csv", "label,sequence,two", "0,ab,c", "1,abcdefgh,xyz", "1,ab,tuvwxyz")
    data = load_sequences(path, pair_column="two", **NO_CUT)
    tokenizer = build_byte_tokenizer()
    with caplog.at_level(logging.WARNING):
        rows = tokenize(data, tokenizer, max_length=7, pair_column="two")["train"]
    assert "cut 2 of 3" in caplog.text
    separator = [tokenizer.sep_token_id]
    expected = [("ab", "c"), ("abc", "xyz"), ("ab", "tuvw")]  # the longer text is cut first
    assert rows["input_ids"][:] == [[*a.encode(), *separator, *b.encode()] for a, b in expected]
    assert rows["labels"][:] == [0, 1, 1]
    assert rows.column_names == ["labels", "input_ids"]
    with pytest.raises(ValueError, match=r"pair_column='twos'.*did you mean 'two'"):
        tokenize(data, tokenizer, pair_column="twos")
