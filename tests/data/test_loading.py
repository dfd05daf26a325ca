"""`load_sequences`: the result for each source, and errors for bad input."""

import logging
from collections import Counter

import pytest
from datasets import ClassLabel, DatasetDict

from hf_ssm.data import label_names, load_sequences


@pytest.fixture
def table(tmp_path):
    """`table(rows, header=...)`: the path of a csv file of these lines."""

    def write(rows, header="sequence,label", name="a.csv"):
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return write


def many(count=40):
    """Different sequences with the labels 0, 1, 0, 1, ..."""
    return [f"{'ACGT'[row % 4]}{'T' * row},{row % 2}" for row in range(count)]


def test_a_table_without_splits_is_cut(table):
    data = load_sequences(table(many()), validation_fraction=0.2, test_fraction=0.1)
    assert isinstance(data, DatasetDict)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 28, "validation": 8, "test": 4}
    assert Counter(data["test"]["label"]) == {0: 2, 1: 2}
    pairs = {(row["sequence"], row["label"]) for split in data.values() for row in split}
    assert pairs == {(row.split(",")[0], int(row.split(",")[1])) for row in many()}
    assert label_names(data) == ["0", "1"]


def test_the_split_column_decides_and_other_columns_stay(table, caplog):
    rows = [
        f"{row},{split},{number}"
        for number, (row, split) in enumerate(zip(many(6), ["train"] * 4 + ["test", "x"], strict=True))
    ]
    with caplog.at_level(logging.WARNING):
        data = load_sequences(table(rows, "sequence,label,split,number"), validation_fraction=0.0)
    assert data["train"].column_names == ["sequence", "label", "number"]
    assert data["train"]["number"][:] == ["0", "1", "2", "3"]
    assert data["test"]["number"][:] == ["4"]
    assert "dropped 1 rows of split 'x'" in caplog.text


def test_a_missing_validation_split_is_cut_from_training_only(table):
    rows = [f"{row},{'test' if number >= 30 else 'train'}" for number, row in enumerate(many())]
    data = load_sequences(table(rows, "sequence,label,split"), validation_fraction=0.2)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 24, "validation": 6, "test": 10}
    assert sorted(data["test"]["sequence"]) == sorted(row.split(",")[0] for row in many()[30:])


def test_split_column_none_cuts_by_chance(table):
    rows = [f"{row},test" for row in many()]
    data = load_sequences(table(rows, "sequence,label,split"), split_column=None)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 32, "validation": 4, "test": 4}


def test_string_labels_become_sorted_class_labels(table):
    data = load_sequences(table(["A,worm", "C,human", "G,worm", "T,human"]), validation_fraction=0, test_fraction=0)
    assert data["train"].features["label"] == ClassLabel(names=["human", "worm"])
    assert data["train"]["label"][:] == [1, 0, 1, 0]
    assert label_names(data) == ["human", "worm"]


def test_labels_1_0_written_as_numbers_with_points_and_sequences_that_read_as_missing(table):
    data = load_sequences(table(["NAN,0.0", "NA,1.0", "null,1.0"]), validation_fraction=0, test_fraction=0)
    assert data["train"]["label"][:] == [0, 1, 1]
    assert data["train"]["sequence"][:] == ["NAN", "NA", "null"]


def test_other_column_names(table):
    data = load_sequences(
        table(["hello there,3,train", "good bye,4,train", "more,0,dev"], "text,rating,part"),
        sequence_column="text",
        label_column=None,
        split_column="part",
        test_fraction=0,
    )
    assert {name: split.num_rows for name, split in data.items()} == {"train": 2, "validation": 1}


def test_an_edited_file_is_read_again(table):
    path = table(["A,0", "C,1"])
    arguments = {"validation_fraction": 0, "test_fraction": 0}
    assert load_sequences(path, **arguments)["train"]["sequence"][:] == ["A", "C"]
    table(["G,0", "T,1"])
    assert load_sequences(path, **arguments)["train"]["sequence"][:] == ["G", "T"]


def test_overlap_and_untrained_classes_are_warned_of(table, caplog):
    rows = ["A,0,train", "C,1,train", "A,0,test", "G,2,test"]
    with caplog.at_level(logging.WARNING):
        load_sequences(table(rows, "sequence,label,split"), validation_fraction=0)
    assert "1 sequences of split 'test' also occur in 'train'" in caplog.text
    assert "classes [2] have no training row" in caplog.text


