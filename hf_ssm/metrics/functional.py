"""Metrics as functions of arrays.

Dimensions: `n` examples or tokens, `k` classes. Labels of -100 (padding, unmasked tokens) are ignored, as in PyTorch.
"""

import math
from typing import Any

import numpy as np

__all__ = [
    "IGNORED_LABEL",
    "accuracy",
    "generalization_gap",
    "macro_f1",
    "matthews_correlation",
    "pass_rate",
    "perplexity",
    "tau",
    "wilson_interval",
]

IGNORED_LABEL = -100
"""Label of positions that are ignored."""


def accuracy(predictions: Any, references: Any) -> float:
    """Share of correct classes, in [0, 1].

    Args:
        predictions: Predicted classes, whole numbers of any shape; rows may differ in length.
        references: True classes of the same shape; -100 is ignored.

    Raises:
        ValueError: The shapes differ, a value is not a whole number, or there is no example.
    """
    predicted, true = _classes(predictions, references)
    return float((predicted == true).mean())


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """95 % interval of a share of independent examples, such as an accuracy.

    Args:
        share: The share in the sample, in [0, 1].
        count: Number of examples, at least 1.

    Source: Wilson 1927.
    """
    z = 1.959964
    centre = share + z**2 / (2 * count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    return (centre - half) / scale, (centre + half) / scale


def macro_f1(predictions: Any, references: Any) -> float:
    """Unweighted mean of F1 = 2 TP / (2 TP + FP + FN) over classes, in [0, 1]; arguments as for `accuracy`.

    The mean is over the classes that occur in predictions or references.
    """
    from sklearn.metrics import f1_score

    predicted, true = _classes(predictions, references)
    return float(f1_score(true, predicted, average="macro"))


def matthews_correlation(predictions: Any, references: Any) -> float:
    """Matthews correlation coefficient in [-1, 1], for any number of classes; arguments as for `accuracy`.

    It is 0 by convention if the predictions or the references are constant.

    Source: Matthews 1975; Gorodkin 2004 for more than two classes.
    """
    from sklearn.metrics import matthews_corrcoef

    predicted, true = _classes(predictions, references)
    # scikit-learn gives 0, too, and warns if there is one class alone.
    is_constant = len(np.unique(true)) == 1 or len(np.unique(predicted)) == 1
    return 0.0 if is_constant else float(matthews_corrcoef(true, predicted))


def perplexity(predictions: Any, references: Any) -> float:
    """exp of the mean negative log-likelihood per token; at least 1.

    Args:
        predictions: Negative log-likelihood of each token in nats, as of `cross_entropy(..., reduction="none")`.
            NaN gives NaN.
        references: The tokens, in the same shape; -100 is ignored.

    Raises:
        ValueError: The shapes differ, a negative log-likelihood is negative, or there is no token.
    """
    nats, tokens = _pairs(predictions, references)
    nats = nats[_whole("references", tokens) != IGNORED_LABEL].astype(np.float64)
    # Rounding gives slightly negative values for certain tokens.
    if (nats < -1e-5).any():
        raise ValueError(f"`predictions` must be -log p, which is not negative, got {nats.min()}.")
    if not nats.size:
        raise _no_example()
    with np.errstate(over="ignore"):
        return float(np.exp(nats.mean()))


def generalization_gap(predictions: Any, references: Any, greater_is_better: bool = False) -> dict[str, float]:
    """Mean loss of test examples minus mean loss of training examples; positive means worse on test examples.

    Args:
        predictions: Losses, or scores, `(n,)`.
        references: "train" or "test" for each value.
        greater_is_better: Whether the values are scores such as accuracy, which reverses the sign.

    Returns:
        `generalization_gap`, and the means `train` and `test`.

    Raises:
        ValueError: A value is not finite, a reference is neither "train" nor "test", or one of them is missing.
    """
    values, names = _finite("predictions", _flat("predictions", predictions)), np.asarray(references)
    if values.shape != names.shape:
        raise ValueError(
            f"`predictions` and `references` must have the same shape, got {values.shape} and {names.shape}."
        )
    unknown = set(names.tolist()) - {"train", "test"}
    if unknown:
        raise ValueError(f"`references` must be 'train' or 'test', got {unknown.pop()!r}.")
    means = {}
    for name in ("train", "test"):
        chosen = values[names == name]
        if not chosen.size:
            raise ValueError(f"there is no {name} example; give at least one example of each split.")
        means[name] = float(chosen.mean())
    gap = means["test"] - means["train"]
    return {"generalization_gap": -gap if greater_is_better else gap, **means}


def tau(predictions: Any, num_sequences: int | None = None) -> dict[str, Any]:
    """The complexity measure τ of a model: the sum over layers of the mean over batches.

    Args:
        predictions: τ of each layer in each batch, `(batches, layers)`, such as `model(..., output_tau=True).tau`.
        num_sequences: Number n of training sequences, or None.

    Returns:
        `tau`, `tau_per_layer`, and, with `num_sequences`, `measure`: τ / √n.

    Raises:
        ValueError: Rows differ in length, a value is negative or not finite, or there is no batch.

    Source: Liu & Li 2024, eq. (6).
    """
    if num_sequences is not None and num_sequences < 1:
        raise ValueError(f"`num_sequences` must be at least 1, got {num_sequences}.")
    shapes = {tuple(np.shape(row)) for row in predictions}
    values = _finite("predictions", _flat("predictions", predictions))
    if not values.size:
        raise _no_example()
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"`predictions` must have shape (batches, layers), got rows of shapes {sorted(shapes)}.")
    if (values < 0).any():
        raise ValueError(f"`predictions` must be τ, which is not negative, got {values.min()}.")
    per_layer = values.reshape(len(predictions), -1).mean(axis=0).tolist()
    result = {"tau": sum(per_layer), "tau_per_layer": per_layer}
    return result if num_sequences is None else {**result, "measure": result["tau"] / math.sqrt(num_sequences)}


