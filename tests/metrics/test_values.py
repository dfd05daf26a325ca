"""The numbers of each metric: against scikit-learn, against the formulas, against the theory, and at the edges."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from hf_ssm.metrics import load
from hf_ssm.theory.complexity import generalization_measure, tau

classes = st.sampled_from([-3, 0, 1, 2, 10**12])
batches = st.lists(st.lists(st.tuples(classes, st.one_of(classes, st.just(-100))), max_size=12), min_size=1, max_size=4)


@settings(max_examples=80)
@given(batches)
def test_classes_agree_with_sklearn(examples):
    kept = [(p, t) for batch in examples for p, t in batch if t != -100]
    found = {}
    for name in ("accuracy", "f1", "mcc"):
        metric = load(name)
        for batch in examples:
            metric.add_batch(predictions=[p for p, _ in batch], references=[t for _, t in batch])
        if not kept:
            with pytest.raises(ValueError, match="there is no example"):
                metric.compute()
            return
        found |= metric.compute()
    predictions, labels = np.array(kept).T
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predictions), abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        expected = f1_score(labels, predictions, average="macro", zero_division=0.0)
    assert found["f1"] == pytest.approx(expected, abs=1e-12)
    constant = len(set(labels)) == 1 or len(set(predictions)) == 1
    assert found["mcc"] == pytest.approx(0.0 if constant else matthews_corrcoef(labels, predictions), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc"])
def test_one_class_only(name):
    expected = {"accuracy": 1.0, "f1": 1.0, "mcc": 0.0}[name]
    assert load(name).compute(predictions=[2, 2], references=[2, 2]) == {name: expected}


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc"])
def test_rows_of_several_lengths_and_ignored_labels(name):
    rows = {"predictions": [[0, 1, 5], [1]], "references": [[0, 0, -100], [1]]}
    flat = {"predictions": [0, 1, 1], "references": [0, 0, 1]}
    assert load(name).compute(**rows) == load(name).compute(**flat)
    tensors = {key: [torch.tensor(row) for row in column] for key, column in rows.items()}
    assert load(name).compute(**tensors) == load(name).compute(**flat)


@pytest.mark.parametrize("name", ["accuracy", "f1", "mcc"])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], "there is no example"),
        ([1], [-100], "there is no example"),
        ([1, 2], [1], "shapes must be equal, got those of `predictions` (2,) and `references` (1,)"),
        ([[0.1, 0.9]], [1], "take `argmax(-1)` of logits"),
        ([[1, 2], [3]], [[1], [2, 3]], "`predictions` ((2,), (1,)) and `references` ((1,), (2,))"),
        ([0.5], [1], "`predictions` must hold whole numbers, got 0.5"),
        ([math.nan], [1], "`predictions` must hold whole numbers, got nan"),
        ([1], [math.nan], "`references` must hold whole numbers, got nan"),
        (["a"], ["a"], "`predictions` must hold numbers"),
        ([1, None], [1, 1], "`predictions` must hold numbers"),
    ],
)
def test_bad_classes(name, predictions, references, message):
    with pytest.raises(ValueError) as caught:
        load(name).compute(predictions=predictions, references=references)
    assert message in str(caught.value)


def test_long_lists_make_short_errors():
    rows = [[1] * (1 + index % 3) for index in range(1000)]
    with pytest.raises(ValueError) as caught:
        load("f1").compute(predictions=rows, references=rows[:-1])
    assert len(str(caught.value)) < 300


def test_accuracy_of_sums():
    metric = load("accuracy", "sums")
    assert metric.compute(predictions=[3.0, 0.0], references=[4.0, 0.0]) == {"accuracy": 0.75}
    for right, counted in ((5, 4), (-1, 4)):
        with pytest.raises(ValueError, match="between 0 and"):
            metric.compute(predictions=[right], references=[counted])
    with pytest.raises(ValueError, match="there is no example"):
        metric.compute(predictions=[0], references=[0])


def test_perplexity_is_that_of_cross_entropy():
    logits = torch.randn(3, 6, 5)
    labels = torch.randint(5, (3, 6))
    labels[1, 2:] = -100
    nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    expected = math.exp(torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), labels.flatten()))
    metric = load("perplexity")
    # What padding has in the place of a likelihood does not matter.
    metric.add_batch(predictions=nats[:2].masked_fill(labels[:2] == -100, math.nan), references=labels[:2])
    metric.add_batch(predictions=nats[2:], references=labels[2:])
    assert metric.compute()["perplexity"] == pytest.approx(expected, rel=1e-6)
    counts = (labels != -100).sum(1)
    assert load("perplexity", "sums").compute(predictions=nats.sum(1), references=counts)["perplexity"] == (
        pytest.approx(expected, rel=1e-6)
    )


def test_perplexity_at_the_edges():
    metric = load("perplexity")
    assert math.isnan(metric.compute(predictions=[0.5, math.nan], references=[1, 2])["perplexity"])
    assert metric.compute(predictions=[1e4], references=[1]) == {"perplexity": math.inf}
    assert metric.compute(predictions=[0.0, -1e-7], references=[1, 1])["perplexity"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"not negative, got -0\.5: turn the sign"):
        metric.compute(predictions=[-0.5], references=[1])
    for empty in ({"predictions": [], "references": []}, {"predictions": [[1.0]], "references": [[-100]]}):
        with pytest.raises(ValueError, match="there is no example"):
            metric.compute(**empty)
    with pytest.raises(ValueError, match="numbers of tokens, must not be negative, got -100"):
        load("perplexity", "sums").compute(predictions=[0.0], references=[-100])


def test_gap_of_losses_and_scores():
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=30), rng.normal(1, size=20)
    columns = {"predictions": np.concatenate([train, test]), "references": ["train"] * 30 + ["test"] * 20}
    expected = test.mean() - train.mean()
    metric = load("generalization_gap")
    assert metric.compute(**columns)["generalization_gap"] == pytest.approx(expected)
    assert metric.compute(**columns, greater_is_better=True)["generalization_gap"] == pytest.approx(-expected)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([1.0], ["train"], "there is no test example"),
        ([], [], "there is no train example"),
        ([1.0], ["validation"], "'train' or 'test', got 'validation'"),
        ([1.0], [1], "'train' or 'test', got 1"),
        ([math.nan], ["test"], "`predictions` must hold finite numbers, got nan"),
        ([1.0, 2.0], ["test"], "must be of one shape"),
        ([[1.0]], [["test"]], "must be of one shape"),
    ],
)
def test_bad_gaps(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        load("generalization_gap").compute(predictions=predictions, references=references)


def test_tau_of_channels_is_that_of_the_theory():
    kernels, means = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    variances = torch.rand(5, 7, dtype=torch.float64)
    metric = load("tau", "channels")
    for rows in (slice(0, 2), slice(2, 5)):
        metric.add_batch(kernels=kernels[rows], means=means[rows], variances=variances[rows])
    found = metric.compute(num_sequences=50)
    assert found["tau"] == pytest.approx(tau(kernels, means.T, variances.T).mean().item(), rel=1e-12)
    measure = generalization_measure(kernels, 50, means.T, variances.T).mean().item()
    assert found["measure"] == pytest.approx(measure, rel=1e-12)


def test_tau_of_the_layers_of_a_model(make_model):
    model = make_model("S4", "ForCausalLM", vocab_size=11)
    metric, taus = load("tau"), []
    for _ in range(2):
        with torch.no_grad():
            taus.append(model(torch.randint(11, (4, 9)), output_tau=True).tau)
        metric.add_batch(predictions=taus[-1].unsqueeze(0))
    expected = torch.stack(taus).double().mean(0)
    found = metric.compute(num_sequences=8)
    assert found["tau_per_layer"] == pytest.approx(expected.tolist())
    assert found["tau"] == pytest.approx(expected.sum().item())
    assert found["measure"] == pytest.approx(expected.sum().item() / math.sqrt(8))


@pytest.mark.parametrize(
    ("config", "columns", "message"),
    [
        ("default", {"predictions": [1.0, 2.0]}, "rows of one length"),
        ("default", {"predictions": [[1.0], [1.0, 2.0]]}, "rows of one length"),
        ("default", {"predictions": [[1.0, math.inf]]}, "finite numbers, got inf"),
        ("default", {"predictions": [[-1.0]]}, "not negative, got -1"),
        ("default", {"predictions": []}, "there is no example"),
        ("channels", {"kernels": [[1.0]], "means": [[1.0]], "variances": [[1.0, 2.0]]}, "must be of one shape"),
        ("channels", {"kernels": [[1.0]], "means": [[1.0]], "variances": [[-1.0]]}, "`variances` must not be negative"),
        ("channels", {"kernels": [], "means": [], "variances": []}, "there is no example"),
    ],
)
def test_bad_taus(config, columns, message):
    with pytest.raises(ValueError, match=message):
        load("tau", config).compute(**columns)


def test_taus_of_two_models_are_not_mixed():
    metric = load("tau")
    metric.add_batch(predictions=[[1.0, 2.0]])
    metric.add_batch(predictions=[[1.0]])
    with pytest.raises(ValueError, match=r"one column for each layer of one model, got \[1, 2\] columns"):
        metric.compute()
    with pytest.raises(ValueError, match="`num_sequences` must be at least 1, got 0"):
        metric.compute(predictions=[[1.0]], num_sequences=0)


def test_pass_rate_of_a_filter_is_its_gain():
    """A moving average of two lets cos(ωt) pass with the factor cos(ω/2)."""
    times = torch.arange(400, dtype=torch.float64)
    for cycles in (10, 100, 190):
        omega = 2 * math.pi * cycles / 400
        signals = torch.stack([torch.cos(omega * times), torch.sin(omega * times)])
        outputs = (signals + signals.roll(1, dims=1)) / 2
        metric = load("pass_rate")
        for signal, output in zip(signals, outputs, strict=True):
            metric.add(prediction=output, reference=signal)
        assert metric.compute()["pass_rate"] == pytest.approx(math.cos(omega / 2), rel=1e-9)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([0.0], [0.0], "`references` are all 0"),
        ([math.nan], [1.0], "`predictions` must hold finite numbers, got nan"),
        ([1.0], [math.inf], "`references` must hold finite numbers, got inf"),
        ([1.0, 2.0], [1.0], "shapes must be equal"),
    ],
)
def test_bad_signals(predictions, references, message):
    with pytest.raises(ValueError, match=message):
        load("pass_rate").compute(predictions=predictions, references=references)
