"""Macro F1 as a module of the evaluate library."""

from collections.abc import Mapping
from typing import Any

import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, confusion_matrix, confusions, number_features

_DESCRIPTION = """
Macro F1: the unweighted mean over classes of F1 = 2 TP / (2 TP + FP + FN).

The classes are those that occur among the references or the predictions, so that no denominator is zero. References of
-100 (padding, as in PyTorch) do not count.
"""

_CITATION = """
@book{vanrijsbergen1979information,
  title = {Information Retrieval},
  author = {van Rijsbergen, Cornelis Joost},
  publisher = {Butterworths},
  edition = {2},
  year = {1979}
}
"""

_INPUTS = """
Args:
    predictions (whole numbers): the predicted class of each example, `(n,)`, or of each token, `(n, L)`; rows may
        differ in length.
    references (whole numbers): the true classes in the same shape; -100 is left out.

Returns:
    f1 (float): in [0, 1], no unit; 1 is best.

Examples:
    >>> metric = hf_ssm.metrics.load("f1")
    >>> metric.compute(predictions=[0, 0, 1, 1], references=[0, 0, 1, 1])
    {'f1': 1.0}
    >>> metric.compute(predictions=[0, 0, 0, 1], references=[1, 0, 1, -100])
    {'f1': 0.25}
"""


class F1(StreamedMetric):
    """Mean over classes of the harmonic mean of precision and recall."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=self._of_config({"default": number_features("int64", "int64")}),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        return confusions(columns)

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        matrix = confusion_matrix(sums)
        return {"f1": float(np.mean(2 * np.diag(matrix) / (matrix.sum(axis=0) + matrix.sum(axis=1))))}