def pass_rate(predictions: Any, references: Any) -> float:
    """Euclidean norm of the outputs over that of the inputs; the gain of a linear model for one kind of signal.

    Args:
        predictions: Outputs of a model without biases, of any shape.
        references: Inputs of one kind (one frequency, one direction), in the same shape.

    Raises:
        ValueError: The shapes differ, a value is not finite, or all inputs are 0.

    Source: Yu et al. 2025, Table 2.
    """
    outputs, inputs = _pairs(predictions, references)
    outputs, inputs = _finite("predictions", outputs), _finite("references", inputs)
    if not inputs.size:
        raise _no_example()
    if not inputs.any():
        raise ValueError("all `references` are 0: give values that differ from 0.")
    return float(np.linalg.norm(outputs) / np.linalg.norm(inputs))


def _flat(name: str, column: Any) -> np.ndarray:
    """All numbers of an array, a tensor, or a list of rows of any lengths, `(n,)`."""
    if hasattr(column, "detach"):  # a tensor, which numpy cannot read as bfloat16
        column = column.detach().cpu().double()
    try:
        array = np.asarray(column)
    except ValueError:  # rows of different lengths
        return np.concatenate([_flat(name, row) for row in column])
    if array.dtype.kind not in "biuf":
        raise ValueError(f"`{name}` must be numbers, got values of type {array.dtype}.")
    return array.reshape(-1)


def _pairs(predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    predicted, true = _flat("predictions", predictions), _flat("references", references)
    if len(predictions) != len(references) or predicted.shape != true.shape:
        raise ValueError(
            f"`predictions` and `references` must have the same shape, got {predicted.size} and {true.size} values; "
            "take argmax(-1) of logits."
        )
    return predicted, true


def _classes(predictions: Any, references: Any) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and true classes without ignored ones, `(n,)` int64."""
    predicted, true = _pairs(predictions, references)
    true = _whole("references", true)
    counted = true != IGNORED_LABEL
    if not counted.any():
        raise _no_example()
    return _whole("predictions", predicted[counted]), true[counted]


def _whole(name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        bad = values[~(np.isfinite(values) & (values == np.rint(values)))]
        if bad.size:
            raise ValueError(f"`{name}` must be whole numbers, got {bad[0]}; give classes, not scores.")
    return values.astype(np.int64)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    bad = values[~np.isfinite(values)]
    if bad.size:
        raise ValueError(f"`{name}` must be finite numbers, got {bad[0]}.")
    return values.astype(np.float64)


def _no_example() -> ValueError:
    return ValueError(f"there is no example; references of {IGNORED_LABEL} (padding) are ignored.")
