"""Metrics of classifications of whole sequences, and their standard error over the test rows. Legend: `n` rows."""

import numpy as np

from hf_ssm.metrics import functional

__all__ = ["METRICS", "measure", "standard_error"]

METRICS = ("accuracy", "f1", "mcc", "auroc", "auprc")
"""Accuracy; F1, the mean over classes; Matthews' correlation; areas under the ROC and the precision-recall curve, of
class 1 where there are two classes, and otherwise the mean over classes, each against the others."""

_OF_CLASSES = {
    "accuracy": functional.accuracy,
    "f1": functional.macro_f1,
    "mcc": functional.matthews_correlation,
}
_SAMPLES = 200


def measure(metric: str, labels: np.ndarray, probabilities: np.ndarray) -> float:
    """A metric of predicted probabilities.

    Args:
        metric: One of `METRICS`.
        labels: Class of each row, `(n,)`.
        probabilities: `(n, classes)`.

    Returns:
        The metric; NaN for an area if the labels are all of one class.
    """
    if metric in _OF_CLASSES:
        return _OF_CLASSES[metric](probabilities.argmax(1), labels)
    from sklearn.metrics import average_precision_score, roc_auc_score

    area = roc_auc_score if metric == "auroc" else average_precision_score
    number = probabilities.shape[1]
    areas = []
    for positive in [1] if number == 2 else range(number):
        is_positive = labels == positive
        if is_positive.all() or not is_positive.any():
            return float("nan")
        areas.append(float(area(is_positive, probabilities[:, positive])))
    return float(np.mean(areas))


def standard_error(metric: str, labels: np.ndarray, probabilities: np.ndarray, seed: int = 0) -> float:
    """Standard deviation of the metric over 200 bootstrap samples of the rows."""
    rng = np.random.default_rng(seed)
    values = []
    for _ in range(_SAMPLES):
        rows = rng.integers(0, len(labels), len(labels))
        values.append(measure(metric, labels[rows], probabilities[rows]))
    # A sample of few rows may lack a class.
    return float(np.nanstd(values, ddof=1))
