"""Linear models of the data of a run: what a model has to beat, beside the constant prediction.

Dimensions: `n` rows (or positions), `p` features, `k` outputs.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from datasets import Dataset

from hf_ssm.data.labels import IGNORED_LABEL
from hf_ssm.data.windows import FastaWindows
from hf_ssm.training.inputs import RunData
from hf_ssm.training.tasks import TASKS

__all__ = ["linear_baseline"]

_MOST_ROWS = 2000
_MOST_POSITIONS = 50_000
_MOST_FEATURES = 1024
_MOST_TOKENS = 2048
_PENALTIES = 10.0 ** np.arange(-2, 6)


def linear_baseline(task: str, data: RunData, split: str = "validation") -> tuple[str, float]:
    """A linear model of the training split, and its metric on another split.

    - Sequences of tokens: ridge regression on the share of each token and the length. Sequences of numbers: on all
      values if rows are equally long with at most 1,024 values, and else on mean and standard deviation per channel.
    - Positions: the most frequent class of each token; ridge regression on the values at the position.
    - Causal language models: the frequencies of tokens after each token, with one added to each count.

    The penalty of the ridge regression is that with the smallest leave-one-out error. Classes are predicted as the
    largest of their indicators. At most 2,000 rows of a split are read.

    Args:
        task: One of `hf_ssm.training.tasks.TASKS`.
        data: The data of a run.
        split: Where it is evaluated.

    Returns:
        What the model is, and its `best_metric` of the task.

    Raises:
        ValueError: There is no such model, or no such split.
    """
    if split not in data.splits:
        raise ValueError(f"there is no {split} split")
    rows = [_first(data.splits[name]) for name in ("train", split)]
    if task == "causal-lm":
        return "frequencies after each token", _bigram_perplexity(data, *rows)
    if task == "masked-lm":
        raise ValueError("a masked token has no linear model that is as simple as a constant")
    if task == "token-classification" and data.tokenizer is not None:
        return "most frequent class of each token", _accuracy_of_tokens(*rows)
    of_positions = task == "token-classification" or _has_labels_of_positions(data, rows[0])
    describe, inputs = _position_features(rows) if of_positions else _row_features(data, rows)
    labels = [_labels(part, of_positions) for part in rows]
    is_class = TASKS[task].best_metric == "accuracy"
    kept = [label[:, 0] != IGNORED_LABEL if is_class else np.isfinite(label).all(1) for label in labels]
    (train, other), (known, wanted) = (
        [values[mask] for values, mask in zip(parts, kept, strict=True)] for parts in (inputs, labels)
    )
    if is_class:
        classes = np.unique(known)
        predicted = classes[_ridge(train, (known == classes).astype(float), other).argmax(1)]
        return describe, float((predicted == wanted[:, 0]).mean())
    return describe, float(np.square(_ridge(train, known, other) - wanted).mean())


def _first(rows: Any) -> Any:
    """Evenly spaced rows, as files may be sorted."""
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).round().astype(int)
    return rows.select(chosen)


def _arrays(rows: Any, column: str) -> list[np.ndarray]:
    if isinstance(rows, FastaWindows):
        return [np.asarray(row[column]) for row in rows]
    return [np.asarray(value) for value in rows[column]]


def _has_labels_of_positions(data: RunData, rows: Dataset) -> bool:
    if data.label_kind != "numbers" or data.tokenizer is not None:
        return False
    pairs = zip(_arrays(rows, "labels"), _arrays(rows, "input_values"), strict=True)
    return all(label.shape[:1] == values.shape[:1] and len(values) > 1 for label, values in pairs)


def _labels(rows: Dataset, of_positions: bool) -> np.ndarray:
    """`(n, k)`."""
    labels = _arrays(rows, "labels")
    values = np.concatenate(labels)[:_MOST_POSITIONS] if of_positions else np.stack(labels)
    return values.reshape(len(values), -1)


def _position_features(rows: Iterable[Dataset]) -> tuple[str, list[np.ndarray]]:
    inputs = [np.concatenate(_arrays(part, "input_values"))[:_MOST_POSITIONS] for part in rows]
    return "linear in the values of the position", [values.reshape(len(values), -1) for values in inputs]


def _row_features(data: RunData, rows: Iterable[Dataset]) -> tuple[str, list[np.ndarray]]:
    if data.tokenizer is not None:
        size = len(data.tokenizer)
        return "linear in the shares of tokens", [
            np.stack([_shares(ids, size) for ids in _token_rows(part, data.has_pairs)]) for part in rows
        ]
    parts = [_arrays(part, "input_values") for part in rows]
    shapes = {values.shape for part in parts for values in part}
    if len(shapes) == 1 and np.prod(next(iter(shapes))) <= _MOST_FEATURES:
        return "linear in all values", [np.stack(part).reshape(len(part), -1) for part in parts]
    columns = [[values.reshape(len(values), -1) for values in part] for part in parts]
    return "linear in mean and deviation", [
        np.stack([np.concatenate([values.mean(0), values.std(0)]) for values in part]) for part in columns
    ]


def _token_rows(rows: Dataset, pairs: bool) -> list[list[np.ndarray]]:
    """The token ids of each text of a row."""
    return [[np.asarray(ids) for ids in (row if pairs else [row])] for row in rows["input_ids"]]


def _shares(texts: list[np.ndarray], size: int) -> np.ndarray:
    counts = [np.bincount(ids, minlength=size)[:size] / max(1, len(ids)) for ids in texts]
    return np.concatenate([*counts, [len(ids) for ids in texts]])


def _ridge(inputs: np.ndarray, targets: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Predictions `(m, k)` for `others` `(m, p)` of the ridge regression with the best leave-one-out error."""
    mean, deviation = inputs.mean(0), inputs.std(0)
    varying = deviation > 1e-12 * max(1.0, float(np.abs(mean).max(initial=0.0)))
    inputs, others = ((part[:, varying] - mean[varying]) / deviation[varying] for part in (inputs, others))
    level = targets.mean(0)
    left, singular, right = np.linalg.svd(inputs, full_matrices=False)
    projected = left.T @ (targets - level)
    best = np.inf, level
    weights = np.zeros((inputs.shape[1], targets.shape[1]))
    for penalty in _PENALTIES:
        shrunk = singular**2 / (singular**2 + penalty)
        leverage = np.square(left) @ shrunk + 1 / len(inputs)
        residual = (targets - level - left @ (shrunk[:, None] * projected)) / np.maximum(1 - leverage, 1e-9)[:, None]
        error = np.square(residual).mean()
        if error < best[0]:
            best = error, level
            weights = right.T @ ((singular / (singular**2 + penalty))[:, None] * projected)
    return np.asarray(level + others @ weights)


