"""A simple model to compare a trained one with: a linear model of how often short runs of tokens occur."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import EvalPrediction

from hf_ssm.training.metrics import classification_metrics, sequence_regression_metrics

__all__ = ["COUNT_BASELINE", "count_baseline"]

COUNT_BASELINE = "a linear model of 4-token counts"
"""Name of the baseline on a card and on the screen."""

_LONGEST_RUN, _MOST_ROWS = 4, 8000
# The first code point after those that Python's case rules and line ends concern.
_FIRST = 0x10000


def count_baseline(train: Any, rows: Any) -> dict[str, float]:
    """Metrics of a linear model that counts the runs of one to four tokens of each sequence.

    Logistic regression (C = 10) for classes, ridge regression for numbers; the counts are hashed into 65,536 features
    and scaled to length 1. At most 8,000 training rows are used, which takes seconds.

    Args:
        train: Rows with `input_ids` and `labels` (a class, or a number) to fit the model to.
        rows: The rows to measure it on.

    Returns:
        The metrics of `classification_metrics` or `sequence_regression_metrics`; empty if all training rows have one
        class.
    """
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    if len(train) > _MOST_ROWS:
        train = train.select(np.random.default_rng(0).choice(len(train), _MOST_ROWS, replace=False))
    counts = HashingVectorizer(
        analyzer="char", ngram_range=(1, _LONGEST_RUN), n_features=2**16, lowercase=False, alternate_sign=False
    )
    labels, wanted = np.asarray(train["labels"]), np.asarray(rows["labels"])
    is_class = labels.dtype.kind in "iu"
    if is_class and len(np.unique(labels)) < 2:
        return {}
    model = LogisticRegression(C=10, max_iter=300) if is_class else Ridge()
    model.fit(counts.transform(map(_as_text, train["input_ids"])), labels)
    predicted = model.predict(counts.transform(map(_as_text, rows["input_ids"])))
    metrics = classification_metrics if is_class else sequence_regression_metrics
    return metrics(EvalPrediction(predictions=predicted, label_ids=wanted))


def _as_text(token_ids: Sequence[int]) -> str:
    return "".join(chr(_FIRST + token) for token in token_ids)
