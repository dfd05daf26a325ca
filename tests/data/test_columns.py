"""Columns of usual names, and the error for missing ones."""

import pytest

from hf_ssm.data import load_sequences
from hf_ssm.data.columns import MissingColumns, check_columns, usual_column, usual_columns

NEEDED = {"sequence_column": "sequence", "label_column": "label"}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["sequence", "seq"], "sequence"),
        (["id", "seq"], "seq"),
        (["id", "Text"], "Text"),
        (["seq", "text"], None),
        (["id", "dna"], None),
    ],
)
def test_a_usual_name_stands_for_the_default_if_it_is_the_only_one(columns, expected):
    assert usual_column("sequence_column", columns) == expected


def test_only_missing_default_names_have_others():
    assert usual_columns(NEEDED, ["seq", "Class", "id"]) == {"seq": "sequence", "Class": "label"}
    assert usual_columns(NEEDED, ["sequence", "label", "seq", "class"]) == {}
    assert usual_columns({"sequence_column": "dna"}, ["seq"]) == {}
    assert usual_columns({"sequence_column": "sequence", "pair_column": "text"}, ["text"]) == {}


def test_all_missing_columns_are_named_at_once():
    columns = {"id": ["a", "b", "c"], "dna": ["ACGT", "CCGT", "ACCC"], "kind": ["x", "y", "x"]}
    with pytest.raises(MissingColumns) as caught:
        check_columns(NEEDED, columns, "my.csv")
    assert caught.value.likely == {"sequence_column": "dna", "label_column": "kind"}
    assert str(caught.value) == (
        "sequence_column='sequence', label_column='label': my.csv has no such columns; its columns are ['id', 'dna', "
        "'kind']. Perhaps sequence_column='dna', label_column='kind'."
    )


def test_names_of_rows_are_no_labels():
    with pytest.raises(MissingColumns) as caught:
        check_columns(NEEDED, {"id": ["a", "b"], "dna": ["ACGT", "CCGT"]}, "my.csv")
    assert caught.value.likely == {"sequence_column": "dna", "label_column": None}


def test_a_table_of_usual_names_is_read_as_one_of_the_default_names(tmp_path, caplog):
    rows = [("0110", 0), ("1110", 1), ("0010", 0), ("1010", 1)]
    for name, head in (("a.csv", "sequence,label"), ("b.csv", "seq,Class")):
        (tmp_path / name).write_text("\n".join([head, *(f"{text},{label}" for text, label in rows)]))
    options = {"validation_fraction": 0, "test_fraction": 0}
    first, second = (load_sequences(tmp_path / name, **options)["train"] for name in ("a.csv", "b.csv"))
    # Texts of digits stay texts, and labels numbers.
    assert first.to_dict() == second.to_dict() == {"sequence": [t for t, _ in rows], "label": [n for _, n in rows]}
    assert "the column 'seq' is read as 'sequence'" in caplog.text
