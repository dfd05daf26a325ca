"""Tokenization: columns, truncation, and batches of the collators."""

import logging

import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from transformers import DataCollatorForLanguageModeling

from hf_ssm.data import planted_motifs, tokenize
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer


def splits(**columns):
    return DatasetDict(train=Dataset.from_dict(columns))


def test_ids_and_labels_only():
    data = tokenize(splits(sequence=["ACGT", "nA"], label=[1, 0], extra=["x", "y"]), build_dna_tokenizer())
    assert data["train"].to_dict() == {"labels": [1, 0], "input_ids": [[7, 8, 9, 10], [11, 7]]}


def test_no_labels_for_language_modelling():
    data = tokenize(splits(sequence=["ACGT", "A"], label=[1, 0]), build_dna_tokenizer(), label_column=None)
    assert data["train"].column_names == ["input_ids"]
    batch = DataCollatorForLanguageModeling(build_dna_tokenizer(), mlm=False)(list(data["train"]))
    assert batch["labels"].tolist() == [[7, 8, 9, 10], [7, -100, -100, -100]]


def test_other_column_names():
    data = tokenize(splits(text=["é"], rating=[3]), build_byte_tokenizer(), "text", "rating")
    assert data["train"].to_dict() == {"labels": [3], "input_ids": [[195, 169]]}
    assert tokenize(splits(sequence=["A"], labels=[3]), build_dna_tokenizer(), label_column="labels")[
        "train"
    ].to_dict() == {"labels": [3], "input_ids": [[7]]}


def test_class_names_survive():
    data = tokenize(planted_motifs(num_train=4, num_validation=0, num_test=2), build_dna_tokenizer())
    assert isinstance(data["train"].features["labels"], ClassLabel)
    assert list(data) == ["train", "test"]


def test_truncation_is_counted_and_keeps_the_end_of_sequence(caplog):
    data = splits(sequence=["ACGTACGT", "ACG", "AC"], label=[0, 1, 0])
    with caplog.at_level(logging.WARNING):
        cut = tokenize(data, build_dna_tokenizer(add_eos=True), max_length=4)
    assert cut["train"]["input_ids"][:] == [[7, 8, 9, 1], [7, 8, 9, 1], [7, 8, 1]]
    assert "truncated 1 of 3 sequences to 4 tokens" in caplog.text


def test_the_tokenizers_limit_holds_by_default(caplog):
    data = splits(sequence=["ACGTACGT", "ACG"], label=[0, 1])
    with caplog.at_level(logging.WARNING):
        assert [len(row) for row in tokenize(data, build_dna_tokenizer(5))["train"]["input_ids"]] == [5, 3]
        assert "truncated 1 of 2" in caplog.text
        caplog.clear()
        assert [len(row) for row in tokenize(data, build_dna_tokenizer())["train"]["input_ids"]] == [8, 3]
    assert not caplog.text


def test_the_wrong_tokenizer_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        tokenize(splits(sequence=["what a film"], label=[1]), build_dna_tokenizer())
    assert "tokens are unknown to the tokenizer" in caplog.text


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        (
            {"sequence": ["A", " \n"], "label": [0, 1]},
            {},
            r"1 sequences of split 'train' have no token \(first: row 2\)",
        ),
        ({"sequence": ["A"], "label": [0]}, {"max_length": 0}, "max_length=0"),
        ({"sequence": ["A"], "label": [0]}, {"pair_column": "sequence"}, "pair_column='sequence' equals"),
    ],
)
def test_bad_input_is_refused(columns, arguments, message):
    with pytest.raises(ValueError, match=message):
        tokenize(splits(**columns), build_dna_tokenizer(), **arguments)
