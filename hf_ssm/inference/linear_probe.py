"""Linear probes: how well a linear classifier of embeddings predicts labels, by cross-validation."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from datasets import Dataset

from hf_ssm.data.checks import check_column, check_integer
from hf_ssm.data.labels import is_missing

__all__ = ["check_labels", "embedding_columns", "linear_probe", "probe_table"]

_METRICS = {"accuracy": "accuracy", "f1": "f1_macro", "mcc": "matthews_corrcoef"}
_BINARY = {"auroc": "roc_auc"}


def linear_probe(
    embeddings: Dataset,
    labels: str | Sequence[Any],
    *,
    groups: str | Sequence[Any] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Cross-validated logistic regression on standardised embeddings.

    Args:
        embeddings: What `embed` returns, one row for each sequence or window.
        labels: A column, or the class of each row.
        groups: A column, or a value for each row; rows of a group are in one fold. Default: the column `record`, if the
            rows are windows, so that no sequence is in two folds.
        folds: Number of folds, stratified by class, default 5.
        seed: Seed of the folds.

    Returns:
        In JSON types: "rows", "classes" (with their numbers of rows), "folds", "seed", and for each column of
        embeddings the metrics, each with "mean" and "deviation" (standard deviation) over the folds and "error", the
        standard error of the mean, corrected for the overlap of the training sets: √(1/k + 1/(k - 1)) times the
        deviation with k folds (Nadeau & Bengio 2003). Metrics: accuracy, F1 (mean over the classes), Matthews'
        correlation, and for two classes the area under the ROC curve.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: No embeddings; one row for each token; labels that `check_labels` refuses; a column that does not
            exist.
    """
    names = embedding_columns(embeddings)
    classes = check_labels(_values(embeddings, labels, "labels"), folds)
    if groups is None and {"record", "start"} <= set(embeddings.column_names):
        groups = "record"
    together = None if groups is None else np.array([str(value) for value in _values(embeddings, groups, "groups")])
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold, cross_validate
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kind = StratifiedKFold if together is None else StratifiedGroupKFold
    counts = dict(zip(*np.unique(classes, return_counts=True), strict=True))
    result: dict[str, Any] = {
        "rows": len(classes),
        "classes": {str(name): int(count) for name, count in counts.items()},
        "folds": folds,
        "seed": seed,
    }
    for name in names:
        scores = cross_validate(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
            np.stack(embeddings.with_format("numpy", columns=[name])[name][:]).astype(np.float64),
            classes,
            groups=together,
            cv=kind(folds, shuffle=True, random_state=seed),
            scoring=_METRICS | (_BINARY if len(counts) == 2 else {}),
            error_score="raise",
        )
        result[name] = {
            key.removeprefix("test_"): _summary(values) for key, values in scores.items() if key.startswith("test_")
        }
    return result


def embedding_columns(embeddings: Dataset) -> list[str]:
    """Columns of a Dataset of `embed` with one vector for each sequence.

    Raises:
        ValueError: There is none, or there is one vector for each token.
    """
    columns = embeddings.column_names
    names = [name for name in columns if name == "embedding" or name.startswith("embedding_")]
    if not names:
        raise ValueError(
            f"`embeddings` has no column 'embedding', which the tables of `embed` have; its columns are {columns}."
        )
    if "token_start" in columns:
        raise ValueError(
            "`embeddings` has a row for each token, but a linear probe needs a row for each sequence: embed with "
            "the pooling 'mean' or 'last'."
        )
    return names


def check_labels(labels: Sequence[Any], folds: int = 5) -> np.ndarray:
    """The classes of the rows, as texts.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: Fewer than 2 folds, a missing label, one class only, or a class with fewer rows than folds.
    """
    if find_spec("sklearn") is None:
        raise ImportError('a linear probe needs scikit-learn: pip install "hf_ssm[genomics]"')
    check_integer("folds", folds, 2)
    missing = [row for row, label in enumerate(labels) if is_missing(label)]
    if missing:
        raise ValueError(f"`labels`: row {missing[0]} has no label ({len(missing)} in all): remove such rows.")
    classes = np.array([str(label) for label in labels])
    names, counts = np.unique(classes, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"`labels` has {len(names)} class ({', '.join(names)}): give at least two.")
    if counts.min() < folds:
        rarest = names[counts.argmin()]
        raise ValueError(
            f"`labels`: of {len(names)} classes, {str(rarest)!r} has {counts.min()} rows, fewer than "
            f"`folds`={folds}: remove rare classes, and check that the labels are classes and not measured values."
        )
    return classes


def probe_table(result: dict[str, Any]) -> str:
    """The result of `linear_probe` as text."""
    layers = {name: metrics for name, metrics in result.items() if name.startswith("embedding")}
    chance = _chance(result["classes"])
    lines = [f"linear probe, {result['folds']} folds of {result['rows']} rows, {len(result['classes'])} classes"]
    lines.append(f"{'':<14}{'metric':<10}{'mean':>8}{'error':>8}{'deviation':>11}{'chance':>8}")
    for name, metrics in layers.items():
        for metric, values in metrics.items():
            numbers = f"{values['mean']:>8.4f}{values['error']:>8.4f}{values['deviation']:>11.4f}{chance[metric]:>8.4f}"
            lines.append(f"{name:<14}{metric:<10}{numbers}")
    lines.append(
        "error: standard error of the mean, corrected for overlapping training sets; deviation: over the folds; "
        "chance: of always predicting the most frequent class"
    )
    return "\n".join(lines)


def _chance(counts: dict[str, int]) -> dict[str, float]:
    """The metrics of always predicting the most frequent class, given the number of rows of each."""
    share = max(counts.values()) / sum(counts.values())
    return {"accuracy": share, "f1": 2 * share / (1 + share) / len(counts), "mcc": 0.0, "auroc": 0.5}


def _values(embeddings: Dataset, values: str | Sequence[Any], argument: str) -> list[Any]:
    if isinstance(values, str):
        check_column(argument, values, embeddings.column_names, "`embeddings`")
        return list(embeddings[values])
    if len(values) != len(embeddings):
        raise ValueError(
            f"`{argument}` has {len(values)} entries for {len(embeddings)} rows: give one entry for each row."
        )
    return list(values)


def _summary(values: np.ndarray) -> dict[str, float]:
    folds, deviation = len(values), float(values.std(ddof=1))
    error = (1 / folds + 1 / (folds - 1)) ** 0.5 * deviation
    return {"mean": float(values.mean()), "deviation": deviation, "error": error}