def _accuracy_of_tokens(train: Dataset, other: Dataset) -> float:
    tokens, labels = (np.concatenate(_arrays(train, column)) for column in ("input_ids", "labels"))
    tokens, labels = tokens[labels != IGNORED_LABEL], labels[labels != IGNORED_LABEL]
    counts = np.zeros((tokens.max() + 1, labels.max() + 1), dtype=np.int64)
    np.add.at(counts, (tokens, labels), 1)
    most_frequent = np.where(counts.any(1), counts.argmax(1), counts.sum(0).argmax())
    seen, wanted = (np.concatenate(_arrays(other, column)) for column in ("input_ids", "labels"))
    seen, wanted = seen[wanted != IGNORED_LABEL], wanted[wanted != IGNORED_LABEL]
    known = seen < len(most_frequent)
    predicted = np.where(known, most_frequent[np.where(known, seen, 0)], counts.sum(0).argmax())
    return float((predicted == wanted).mean())


def _bigram_perplexity(data: RunData, train: Any, other: Any) -> float:
    assert data.tokenizer is not None
    size = len(data.tokenizer)
    if size > _MOST_TOKENS:
        raise ValueError(f"{size} tokens are too many for the frequencies of their pairs")
    counts = np.ones((size, size))
    for ids in _arrays(train, "input_ids"):
        np.add.at(counts, (ids[:-1], ids[1:]), 1)
    logarithms = np.log(counts / counts.sum(1, keepdims=True))
    pad = data.tokenizer.pad_token_id
    values = [logarithms[ids[:-1], ids[1:]][ids[1:] != pad] for ids in _arrays(other, "input_ids")]
    return float(np.exp(-np.concatenate(values).mean()))
