"""Numbers as sequences: tables of them, labels of every kind, scaling, padding."""

import json

import numpy as np
import pytest
import torch
from datasets import Array2D, Dataset, DatasetDict, Features, List, Value

from hf_ssm.data import SignalFeatureExtractor, label_names, load_sequences, loading, tokenize
from hf_ssm.data.features import SignalCollator, fit_extractor
from hf_ssm.data.labels import classes_in, label_kind, read_labels
from hf_ssm.data.signals import fingerprint, is_signal, row_keys, row_lengths, signal_inputs, signal_rows
from hf_ssm.data.tokenized import align_labels
from hf_ssm.tokenization import build_byte_tokenizer, build_dna_tokenizer

ALL = {"validation_fraction": 0, "test_fraction": 0}


@pytest.fixture
def table(tmp_path):
    """`table(rows)`: the path of a jsonl file of these rows."""

    def write(rows):
        path = tmp_path / "a.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return path

    return write


def waves(count=20, channels=None, ragged=True):
    rng = np.random.default_rng(0)
    shape = () if channels is None else (channels,)
    return [rng.normal(size=(5 + (row % 3 if ragged else 0), *shape)) for row in range(count)]


@pytest.mark.parametrize("channels", [None, 1, 3])
def test_a_table_of_numbers(table, channels):
    signals = waves(channels=channels)
    path = table([{"sequence": signal.tolist(), "label": row % 2} for row, signal in enumerate(signals)])
    data = load_sequences(path, validation_fraction=0.1, test_fraction=0.2)
    assert {name: split.num_rows for name, split in data.items()} == {"train": 14, "validation": 2, "test": 4}
    assert is_signal(data["train"].features["sequence"])
    found = {tuple(np.ravel(row["sequence"]).tolist()): row["label"] for split in data.values() for row in split}
    assert found == {tuple(np.float32(np.ravel(signal)).tolist()): row % 2 for row, signal in enumerate(signals)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("ACGT", "the column 'sequence' has values of different types"),
        ([1.0, float("nan")], r"rows.jsonl?, (line|row) 3: NaN or infinity|3 of .*: NaN or infinity"),
        ([[1.0], [2.0]], "the column 'sequence' has values of different types"),
    ],
)
def test_rows_that_are_no_signals(table, wrong, message):
    rows = [{"sequence": [1.0, 2.0], "label": row % 2} for row in range(4)]
    rows[2]["sequence"] = wrong
    with pytest.raises(ValueError, match=message):
        load_sequences(table(rows))


def test_a_hub_data_set_of_numbers(monkeypatch):
    features = Features({"x": Array2D((3, 2), "float64"), "label": Value("int64")})
    values = np.arange(24.0).reshape(4, 3, 2)
    loaded = DatasetDict(train=Dataset.from_dict({"x": values, "label": [0, 1, 0, 1]}, features=features))
    monkeypatch.setattr(loading, "load_dataset", lambda *args, **kwargs: loaded)
    data = load_sequences("user/name", sequence_column="x", **ALL)
    assert np.array_equal(np.array(data["train"]["x"][:]), values)
    loaded["test"] = loaded["train"].map(lambda row: {"x": [[np.inf] * 2] * 3}, features=features)
    with pytest.raises(ValueError, match="row 1 of 'test': NaN or infinity"):
        load_sequences("user/name", sequence_column="x", **ALL)


def test_labels_of_positions(table):
    rows = [{"sequence": [1.0, 2.0, row], "label": ["a", "b", "c" if row else "a"]} for row in range(4)]
    data = load_sequences(table(rows), **ALL)
    assert label_kind(data["train"], "label") == "classes"
    assert label_names(data) == ["a", "b", "c"]
    assert data["train"]["label"][:2] == [[0, 1, 0], [0, 1, 2]]
    rows = [{"sequence": [1.0, 2.0], "label": [-100, row % 2]} for row in range(4)]
    data = load_sequences(table(rows), **ALL)
    assert label_names(data) == ["0", "1"] and classes_in(data["train"], "label") == {0, 1}
    assert data["train"]["label"][1] == [-100, 1]


def test_targets(table):
    rows = [{"sequence": [1.0, 2.0], "label": row / 2} for row in range(4)]
    data = load_sequences(table(rows), targets=True, **ALL)
    assert data["train"]["label"][:] == [0.0, 0.5, 1.0, 1.5]
    assert label_kind(data["train"], "label") == "number"
    data = load_sequences(table([{**row, "label": [1, 2]} for row in rows]), targets=True, **ALL)
    assert data["train"]["label"][0] == [1.0, 2.0]
    assert label_kind(data["train"], "label") == "numbers"


