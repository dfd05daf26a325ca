"""Metrics of a run, as plain functions of arrays and as callables for the Trainer.

Dimensions: `n` examples, B batch, L length, V vocabulary.

They are computed by the functions of `hf_ssm.metrics.functional`. Where several processes evaluate, the Trainer gathers
what these functions are given.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import EvalPrediction

from hf_ssm.metrics import functional

IGNORED_LABEL = -100
"""Labels with this value (padding, unmasked tokens) count nowhere; it is PyTorch's own convention."""


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of examples whose predicted class is the true one, in [0, 1].

    Args:
        labels: `(n,)` integers, the truth.
        predictions: `(n,)` integers.

    Raises:
        ValueError: if the shapes differ, are not one-dimensional, or there is no example.
    """
    return _of_classes("accuracy", labels, predictions)


def macro_f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Unweighted mean over classes of F1 = 2 TP / (2 TP + FP + FN), in [0, 1]; arguments and errors of `accuracy`.

    The classes are those that occur among the labels or the predictions, so no denominator is zero.
    """
    return _of_classes("f1", labels, predictions)


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Correlation of truth and prediction as one-hot variables, in [-1, 1] (Gorodkin 2004 for more than two classes).

    It is 0 by convention when either of them is constant, as then no correlation is defined. Arguments and errors of
    `accuracy`.
    """
    return _of_classes("mcc", labels, predictions)


_CLASS_METRICS = {"accuracy": functional.accuracy, "f1": functional.macro_f1, "mcc": functional.matthews_correlation}


def _of_classes(name: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if labels.shape != predictions.shape or labels.ndim != 1:
        raise ValueError(
            f"labels and predictions must be 1-d and of one shape, got {labels.shape} and {predictions.shape}"
        )
    if labels.size == 0:
        raise ValueError("labels is empty: a metric needs at least one example")
    return _CLASS_METRICS[name](predictions, labels)


def _first(predictions: Any) -> np.ndarray:
    """The logits of an `EvalPrediction`, which are the first entry when a model returns more."""
    return np.asarray(predictions[0] if isinstance(predictions, tuple | list) else predictions)


def classification_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """`accuracy`, `f1` (macro) and `mcc`; the `compute_metrics` of sequence and token classification.

    Args:
        prediction: logits `(n, k)` with labels `(n,)`, or, per token, class indices `(n, L)` as
            `predicted_classes` leaves them with labels `(n, L)`, of which `IGNORED_LABEL` is left out.
    """
    predictions, labels = _first(prediction.predictions), np.asarray(prediction.label_ids)
    if predictions.ndim == labels.ndim + 1:
        predictions = predictions.argmax(axis=-1)
    counted = labels != IGNORED_LABEL
    labels, predictions = labels[counted], predictions[counted]
    return {name: _of_classes(name, labels, predictions) for name in ("accuracy", "f1", "mcc")}


def predicted_classes(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Class indices `(B, L)` of logits `(B, L, k)`: what token classification keeps of each batch."""
    del labels  # the Trainer hands them over to every such function
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def token_statistics(
    shift: bool,
) -> Callable[[torch.Tensor | tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
    """The `preprocess_logits_for_metrics` of language modelling: three sums per row instead of all logits.

    The Trainer keeps what it is given for the whole evaluation set; `(B, L, V)` logits would fill the
    memory, and a mean of batch means is not the mean over tokens when lengths differ.

    Args:
        shift: whether position t predicts the label at t + 1 (causal) or at t (masked).

    Returns:
        A function of logits `(B, L, V)` and labels `(B, L)` that gives `(B, 3)` float64: summed negative
        log-likelihood (nats), number of right predictions, number of counted tokens.
    """

    def preprocess(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
        logits = logits[0] if isinstance(logits, tuple) else logits
        if shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counted = labels != IGNORED_LABEL
        nll = torch.nn.functional.cross_entropy(
            logits.float().transpose(1, 2), labels, ignore_index=IGNORED_LABEL, reduction="none"
        )
        right = (logits.argmax(dim=-1) == labels) & counted
        return torch.stack([column.double().sum(dim=1) for column in (nll, right, counted)], dim=1)

    return preprocess


def language_modeling_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """`perplexity` (exp of the mean nats per token) and `token_accuracy` from `token_statistics`.

    Raises:
        ValueError: if no token counts, as when every sequence is a single token.
    """
    nll, right, counted = np.asarray(prediction.predictions, dtype=np.float64).reshape(-1, 3).sum(axis=0)
    if counted == 0:
        raise ValueError("no token to predict: every sequence of the split is shorter than two tokens")
    with np.errstate(over="ignore"):
        return {"perplexity": float(np.exp(nll / counted)), "token_accuracy": float(right / counted)}


def regression_statistics(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """What regression keeps of each batch: three sums per row, as padding has no number that a mean could leave out.

    Args:
        logits: `(B, ...)`; a last dimension of size 1 may be missing in `labels`.
        labels: the targets, NaN where there is none (padding). Where several processes evaluate, the Trainer pads both
            logits and labels of the shorter batches with `IGNORED_LABEL`: that is no target either.

    Returns:
        `(B, 3)` float64: summed squared errors, summed absolute errors, number of counted targets.
    """
    logits = (logits[0] if isinstance(logits, tuple) else logits).double()
    if logits.dim() == labels.dim() + 1 and logits.shape[-1] == 1:
        logits = logits.squeeze(-1)
    # Looked for in the logits too: -100 may be a target, but hardly one met by a prediction to the last digit.
    padded = (labels == IGNORED_LABEL) & (logits == IGNORED_LABEL)
    counted = ~(torch.isnan(labels) | padded)
    # A row of one target has no second dimension.
    error = torch.where(counted, logits - labels.double(), 0.0).reshape(len(labels), -1)
    return torch.stack([error.square().sum(1), error.abs().sum(1), counted.reshape(len(labels), -1).sum(1)], dim=1)


def regression_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """`mse` and `mae` over all targets, from `regression_statistics`."""
    squared, absolute, counted = np.asarray(prediction.predictions, dtype=np.float64).reshape(-1, 3).sum(axis=0)
    return {"mse": float(squared / counted), "mae": float(absolute / counted)}