def test_fasta_windows(tmp_path):
    path = tmp_path / "genome.fa"
    path.write_text("".join(f">r{record}\n{'ACGTTGCA' * record}\n" for record in range(1, 21)))
    data = load_sequences(path, window=8, min_window=8, validation_fraction=0.0, test_fraction=0.0)
    assert data["train"].num_rows == sum(range(1, 21))
    assert data["train"][-1] == {"sequence": "ACGTTGCA", "name": "r20", "start": 152}
    path.write_text(">a\nACgtacGT\n")
    for keep_case, expected in ((False, ["ACGT", "ACGT"]), (True, ["ACgt", "acGT"])):
        soft = load_sequences(path, window=4, validation_fraction=0.0, test_fraction=0.0, keep_case=keep_case)
        assert soft["train"]["sequence"][:] == expected
    for arguments in ({"window": 0}, {"min_window": 0}, {"window": 8, "min_window": 9}):
        with pytest.raises(ValueError, match="window="):
            load_sequences(path, **arguments)


def test_the_generator_takes_its_options(table):
    data = load_sequences("planted-motifs", num_train=10, num_validation=0, num_test=4, length=64, seed=3)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 10, "test": 4}
    assert len(data["train"]["sequence"][0]) == 64
    other = load_sequences("planted-motifs", num_train=10, num_validation=0, num_test=4, length=64, seed=4)
    assert data["train"]["sequence"][:] != other["train"]["sequence"][:]
    with pytest.raises(ValueError, match=r"lenght=5: the generator 'planted-motifs'.*did you mean 'length'"):
        load_sequences("planted-motifs", lenght=5)
    with pytest.raises(ValueError, match=r"windw=5: load_sequences has no such argument.*did you mean 'window'"):
        load_sequences(table(many()), windw=5)


@pytest.mark.parametrize(
    ("rows", "header", "arguments", "message"),
    [
        (
            ["A,0", "C,1"],
            "dna,label",
            {},
            r"sequence_column='sequence'.*\['dna', 'label'\]. Perhaps sequence_column='dna'",
        ),
        (["A,0", "C,1"], "sequence,lable", {}, r"label_column='label'.*Perhaps label_column='lable'"),
        (["A,0", "C,1"], "sequence,label", {"split_column": "part"}, r"split_column='part'.*no such column"),
        (["A,0", " ,1", ",1"], "sequence,label", {}, r"empty sequences \(line 3 of .*csv, line 4 of .*csv\)"),
        (["A,0", "C,", "G,1"], "sequence,label", {}, r"without a label \(line 3 of .*csv\)"),
        (["A,0", "C,2"], "sequence,label", {}, r"classes of .* are \[0, 2\].*0 to 1"),
        (["A,0", "C,0"], "sequence,label", {}, r"only one class \(0\)"),
        (["A,0.5", "C,1"], "sequence,label", {}, r"label 0.5 in line 2 of .*csv"),
        (["A,0,test", "C,1,test"], "sequence,label,split", {}, r"no rows of split 'train'"),
        (["A,0,u", "C,,train", "G,1,train"], "sequence,label,split", {}, r"without a label \(line 3 of .*csv\)"),
        (["A,0", "C,1"], "sequence,label", {"validation_fraction": 1.5}, "validation_fraction=1.5"),
        (["A,0", "C,1"], "sequence,label", {"sequence_column": "label", "label_column": None}, None),
    ],
)
def test_bad_tables_are_refused(table, rows, header, arguments, message):
    path = table(rows, header)
    if message is None:  # numbers read as text, and are sequences if the user says so
        assert load_sequences(path, validation_fraction=0, test_fraction=0, **arguments)["train"]["label"][:] == [
            "0",
            "1",
        ]
        return
    with pytest.raises(ValueError, match=message):
        load_sequences(path, **arguments)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("absent.csv", FileNotFoundError, "source='absent.csv': there is no such file"),
        ("planted_motif", ValueError, "did you mean 'planted-motifs'"),
        ("zzz", ValueError, r"source='zzz': there is no generator.*user/name"),
    ],
)
def test_unknown_sources_are_refused(source, error, message):
    with pytest.raises(error, match=message):
        load_sequences(source)


def test_folders_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read as a folder of images"):
        load_sequences(tmp_path)
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(ValueError, match=r"unknown file format; the suffix of a file must be one of \.csv"):
        load_sequences(tmp_path / "a.xlsx")


def test_real_test_rows_that_stand_in_train_are_left_out(shared_data, caplog):
    with caplog.at_level(logging.WARNING):
        data = load_sequences(shared_data / "ienhancer2l.csv.gz")
    assert "dropped 100 rows of split 'test_seen_in_train'" in caplog.text
    assert {name: split.num_rows for name, split in data.items()} == {"train": 2672, "validation": 296, "test": 300}
    sides = [set(split["sequence"]) for split in data.values()]
    assert not sides[0] & sides[2]
    assert not sides[0] & sides[1]