@pytest.mark.parametrize(
    ("values", "targets", "message"),
    [
        ([[0, 1], 1], False, "lists of labels, but row 2 has 1"),
        ([0.5, float("inf")], True, "has inf in row 2"),
        ([[0, 1], [3, 1]], False, r"the classes of data are \[0, 1, 3\]"),
        ([[0, 1], [0, 0.5]], False, "label 0.5 in row 2"),
        ([[-100], [-100]], False, "no position with a class"),
        ([0.5, None], True, "without a label"),
        ([0.5, [0.5]], True, r"has \[0\.5\] in row 2, which has another shape than 0\.5 in row 1"),
    ],
)
def test_bad_labels(values, targets, message):
    with pytest.raises(ValueError, match=message):
        read_labels("label", values, "data", lambda row: f"row {row + 1}", targets)


def column(values, feature):
    return Dataset.from_dict({"x": values}, features=Features({"x": feature}))


@pytest.mark.parametrize("chosen", [None, [4, 1, 1]])
@pytest.mark.parametrize(
    ("feature", "shape"),
    [
        (List(Value("float32")), (None,)),
        (List(Value("int8"), length=4), (4,)),
        (List(List(Value("float32"))), (None, 2)),
        (List(List(Value("uint8"), length=2), length=4), (4, 2)),
        (Array2D((4, 2), "uint8"), (4, 2)),
    ],
)
def test_rows_come_as_they_are(feature, shape, chosen):
    rng = np.random.default_rng(0)
    values = [
        rng.integers(0, 100, tuple(3 + row if size is None else size for size in shape)).tolist() for row in range(6)
    ]
    split = column(values, feature)
    if chosen is not None:
        split, values = split.select(chosen), [values[row] for row in chosen]
    found = list(signal_rows(split, "x"))
    assert [row.shape for row in found] == [(len(value), shape[-1] if len(shape) > 1 else 1) for value in values]
    assert all(np.array_equal(row.ravel(), np.ravel(value)) for row, value in zip(found, values, strict=True))
    assert row_lengths(split, "x").tolist() == [len(value) for value in values]
    keys = row_keys(split, "x")
    assert [keys.index(key) for key in keys] == [values.index(value) for value in values]


