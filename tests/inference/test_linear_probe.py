"""Linear probes: scores where they are known, error bars, groups, and errors."""

import sys

import numpy as np
import pytest
from datasets import Dataset

from hf_ssm.inference import linear_probe
from hf_ssm.inference.linear_probe import probe_table


def table(count: int = 60, classes: int = 2, **columns: list) -> Dataset:
    """Embeddings of which layer 1 separates the classes and layer 0 does not."""
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    noise, signal = rng.normal(size=(2, count, 4))
    signal[:, 0] += 8 * labels
    values = {"embedding_0": noise.astype(np.float32), "embedding_1": signal.astype(np.float32)}
    return Dataset.from_dict({"label": [f"c{label}" for label in labels], **columns, **values})


def test_scores_of_two_classes():
    result = linear_probe(table(), "label")
    assert result["classes"] == {"c0": 30, "c1": 30} and result["rows"] == 60
    noise, signal = result["embedding_0"], result["embedding_1"]
    assert list(signal) == ["accuracy", "f1", "mcc", "auroc"]
    assert all(values["mean"] > 0.98 for values in signal.values())
    assert noise["accuracy"]["mean"] < 0.75 and abs(noise["mcc"]["mean"]) < 0.5 and noise["auroc"]["mean"] < 0.75
    assert result == linear_probe(table(), table()["label"][:])
    assert result != linear_probe(table(), "label", seed=1)
    assert probe_table(result).count("\n") == 10


def test_error_bar_counts_the_overlap_of_the_training_sets():
    """The folds by hand."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    data = table()
    x, y = np.array(data["embedding_0"]), np.array(data["label"])
    right = []
    for train, test in StratifiedKFold(4, shuffle=True, random_state=3).split(x, y):
        scaler = StandardScaler().fit(x[train])
        model = LogisticRegression().fit(scaler.transform(x[train]), y[train])
        right.append((model.predict(scaler.transform(x[test])) == y[test]).mean())
    found = linear_probe(data, "label", folds=4, seed=3)["embedding_0"]["accuracy"]
    deviation = np.std(right, ddof=1)
    expected = {"mean": np.mean(right), "deviation": deviation, "error": deviation * np.sqrt(1 / 4 + 1 / 3)}
    assert found == pytest.approx(expected, abs=1e-12)


def test_several_classes_have_no_roc_curve():
    result = linear_probe(table(classes=3), "label")
    assert list(result["embedding_1"]) == ["accuracy", "f1", "mcc"]
    assert result["embedding_1"]["accuracy"]["mean"] > 0.9


def test_windows_of_a_sequence_are_in_one_fold():
    """Each sequence has a random class and vectors of its own: of other sequences, nothing can be learned."""
    rng = np.random.default_rng(0)
    record = np.repeat(np.arange(40), 4)
    embedding = rng.normal(size=(40, 30))[record]
    data = Dataset.from_dict({"record": record, "start": record, "label": record % 2, "embedding": embedding})
    assert linear_probe(data, "label")["embedding"]["accuracy"]["mean"] < 0.7
    assert linear_probe(data.remove_columns("start"), "label")["embedding"]["accuracy"]["mean"] > 0.9
    assert linear_probe(data.remove_columns("start"), "label", groups="record") == linear_probe(data, "label")


@pytest.mark.parametrize(
    ("labels", "arguments", "message"),
    [
        ("lable", {}, "did you mean 'label'"),
        ([0, 1], {}, "`labels` has 2 entries for 60 rows"),
        ([0] * 60, {}, "1 class"),
        ([0] * 57 + [1] * 3, {}, "'1' has 3 rows, fewer than `folds`=5"),
        ([None, *[0, 1] * 29, 0], {}, "row 0 has no label"),
        ("label", {"folds": 1}, "folds=1"),
    ],
)
def test_bad_labels(labels, arguments, message):
    with pytest.raises(ValueError, match=message):
        linear_probe(table(), labels, **arguments)


def test_bad_embeddings():
    with pytest.raises(ValueError, match="no column 'embedding'"):
        linear_probe(table().select_columns("label"), "label")
    with pytest.raises(ValueError, match="a row for each token"):
        linear_probe(table(token_start=[0] * 60), "label")


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r'pip install "hf_ssm\[genomics\]"'):
        linear_probe(table(), "label")
