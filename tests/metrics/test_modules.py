"""What every metric has in common: it loads from its folder, streams, explains itself, and leaves no file."""

import doctest
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch

import hf_ssm.metrics
from hf_ssm.metrics import NAMES, load, path
from hf_ssm.metrics.base import StreamedMetric

# Two batches of columns for each metric and configuration, and what both together give.
BATCHES = {
    ("accuracy", "default"): (
        {"predictions": [0, 1, 1], "references": [0, 1, 2]},
        {"predictions": [3], "references": [3]},
        {"accuracy": 0.75},
    ),
    ("accuracy", "sums"): (
        {"predictions": [2, 0], "references": [3, 0]},
        {"predictions": [1], "references": [1]},
        {"accuracy": 0.75},
    ),
    ("f1", "default"): (
        {"predictions": [0, 0, 0], "references": [1, 0, 1]},
        {"predictions": [1], "references": [-100]},
        {"f1": 0.25},
    ),
    ("mcc", "default"): (
        {"predictions": [0, 1], "references": [1, 0]},
        {"predictions": [1, 0], "references": [0, 1]},
        {"mcc": -1.0},
    ),
    ("perplexity", "default"): (
        {"predictions": [[np.log(4.0), 7.0], [0.0, 0.0]], "references": [[3, -100], [0, 1]]},
        {"predictions": [[np.log(4.0)]], "references": [[2]]},
        {"perplexity": 2.0},
    ),
    ("perplexity", "sums"): (
        {"predictions": [np.log(4.0), 0.0], "references": [1, 2]},
        {"predictions": [np.log(4.0)], "references": [1]},
        {"perplexity": 2.0},
    ),
    ("generalization_gap", "default"): (
        {"predictions": [0.25, 1.0], "references": ["train", "test"]},
        {"predictions": [0.75], "references": ["train"]},
        {"generalization_gap": 0.5, "train": 0.5, "test": 1.0},
    ),
    ("tau", "default"): (
        {"predictions": [[1.0, 4.0], [2.0, 5.0]]},
        {"predictions": [[3.0, 3.0]]},
        {"tau": 6.0, "tau_per_layer": [2.0, 4.0]},
    ),
    ("tau", "channels"): (
        {"kernels": [[1.0, 0.5]], "means": [[1.0, 0.0]], "variances": [[0.0, 4.0]]},
        {"kernels": [[2.0, -1.0]], "means": [[1.0, 2.0]], "variances": [[4.0, 0.0]]},
        {"tau": (4.0 + 16.0) / 2},
    ),
    ("pass_rate", "default"): (
        {"predictions": [[1.0, 1.0]], "references": [[2.0, 2.0]]},
        {"predictions": [[-1.0, 1.0]], "references": [[2.0, -2.0]]},
        {"pass_rate": 0.5},
    ),
}

SINGULAR = {"predictions": "prediction", "references": "reference"}

OFFLINE = """
import socket, sys

def refuse(*arguments):
    raise AssertionError(f"the network was asked for {arguments}")

socket.socket.connect = socket.getaddrinfo = refuse
import hf_ssm.metrics
assert "evaluate" not in sys.modules, "importing our metrics imports evaluate"
import evaluate
for name in hf_ssm.metrics.NAMES:
    metric = evaluate.load(str(hf_ssm.metrics.path(name)))
    assert isinstance(metric, evaluate.Metric) and metric.name == name, metric
    ours = hf_ssm.metrics.load(name)
    assert (type(ours).__name__, ours.features) == (type(metric).__name__, metric.features)
accuracy = evaluate.load(str(hf_ssm.metrics.path("accuracy")), "sums")
print(accuracy.compute(predictions=[2], references=[4]))
"""


def flat(result):
    """Each number under its own name, as `approx` wants it."""
    return {f"{key}{at}": number for key, value in result.items() for at, number in enumerate(np.atleast_1d(value))}


@pytest.fixture(params=BATCHES, ids="-".join)
def case(request):
    return request.param, *BATCHES[request.param]


def test_every_metric_is_tried():
    assert {name for name, _ in BATCHES} == set(NAMES)
    assert {folder.name for folder in Path(hf_ssm.metrics.__file__).parent.glob("[a-z]*/")} == set(NAMES)


def test_batches_add_up(case):
    (name, config), first, second, expected = case
    metric = load(name, config)
    for batch in (first, second):
        assert metric.add_batch(**batch) is None
    assert len(metric) == sum(len(next(iter(batch.values()))) for batch in (first, second))
    assert flat(metric.compute()) == pytest.approx(flat(expected))
    # It starts anew.
    assert len(metric) == 0
    with pytest.raises(ValueError, match="there is no"):
        metric.compute()


def test_last_batch_may_come_with_compute(case):
    (name, config), first, second, expected = case
    metric = load(name, config)
    metric.add_batch(**first)
    assert flat(metric.compute(**second)) == pytest.approx(flat(expected))