def test_scaling_and_padding():
    extractor = SignalFeatureExtractor([1.0, -1.0], [2.0, 4.0])
    first, second = np.array([[1.0, 3.0], [5.0, -1.0], [1.0, 1.0]]), np.array([[3.0, -5.0]])
    batch = extractor([first, second.tolist()])
    assert torch.equal(batch["input_values"][0], torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.5]]))
    assert torch.equal(batch["input_values"][1], torch.tensor([[1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert "attention_mask" not in extractor([first, first])
    with pytest.raises(ValueError, match=r"signal 1 has the shape \(2, 3\); give \(length, 2\)"):
        extractor([first, np.zeros((2, 3))])
    with pytest.raises(ValueError, match="signals is empty"):
        extractor([])


@pytest.mark.parametrize(
    "arguments", [([1.0], [1.0, 2.0]), ([], []), ([0.0], [0.0]), ([float("nan")], [1.0]), ([0.0], [-1.0])]
)
def test_bad_extractors(arguments):
    with pytest.raises(ValueError, match=r"^mean="):
        SignalFeatureExtractor(*arguments)


def test_normalizations():
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (30, 7, 2)).astype(np.uint8)
    values[..., 1] = 9
    pixels = column(values, Array2D((7, 2), "uint8"))
    extract = fit_extractor(pixels, "x", "train")
    found = extract(values)["input_values"].numpy()
    wanted = values[..., 0].astype(np.float64)
    assert np.allclose(found[..., 0], (wanted - wanted.mean()) / wanted.std(), atol=1e-6)
    assert np.array_equal(found[..., 1], np.zeros((30, 7)))  # no variance, and no division by it
    ends = np.array([[[0, 255], [255, 0]]])
    assert fit_extractor(pixels, "x")(ends)["input_values"].tolist() == [[[-1, 1], [1, -1]]]
    assert fit_extractor(pixels, "x", "none")(ends)["input_values"].tolist() == [[[0, 1], [1, 0]]]
    numbers = column([[1.0, 3.0], [5.0]], List(Value("float32")))
    assert fit_extractor(numbers, "x")([[7.0]])["input_values"].item() == 7.0
    found = fit_extractor(numbers, "x", "train")
    assert found.mean == [3.0] and found.std == [pytest.approx(np.std([1, 3, 5]))]
    with pytest.raises(ValueError, match="maps pixels"):
        fit_extractor(numbers, "x", "fixed")
    with pytest.raises(ValueError, match="choose from fixed, train, none"):
        fit_extractor(numbers, "x", "mean")


def test_collated_labels():
    collate = SignalCollator(SignalFeatureExtractor())
    rows = [{"input_values": [1.0, 2.0]}, {"input_values": [3.0]}]

    def labels(first, second, collate=collate):
        return collate([{**rows[0], "labels": first}, {**rows[1], "labels": second}])["labels"]

    assert "labels" not in collate(rows)
    assert labels(0, 1).dtype == torch.int64 and labels(0, 1).tolist() == [0, 1]
    assert labels(0.5, 1.0).dtype == torch.float32
    assert labels([1, 2], [3]).tolist() == [[1, 2], [3, -100]]
    ragged = labels([0.5, 1.0], [2.0])
    assert ragged[0].tolist() == [0.5, 1.0] and ragged[1, 0] == 2.0 and ragged[1, 1].isnan()
    assert labels([[1.0, 2.0]] * 2, [[3.0, 4.0]]).shape == (2, 2, 2)
    cut = SignalCollator(SignalFeatureExtractor(), max_length=1)
    assert cut(rows)["input_values"].shape == (2, 1, 1) and "attention_mask" not in cut(rows)
    assert labels([1, 2], [3], cut).tolist() == [[1], [3]]


def test_inputs_are_renamed():
    data = DatasetDict(train=Dataset.from_dict({"x": [[1.0]], "y": [0], "z": ["?"]}))
    assert signal_inputs(data, "x", "y")["train"].column_names == ["input_values", "labels"]
    assert signal_inputs(data, "x", None)["train"].column_names == ["input_values"]
    with pytest.raises(ValueError, match=r"sequence_column='w'"):
        signal_inputs(data, "w", None)


@pytest.mark.parametrize("builder", [build_dna_tokenizer, build_byte_tokenizer])
def test_labels_of_tokens_skip_the_special_ones(builder):
    tokenizer = builder()
    data = DatasetDict(train=Dataset.from_dict({"sequence": ["ACGTA", "AC"], "label": [[0, 1, 2, 0, 1], [2, 1]]}))
    found = align_labels(tokenize(data, tokenizer), tokenizer)["train"]
    for row, labels in zip(found, data["train"]["label"], strict=True):
        assert len(row["labels"]) == len(row["input_ids"])
        special = [token in tokenizer.all_special_ids for token in row["input_ids"]]
        assert [label for label, mark in zip(row["labels"], special, strict=True) if not mark] == labels
        assert all(label == -100 for label, mark in zip(row["labels"], special, strict=True) if mark)


@pytest.mark.parametrize(("side", "kept"), [("right", [0, 1, 2, 3]), ("left", [2, 3, 4, 5])])
def test_unknown_letters_keep_their_labels_where_rows_are_cut(side, kept):
    """Also to the limit of the tokenizer itself, and on its side."""
    tokenizer = build_dna_tokenizer(model_max_length=4)
    tokenizer.truncation_side = side
    data = DatasetDict(train=Dataset.from_dict({"sequence": ["A?GT?C", "AC?"], "label": [[*range(6)], [1, 0, 1]]}))
    long, short = align_labels(tokenize(data, tokenizer), tokenizer)["train"]
    assert tokenizer.unk_token_id in long["input_ids"]
    assert (long["labels"], short["labels"]) == (kept, [1, 0, 1])


def test_one_label_too_few():
    tokenizer = build_dna_tokenizer()
    data = DatasetDict(train=Dataset.from_dict({"sequence": ["ACGT", "ACGT"], "label": [[0, 1, 0, 1], [0, 1, 0]]}))
    with pytest.raises(ValueError, match="split 'train', row 2: there are 3 labels for 4 tokens"):
        align_labels(tokenize(data, tokenizer), tokenizer)


@pytest.mark.parametrize(
    ("rows", "feature"),
    [
        ([[1, 2], [3], [4, 5, 6]], List(Value("int32"))),
        ([0, 1, 1], Value("int64")),
        ([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0]]], List(List(Value("float32"), length=2))),
        (np.arange(12, dtype=np.uint8).reshape(3, 2, 2), Array2D((2, 2), "uint8")),
    ],
)
def test_the_fingerprint_is_that_of_rows_and_order(rows, feature):
    def of(values):
        return fingerprint(Dataset.from_dict({"x": list(values)}, features=Features({"x": feature})))

    whole = Dataset.from_dict({"x": list(rows)}, features=Features({"x": feature}))
    assert of(rows) == fingerprint(whole) == fingerprint(whole.select([0, 1, 2]).with_format("numpy"))
    others = [of(rows[::-1]), of(rows[:2]), of(rows[1:]), fingerprint(whole.rename_column("x", "y"))]
    assert len({of(rows), *others}) == 5
    assert fingerprint(whole.select([2, 1, 0])) == of(rows[::-1])


def test_the_fingerprint_tells_where_rows_end():
    assert (
        len({fingerprint(Dataset.from_dict({"x": rows})) for rows in ([[1, 2], [3]], [[1], [2, 3]], [[1, 2, 3]])}) == 3
    )
