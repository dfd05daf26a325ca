"""Linear baselines against scikit-learn and counts by hand."""

import math

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value

from hf_ssm.data.features import fit_extractor
from hf_ssm.tokenization import build_dna_tokenizer
from hf_ssm.training.inputs import RunData
from hf_ssm.tuning.baselines import _ridge, linear_baseline

TOKENIZER = build_dna_tokenizer()


def texts(train: dict, validation: dict, kind: str | None = "class") -> RunData:
    splits = DatasetDict(train=Dataset.from_dict(train), validation=Dataset.from_dict(validation))
    return RunData(splits, TOKENIZER, None, kind, "", None, {})


def numbers(train: dict, validation: dict, kind: str, depth: int = 1) -> RunData:
    feature = List(Value("float32")) if depth == 1 else List(List(Value("float32")))
    labels = Features({"labels": Value("float32") if kind == "number" else Value("int64")})
    if kind == "numbers":
        labels = Features({"labels": List(Value("float32"))})
    features = Features({"input_values": feature}) | labels
    splits = DatasetDict(
        train=Dataset.from_dict(train, features=Features(features)),
        validation=Dataset.from_dict(validation, features=Features(features)),
    )
    return RunData(splits, fit_extractor(splits["train"], "input_values"), None, kind, "", None, {})


def test_ridge_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model", reason="needs scikit-learn")
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(3, 2, (40, 6)), generator.normal(size=(40, 2))
    targets[:, 0] += inputs[:, 1]
    inputs[:, 5] = 7.0
    scaled = (inputs[:, :5] - inputs[:, :5].mean(0)) / inputs[:, :5].std(0)
    reference = linear_model.RidgeCV(alphas=10.0 ** np.arange(-2, 6)).fit(scaled, targets)
    np.testing.assert_allclose(_ridge(inputs, targets, inputs), reference.predict(scaled), atol=1e-10)


def test_sequences_are_classified_by_the_shares_of_tokens():
    generator = np.random.default_rng(0)
    rows = [generator.choice(4, 30, p=p) + 7 for p in ([0.4, 0.2, 0.2, 0.2], [0.1, 0.3, 0.3, 0.3]) for _ in range(40)]
    data = {"input_ids": [row.tolist() for row in rows], "labels": [0] * 40 + [1] * 40}
    other = {name: values[::3] for name, values in data.items()}
    name, accuracy = linear_baseline("sequence-classification", texts(data, other))
    assert name == "linear in the shares of tokens" and accuracy > 0.9
    # The order of the tokens has no effect.
    shuffled = {"input_ids": [generator.permutation(row).tolist() for row in other["input_ids"]]} | other
    assert linear_baseline("sequence-classification", texts(data, shuffled))[1] == accuracy


def test_equally_long_signals_are_read_by_position():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(60, 12)).astype(np.float32)
    data = {"input_values": values.tolist(), "labels": (2 * values[:, 3] - values[:, 7]).tolist()}
    name, error = linear_baseline("signal-regression", numbers(data, data, "number"))
    assert name == "linear in all values" and error < 1e-6
    ragged = {**data, "input_values": [row[: 12 - i % 2].tolist() for i, row in enumerate(values)]}
    name, error = linear_baseline("signal-regression", numbers(ragged, ragged, "number"))
    assert name == "linear in mean and deviation" and error > 1


def test_positions_are_predicted_from_their_values():
    generator = np.random.default_rng(0)
    values = generator.normal(size=(10, 9, 2)).astype(np.float32)
    data = {"input_values": values.tolist(), "labels": (values[..., 0] - 3 * values[..., 1]).tolist()}
    name, error = linear_baseline("signal-regression", numbers(data, data, "numbers", depth=2))
    assert name == "linear in the values of the position" and error < 1e-6


def test_tokens_are_classified_by_their_most_frequent_class():
    train = {"input_ids": [[7, 7, 8, 8, 9]], "labels": [[0, 0, 1, -100, 0]]}
    other = {"input_ids": [[7, 8, 10, 8]], "labels": [[0, 0, 0, 1]]}
    # Token 10 is unknown and gets the most frequent class of all, 0.
    value = linear_baseline("token-classification", texts(train, other, "classes"))
    assert value == ("most frequent class of each token", 3 / 4)


def test_a_language_model_knows_the_frequencies_after_each_token():
    size = len(TOKENIZER)
    train, other = {"input_ids": [[7, 8, 7, 8, 7]]}, {"input_ids": [[7, 8, 8], [8, 7, TOKENIZER.pad_token_id]]}
    name, perplexity = linear_baseline("causal-lm", texts(train, other, None))
    logarithms = [math.log(3 / (size + 2)), math.log(1 / (size + 2)), math.log(3 / (size + 2))]
    assert name == "frequencies after each token"
    assert perplexity == pytest.approx(math.exp(-sum(logarithms) / 3), rel=1e-12)


def test_there_is_none_without_a_split_or_a_model():
    data = texts({"input_ids": [[7, 8]]}, {"input_ids": [[7, 8]]}, None)
    with pytest.raises(ValueError, match="no test split"):
        linear_baseline("causal-lm", data, "test")
    with pytest.raises(ValueError, match="a masked token has no linear model"):
        linear_baseline("masked-lm", data)