def test_examples_one_by_one(case):
    (name, config), first, second, expected = case
    metric = load(name, config)
    for batch in (first, second):
        for row in zip(*batch.values(), strict=True):
            metric.add(**{SINGULAR.get(key, key): value for key, value in zip(batch, row, strict=True)})
    assert flat(metric.compute()) == pytest.approx(flat(expected))


@pytest.mark.parametrize("convert", [np.array, torch.tensor])
def test_arrays_and_tensors(case, convert):
    (name, config), first, second, expected = case
    metric = load(name, config)
    for batch in (first, second):
        metric.add_batch(**{key: column if key == "references" else convert(column) for key, column in batch.items()})
    assert flat(metric.compute()) == pytest.approx(flat(expected))


def test_features_fit_the_batches(case):
    """evaluate encodes by them where several processes meet, and a page shows them."""
    (name, config), first, *_ = case
    features = load(name, config).features
    choices = features if isinstance(features, list) else [features]
    encoded = []
    for choice in choices:
        try:
            encoded.append(choice.encode_batch(first))
        except (TypeError, ValueError):
            continue
    assert encoded and list(choices[0]) == list(first)


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_the_description_run(name):
    metric = load(name)
    assert metric.description.strip() and "@" in metric.citation and "Returns:" in metric.inputs_description
    test = doctest.DocTestParser().get_doctest(metric.inputs_description, {"hf_ssm": hf_ssm}, name, None, None)
    assert test.examples
    lines: list[str] = []
    results = doctest.DocTestRunner().run(test, out=lines.append)
    assert results.failed == 0, "".join(lines)


def test_unknown_names_say_what_there_is():
    with pytest.raises(ValueError, match=r"one of accuracy, f1, .*, tau, got 'acuracy' \(did you mean 'accuracy'\?\)"):
        load("acuracy")
    with pytest.raises(ValueError, match="default, sums, got 'sum'"):
        load("perplexity", "sum")
    with pytest.raises(ValueError, match="'package' or 'hub', got 'net'"):
        load("tau", source="net")
    with pytest.raises(ValueError, match="one of accuracy"):
        path("../accuracy")


def test_bad_calls():
    metric = load("accuracy")
    with pytest.raises(ValueError, match="takes predictions and references; missing: references"):
        metric.compute(predictions=[1])
    with pytest.raises(ValueError, match="unknown: weights"):
        metric.add_batch(predictions=[1], references=[1], weights=[1])
    with pytest.raises(ValueError, match="no option average: its options are none"):
        metric.compute(predictions=[1], references=[1], average="macro")
    with pytest.raises(ValueError, match="missing: means"):
        load("tau", "channels").add_batch(kernels=[[1.0]], variances=[[1.0]])
    assert len(metric) == 0


def test_a_bad_batch_leaves_the_others():
    metric = load("accuracy")
    metric.add_batch(predictions=[1], references=[1])
    with pytest.raises(ValueError, match="shapes must be equal"):
        metric.add_batch(predictions=[1, 2], references=[1])
    assert metric.compute() == {"accuracy": 1.0}


def test_combined_metrics():
    together = evaluate.combine([load(name) for name in ("accuracy", "f1", "mcc")])
    assert isinstance(load("f1"), StreamedMetric)
    result = together.compute(predictions=[0, 1, 1], references=[0, 1, 1])
    assert result == {"accuracy": 1.0, "f1": 1.0, "mcc": pytest.approx(1.0)}


def test_several_processes_meet_in_the_files_of_evaluate(tmp_path):
    """Threads stand for the processes, which know nothing of each other but the folder."""

    def evaluated(process, predictions, references):
        metric = load("f1", num_process=2, process_id=process, cache_dir=str(tmp_path), experiment_id="two")
        metric.add_batch(predictions=predictions, references=references)
        assert len(metric) == 2
        return metric.compute()

    with ThreadPoolExecutor() as pool:
        second = pool.submit(evaluated, 1, [1, 0], [0, 0])
        first = pool.submit(evaluated, 0, [0, 1], [0, 1])
    assert second.result() is None
    assert first.result() == load("f1").compute(predictions=[0, 1, 1, 0], references=[0, 1, 0, 0])
    assert not list(tmp_path.rglob("*.arrow"))


def test_loads_from_its_folder_without_network_and_leaves_nothing(tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "XDG_"))}
    environment = kept | {"HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", OFFLINE], cwd=work, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'accuracy': 0.5}\n"
    assert not list(work.iterdir())
    # evaluate keeps a copy of the code it was asked to load from a folder; nothing else may be there.
    left = {p.relative_to(home).parts[:3] for p in home.rglob("*") if p.is_file()}
    assert left <= {(".cache", "huggingface", "modules")}
