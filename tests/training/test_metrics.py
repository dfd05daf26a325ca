"""Our metrics against scikit-learn's and against loops."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
)
from transformers import EvalPrediction

from hf_ssm.training import metrics

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(pairs)
def test_classification_agrees_with_sklearn(examples):
    labels, predictions = np.array(examples).T
    found = metrics.classification_metrics(EvalPrediction(np.eye(4)[predictions], labels))
    constant = len(set(labels)) == 1 or len(set(predictions)) == 1
    expected = {
        "accuracy": accuracy_score(labels, predictions),
        "f1": f1_score(labels, predictions, average="macro", zero_division=0.0),
        "mcc": 0.0 if constant else matthews_corrcoef(labels, predictions),
    }
    assert found == pytest.approx(expected, abs=1e-12)


def test_labels_that_are_all_ignored_are_refused():
    with pytest.raises(ValueError, match="there is no example"):
        metrics.classification_metrics(EvalPrediction(np.zeros((2, 3), dtype=int), np.full((2, 3), -100)))


def test_classification_metrics_take_logits_and_first_of_a_tuple():
    logits = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    labels = np.array([0, 1, 1])
    plain = metrics.classification_metrics(EvalPrediction(logits, labels))
    assert plain["accuracy"] == pytest.approx(2 / 3)
    assert metrics.classification_metrics(EvalPrediction((logits, np.zeros(3)), labels)) == plain


def test_token_classification_leaves_out_ignored_labels():
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 1, 2, -100, -100], [1, -100, 1, 0, 2]])
    classes = metrics.predicted_classes(logits, labels)
    found = metrics.classification_metrics(EvalPrediction(classes.numpy(), labels.numpy()))
    kept = [(int(t), int(p)) for t, p in zip(labels.flatten(), classes.flatten(), strict=True) if t != -100]
    assert found["accuracy"] == pytest.approx(sum(t == p for t, p in kept) / len(kept))


@pytest.mark.parametrize("columns", [1, 3])
def test_regression_of_sequences_agrees_with_sklearn_and_scipy(columns):
    generator = np.random.default_rng(0)
    labels = generator.normal(3.0, 2.0, (20, columns)).round(1)  # with ties
    predictions = (0.5 * labels + generator.normal(size=labels.shape)).astype(np.float32)
    given = labels if columns > 1 else labels[:, 0]
    found = metrics.sequence_regression_metrics(EvalPrediction((predictions, np.zeros(3)), given))
    pairs = list(zip(predictions.T, labels.T, strict=True))
    expected = {
        "mse": mean_squared_error(labels, predictions),
        "mae": mean_absolute_error(labels, predictions),
        "r2": r2_score(labels, predictions),
        "pearson": np.mean([scipy.stats.pearsonr(*pair).statistic for pair in pairs]),
        "spearman": np.mean([scipy.stats.spearmanr(*pair).statistic for pair in pairs]),
    }
    assert found == pytest.approx(expected, rel=1e-6)


def test_regression_of_constants_is_finite():
    found = metrics.sequence_regression_metrics(EvalPrediction(np.ones((3, 1)), np.full(3, 2.0)))
    assert found == {"mse": 1.0, "mae": 1.0, "r2": 0.0, "pearson": 0.0, "spearman": 0.0}


@pytest.mark.parametrize("shift", [True, False])
def test_perplexity_is_the_mean_over_tokens_of_unequal_rows(shift):
    logits = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([[1, 2, 3, 0, 1, 2], [0, 3, -100, -100, -100, -100], [-100, -100, 2, 2, 1, -100]])
    nats, right, count = 0.0, 0, 0
    for b in range(3):
        for t in range(6):
            source = t - 1 if shift else t
            if source < 0 or labels[b, t] == -100:
                continue
            row = logits[b, source].tolist()
            nats += math.log(sum(math.exp(v) for v in row)) - row[labels[b, t]]
            right += int(row.index(max(row)) == labels[b, t])
            count += 1
    statistics = torch.cat(
        [
            metrics.token_statistics(shift)(logits[:1], labels[:1]),
            metrics.token_statistics(shift)(logits[1:], labels[1:]),
        ]
    )
    found = metrics.language_modeling_metrics(EvalPrediction(statistics.numpy(), labels.numpy()))
    assert found["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert found["token_accuracy"] == pytest.approx(right / count)


def test_perplexity_without_tokens_is_refused():
    labels = torch.tensor([[3]])
    statistics = metrics.token_statistics(True)(torch.zeros(1, 1, 4), labels)
    with pytest.raises(ValueError, match="no token to predict"):
        metrics.language_modeling_metrics(EvalPrediction(statistics.numpy(), labels.numpy()))


@pytest.mark.parametrize("shape", [(), (3,), (5, 2)])
def test_regression_over_uneven_batches_and_padding(shape):
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(7, *shape)).astype(np.float32)
    logits = rng.normal(size=(7, *(shape or (1,)))).astype(np.float32)
    if shape:
        labels[2, 1:] = np.nan
    batches = [slice(0, 4), slice(4, 7)]
    rows = [metrics.regression_statistics(torch.tensor(logits[b]), torch.tensor(labels[b])) for b in batches]
    found = metrics.regression_metrics(EvalPrediction(torch.cat(rows).numpy(), labels))
    error = (logits.reshape(labels.shape) - labels).astype(np.float64)
    assert found["mse"] == pytest.approx(np.nanmean(error**2), rel=1e-6)
    assert found["mae"] == pytest.approx(np.nanmean(np.abs(error)), rel=1e-6)


def test_what_several_processes_pad_with_is_no_target():
    """The Trainer pads logits and labels of a shorter batch with -100 before it asks for the statistics."""
    logits = torch.tensor([[[1.0], [2.0], [-100.0]], [[0.0], [-100.0], [-90.0]]])
    labels = torch.tensor([[0.0, 4.0, -100.0], [1.0, -100.0, -100.0]])
    labels[1, 1] = torch.nan
    found = metrics.regression_statistics(logits, labels)
    # -100 is a target where the model says -90.
    assert found.tolist() == [[1.0 + 4.0, 1.0 + 2.0, 2.0], [1.0 + 100.0, 1.0 + 10.0, 2.0]]


def test_chance_of_tokens_is_that_of_their_frequencies():
    counts = [0, 6, 2, 0]
    found = metrics.token_frequency_metrics(counts)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found == pytest.approx({"perplexity": math.exp(entropy), "token_accuracy": 0.75})
    assert metrics.token_frequency_metrics([5, 5, 5, 5])["perplexity"] == pytest.approx(4)


def test_chance_of_values_is_that_of_the_mean():
    labels = np.random.default_rng(0).normal(size=(20, 3))
    constant = EvalPrediction(np.broadcast_to(labels.mean(0), labels.shape), labels)
    expected = metrics.sequence_regression_metrics(constant)
    assert metrics.constant_value_metrics(labels.tolist(), of_positions=False) == pytest.approx(expected, abs=1e-12)
    ragged = [[1.0, 2.0], [6.0]]
    assert metrics.constant_value_metrics(ragged, of_positions=True)["mse"] == pytest.approx(14 / 3)


@pytest.mark.parametrize(
    ("values", "chance", "expected"),
    [
        ({"perplexity": 4.74, "token_accuracy": 0.3}, {"perplexity": 4.0, "token_accuracy": 0.26}, False),
        ({"perplexity": 3.9}, {"perplexity": 4.0}, True),
        ({"accuracy": 0.5, "mcc": 0.0}, {"accuracy": 0.5, "mcc": 0.0}, False),
        ({"accuracy": 0.94, "mcc": 0.5}, {"accuracy": 0.95, "mcc": 0.0}, True),
        ({"mse": 2.0, "pearson": 0.05}, {"mse": 1.0, "pearson": 0.0}, False),
    ],
)
def test_what_is_better_than_chance(values, chance, expected):
    assert metrics.beats_chance(values, chance) is expected
