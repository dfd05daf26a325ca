"""Hub data sets, with `load_dataset` replaced."""

import logging

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from hf_ssm.data import label_names, load_sequences, loading


@pytest.fixture
def hub(monkeypatch):
    """`hub(data)`: makes `load_dataset` return `data`; gives the list of its calls."""

    def set_up(data):
        calls = []
        monkeypatch.setattr(loading, "load_dataset", lambda *args, **kwargs: calls.append((args, kwargs)) or data)
        return calls

    return set_up


def split(labels, start=0):
    sequences = ["ACGT" + "T" * (start + row) for row in range(len(labels))]
    return Dataset.from_dict({"sequence": sequences, "label": labels})


def test_splits_are_renamed_and_others_dropped(hub, caplog):
    calls = hub(DatasetDict(train=split([0, 1]), dev=split([1], 5), unsupervised=split([-1, -1, -1], 9)))
    with caplog.at_level(logging.WARNING):
        data = load_sequences("user/name", config_name="small", revision="main", test_fraction=0)
    assert calls == [(("user/name", "small"), {"revision": "main"})]
    assert {name: part.num_rows for name, part in data.items()} == {"train": 2, "validation": 1}
    assert "dropped 3 rows of split 'unsupervised'" in caplog.text


def test_hidden_labels_are_dropped(hub, caplog):
    hub(DatasetDict(train=split([0, 1]), test=split([-1, -1], 5)))
    with caplog.at_level(logging.WARNING):
        assert list(load_sequences("user/name", validation_fraction=0, test_fraction=0)) == ["train"]
    assert "labels are hidden" in caplog.text


def test_class_labels_are_kept(hub):
    features = Features({"sequence": Value("string"), "label": ClassLabel(names=["a", "b", "unused"])})
    hub(DatasetDict(train=split([0, 1]).cast(features)))
    assert label_names(load_sequences("user/name", validation_fraction=0, test_fraction=0)) == ["a", "b", "unused"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DatasetDict(test=split([0, 1])), "no split 'train'"),
        (DatasetDict(train=split([0, 1]).rename_column("label", "y")), r"label_column='label'.*\['sequence', 'y'\]"),
        (DatasetDict(train=split([0, 1]).rename_column("sequence", "dna")), "Perhaps sequence_column='dna'"),
        (DatasetDict(train=split([0, 1]), test=split([0, None], 5)), "row 2 of 'test'"),
        (DatasetDict(train=split([0, 2])), r"\[0, 2\]"),
        (DatasetDict(train=split([-1, 0]).cast_column("label", ClassLabel(names=["a", "b"]))), r"\[-1\] outside"),
    ],
)
def test_unfit_data_sets(hub, data, message):
    hub(data)
    with pytest.raises(ValueError, match=message):
        load_sequences("user/name")
