"""The correlation coefficient of Matthews as a module of the evaluate library."""

from collections.abc import Mapping
from typing import Any

import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, confusion_matrix, confusions, number_features

_DESCRIPTION = """
Matthews correlation coefficient: the correlation of the true and the predicted classes as one-hot variables.

For more than two classes it is the coefficient of Gorodkin (2004). It is 0 by convention when the references or the
predictions are all of one class, as then no correlation is defined. References of -100 (padding, as in PyTorch) do not
count.
"""

_CITATION = """
@article{matthews1975comparison,
  title = {Comparison of the predicted and observed secondary structure of {T4} phage lysozyme},
  author = {Matthews, Brian W.},
  journal = {Biochimica et Biophysica Acta (BBA) - Protein Structure},
  volume = {405},
  number = {2},
  pages = {442--451},
  year = {1975}
}
@article{gorodkin2004comparing,
  title = {Comparing two {K}-category assignments by a {K}-category correlation coefficient},
  author = {Gorodkin, Jan},
  journal = {Computational Biology and Chemistry},
  volume = {28},
  number = {5--6},
  pages = {367--374},
  year = {2004}
}
"""

_INPUTS = """
Args:
    predictions (whole numbers): the predicted class of each example, `(n,)`, or of each token, `(n, L)`; rows may
        differ in length.
    references (whole numbers): the true classes in the same shape; -100 is left out.

Returns:
    mcc (float): in [-1, 1], no unit; 1 is best, 0 is chance.

Examples:
    >>> metric = hf_ssm.metrics.load("mcc")
    >>> metric.compute(predictions=[0, 1, 1, 0], references=[1, 0, 0, 1])
    {'mcc': -1.0}
    >>> metric.compute(predictions=[1, 1, 1, 1], references=[1, 0, 0, 1])
    {'mcc': 0.0}
"""


class MCC(StreamedMetric):
    """Correlation of truth and prediction."""

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
        matrix = confusion_matrix(sums).astype(np.float64)
        true_counts, predicted_counts, total = matrix.sum(axis=1), matrix.sum(axis=0), matrix.sum()
        covariance = np.trace(matrix) * total - true_counts @ predicted_counts
        true_variance = total**2 - true_counts @ true_counts
        predicted_variance = total**2 - predicted_counts @ predicted_counts
        if true_variance == 0 or predicted_variance == 0:
            return {"mcc": 0.0}
        return {"mcc": float(covariance / np.sqrt(true_variance * predicted_variance))}
