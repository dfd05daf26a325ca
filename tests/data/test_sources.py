"""Text and parquet files, several files, and labels in the headers of FASTA files; cells that are passed through."""

from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value

from hf_ssm.data import load_sequences, stream_sequences
from hf_ssm.data.options import ReadOptions
from hf_ssm.data.records import read_records
from hf_ssm.training.inputs import load_data
from hf_ssm.training.settings import resolve

ALL: dict[str, Any] = {"validation_fraction": 0, "test_fraction": 0}


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


def inputs(path: str, task: str, **data: Any) -> Any:
    return load_data(resolve({"data": {"dataset": path, **ALL, **data}, "model": {"task": task}}))


def test_lines_of_a_text_file_are_sequences(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "ACGT\r\n\nNA\n007")
    assert load_sequences(path, label_column=None, **ALL)["train"].to_dict() == {"sequence": ["ACGT", "NA", "007"]}
    assert [row["sequence"] for row in stream_sequences(path)] == ["ACGT", "NA", "007"]
    assert [record.where for record in read_records(Path(path))] == ["a.txt, line 1", "a.txt, line 3", "a.txt, line 4"]
    assert inputs(path, "causal-lm", tokenizer="byte").splits["train"]["input_ids"][1] == [78, 65]


def test_parquet_keeps_the_order_of_its_classes(tmp_path: Path) -> None:
    features = Features({"seq": Value("string"), "label": ClassLabel(names=["yes", "no", "unused"])})
    rows = {"seq": ["ACGT", "CC", "GG"], "label": [1, 0, 1]}
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    data = load_sequences(tmp_path / "a.parquet", test_file=tmp_path / "a.parquet", validation_fraction=0)
    assert data["train"].features["label"] == features["label"] and data["test"]["label"][:] == [1, 0, 1]
    Dataset.from_dict({**rows, "split": ["train", "dev", "train"]}).to_parquet(tmp_path / "b.parquet")
    data = load_sequences(tmp_path / "b.parquet", label_column=None, test_fraction=0)
    assert {name: split["sequence"][:] for name, split in data.items()} == {
        "train": ["ACGT", "GG"],
        "validation": ["CC"],
    }
    assert data["train"].column_names == ["sequence", "label"]
    with pytest.raises(ValueError, match="already marks validation rows"):
        load_sequences(tmp_path / "b.parquet", validation_file=tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"'label': the classes of b.parquet are None, .* \['yes', 'no', 'unused'\]"):
        load_sequences(tmp_path / "a.parquet", test_file=tmp_path / "b.parquet")
    text = write(tmp_path / "c.csv", "sequence,label\nTT,0\nTG,1\n")
    data = load_sequences(tmp_path / "b.parquet", split_column=None, test_file=text, validation_fraction=0)
    assert data["test"].to_dict() == {"sequence": ["TT", "TG"], "label": [0, 1]}
    (tmp_path / "a.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"a.parquet' cannot be read"):
        load_sequences(tmp_path / "a.parquet")


def test_several_files_are_one_table(tmp_path: Path) -> None:
    one = write(tmp_path / "1.csv", "seq,label\nA,x\n")
    two = write(tmp_path / "2.csv", "label,sequence,more\ny,C,1\n")
    for source in (str(tmp_path / "?.csv"), [one, two]):
        data = load_sequences(source, **ALL)["train"]
        assert data.to_dict() == {"sequence": ["A", "C"], "label": [0, 1]}
        assert data.features["label"] == ClassLabel(names=["x", "y"])
    assert [row["sequence"] for row in stream_sequences([one, two])] == ["A", "C"]
    first, second = (write(tmp_path / f"{name}.fa", f">{name}\nACGTAC\n") for name in "ab")
    windows = load_sequences([first, second], window=4, min_window=1, label_column=None, **ALL)["train"]
    assert list(zip(windows["name"], windows["start"], strict=True)) == [("a", 0), ("a", 4), ("b", 0), ("b", 4)]
    with pytest.raises(ValueError, match=r"'1.csv' and 'a.fa' have different formats"):
        load_sequences([one, first])
    write(tmp_path / "2.csv", "label,dna\ny,C\n")
    with pytest.raises(ValueError, match=r"sequence_column='sequence': 2.csv has no such column.*Perhaps .*='dna'"):
        load_sequences([one, two])


@pytest.mark.parametrize(
    ("headers", "names", "splits"),
    [
        (["a label=pos", "b x class=neg", "c label=pos"], ["neg", "pos"], {"train": ["a", "b", "c"]}),
        (["a|1", "b|0", "c|1 more"], None, {"train": ["a", "b", "c"]}),
        (["a|1|training", "b|0|training", "c|1|testing"], None, {"train": ["a", "b"], "test": ["c"]}),
    ],
)
def test_labels_in_headers(tmp_path: Path, headers: list[str], names: Any, splits: dict[str, list[str]]) -> None:
    texts = zip(headers, ("ACgt", "CC\nCC", "GG"), strict=True)
    path = write(tmp_path / "a.fa", "".join(f">{header}\n{text}\n" for header, text in texts))
    data = load_sequences(path, **ALL)
    assert {name: split["name"][:] for name, split in data.items()} == splits
    assert data["train"]["sequence"][:2] == ["ACGT", "CCCC"] and data["train"]["label"][:2] == [1, 0]
    assert getattr(data["train"].features["label"], "names", None) == names
    assert load_sequences(path, keep_case=True, **ALL)["train"]["sequence"][0] == "ACgt"
    assert inputs(path, "sequence-classification").classes == (names or ["0", "1"])
    # Without labels, the records are windows, as ever.
    assert inputs(path, "causal-lm", window=4, min_window=1).num_rows == {"train": 3}


def test_fasta_without_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.fa", ">sp|P69905|HBA first\nACGT\n>lcl|x\nACGA\n")
    assert load_sequences(path, window=4, **ALL)["train"]["name"][:] == ["sp|P69905|HBA", "lcl|x"]
    with pytest.raises(ValueError, match=r"have no labels, but model.task='sequence-classification' needs labels"):
        inputs(path, "sequence-classification", window=4)
    write(tmp_path / "a.fa", ">a label=1\nACGT\n>b\nACGA\n")
    with pytest.raises(ValueError, match="the header 'b' has no label: write '>name label=1'"):
        load_sequences(path)


def test_columns_that_are_passed_through_stay_text(tmp_path: Path) -> None:
    cells = {"id": "007", "note": "NA", "value": "1.0", "empty": "", "wide": " 1e5 "}
    text = f"sequence,label,{','.join(cells)}\nACGT,0,{','.join(cells.values())}\nCC,1,{','.join(cells.values())}\n"
    path = write(tmp_path / "a.csv", text)
    row = load_sequences(path, **ALL)["train"][0]
    assert {name: row[name] for name in cells} == cells
    (first, _) = read_records(Path(path), ReadOptions())
    assert first.columns == {"label": "0", **cells}


def test_options_of_a_training() -> None:
    data = {"keep_case": True, "sequence_column": "dna", "window": None, "label_column": "y", "dataset": "a.csv"}
    assert ReadOptions.of_training(data) == ReadOptions(keep_case=True, sequence_column="dna")
    assert ReadOptions.of_training(data, window=64, sequence_column=None) == ReadOptions(True, "dna", 64)
    assert ReadOptions().letters("acGT", "x") == "ACGT" and ReadOptions(keep_case=True).letters("acGT", "x") == "acGT"
