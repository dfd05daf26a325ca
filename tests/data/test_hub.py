"""Data sets of the Hub, with the Hub played by a stand-in."""

import logging

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub.errors import OfflineModeIsEnabled

from hf_ssm.data import hub, label_names, load_sequences


@pytest.fixture
def play(monkeypatch):
    """`play(data)`: the Hub answers, and `load_dataset` returns `data`, or raises it; the calls come back."""

    def set_up(data):
        calls = []

        def load_dataset(*args, **kwargs):
            calls.append((args, kwargs))
            if isinstance(data, Exception):
                raise data
            return data

        monkeypatch.setattr(hub.HfApi, "dataset_info", lambda *args, **kwargs: None)
        monkeypatch.setattr(hub, "load_dataset", load_dataset)
        return calls

    return set_up


def split(labels, start=0):
    sequences = ["ACGT" + "T" * (start + row) for row in range(len(labels))]
    return Dataset.from_dict({"sequence": sequences, "label": labels})


def test_splits_are_named_and_others_left_out(play, caplog):
    calls = play(DatasetDict(train=split([0, 1]), dev=split([1], 5), unsupervised=split([-1, -1, -1], 9)))
    with caplog.at_level(logging.WARNING):
        data = load_sequences("user/name", config_name="small", revision="main", test_fraction=0)
    assert calls == [(("user/name", "small"), {"revision": "main"})]
    assert {name: part.num_rows for name, part in data.items()} == {"train": 2, "validation": 1}
    assert "left out 3 rows of split 'unsupervised'" in caplog.text


def test_missing_splits_are_cut(play):
    play(DatasetDict(train=split([0, 1] * 50)))
    data = load_sequences("user/name")
    assert {name: part.num_rows for name, part in data.items()} == {"train": 80, "validation": 10, "test": 10}


def test_hidden_labels_are_left_out(play, caplog):
    play(DatasetDict(train=split([0, 1]), test=split([-1, -1], 5)))
    with caplog.at_level(logging.WARNING):
        data = load_sequences("user/name", validation_fraction=0, test_fraction=0)
    assert list(data) == ["train"]
    assert "labels are hidden" in caplog.text


def test_strings_become_one_class_label_over_all_splits(play):
    play(DatasetDict(train=split(["b", "a"]), test=split(["c"], 5)))
    data = load_sequences("user/name", validation_fraction=0)
    assert label_names(data) == ["a", "b", "c"]
    assert data["train"]["label"][:] == [1, 0]
    assert data["test"]["label"][:] == [2]
    assert data["train"].features == data["test"].features


def test_class_labels_stay(play):
    features = Features({"sequence": Value("string"), "label": ClassLabel(names=["a", "b", "unused"])})
    play(DatasetDict(train=split([0, 1]).cast(features)))
    assert label_names(load_sequences("user/name", validation_fraction=0, test_fraction=0)) == ["a", "b", "unused"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DatasetDict(test=split([0, 1])), "no 'train'"),
        (DatasetDict(train=split([0, 1]).rename_column("label", "y")), r"label_column='label'.*\['sequence', 'y'\]"),
        (
            DatasetDict(train=split([0, 1]).rename_column("sequence", "seq")),
            "sequence_column='sequence'.*did you mean 'seq'",
        ),
        (DatasetDict(train=split([0, None])), "row 2 of 'train'"),
        (DatasetDict(train=split([0, 1]), test=split([0, None], 5)), "row 2 of 'test'"),
        (DatasetDict(train=split([0, 2])), r"\[0, 2\]"),
        (
            DatasetDict(train=split([-1, 0]).cast_column("label", ClassLabel(names=["a", "b"]))),
            r"labels \[-1\] outside",
        ),
        (DatasetNotFoundError("Dataset 'user/name' doesn't exist on the Hub."), "source='user/name'.*doesn't exist"),
        (split([0, 1]), "is a Dataset"),
    ],
)
def test_unfit_data_sets_are_refused(play, data, message):
    play(data)
    with pytest.raises(ValueError, match=message):
        load_sequences("user/name")


def test_an_unreachable_hub_is_said_at_once(monkeypatch):
    cause = OSError("[Errno -2] Name or service not known")

    def fail(*args, **kwargs):
        raise cause

    monkeypatch.setattr(hub.HfApi, "dataset_info", fail)
    monkeypatch.setattr(hub, "load_dataset", lambda *args, **kwargs: pytest.fail("tried to download anyway"))
    with pytest.raises(ConnectionError, match=r"source='user/name': the Hugging Face Hub cannot be reached") as caught:
        load_sequences("user/name")
    assert caught.value.__cause__ is cause
    assert "\n" not in str(caught.value)


def test_offline_mode_uses_the_cache(play, monkeypatch):
    def offline(*args, **kwargs):
        raise OfflineModeIsEnabled("offline")

    play(DatasetDict(train=split([0, 1])))
    monkeypatch.setattr(hub.HfApi, "dataset_info", offline)
    assert load_sequences("user/name", validation_fraction=0, test_fraction=0)["train"].num_rows == 2
    play(ConnectionError("Couldn't reach 'user/name' on the Hub (OfflineModeIsEnabled)"))
    monkeypatch.setattr(hub.HfApi, "dataset_info", offline)
    with pytest.raises(ConnectionError, match="cannot be reached"):
        load_sequences("user/name")
