"""Accuracy as a module of the evaluate library."""

from collections.abc import Mapping
from typing import Any

import evaluate

from hf_ssm.metrics.base import StreamedMetric, Sums, class_pairs, finite, no_example, number_features, pairs, whole

_DESCRIPTION = """
Accuracy: the share of examples, or of tokens, whose predicted class is the true one.

References of -100 (padding, as in PyTorch) do not count.
"""

_CITATION = """
@inproceedings{tay2021long,
  title = {Long Range Arena: A Benchmark for Efficient Transformers},
  author = {Tay, Yi and Dehghani, Mostafa and Abnar, Samira and Shen, Yikang and Bahri, Dara and Pham, Philip and
            Rao, Jinfeng and Yang, Liu and Ruder, Sebastian and Metzler, Donald},
  booktitle = {International Conference on Learning Representations},
  year = {2021}
}
"""

_INPUTS = """
Args:
    predictions (whole numbers): the predicted class of each example, `(n,)`, or of each token, `(n, L)`; rows may
        differ in length. In the configuration `sums`: the number of right ones among those that a row stands for.
    references (whole numbers): the true classes in the same shape; -100 is left out. In the configuration `sums`:
        the number of those that a row stands for.

Returns:
    accuracy (float): in [0, 1], no unit; 1 is best.

Examples:
    >>> metric = hf_ssm.metrics.load("accuracy")
    >>> metric.compute(predictions=[0, 1, 1, 2], references=[0, 1, 2, 2])
    {'accuracy': 0.75}
    >>> metric.compute(predictions=[[0, 1, 1], [1, 0, 0]], references=[[0, 1, -100], [0, 0, -100]])
    {'accuracy': 0.75}
"""


class Accuracy(StreamedMetric):
    """Right predictions over all."""

    def _info(self) -> evaluate.MetricInfo:
        features = {
            "default": number_features("int64", "int64"),
            "sums": number_features("int64", "int64", rows=False),
        }
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=self._of_config(features),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        if self.config_name == "sums":
            right, counted = pairs(columns)
            right, counted = whole("predictions", finite("predictions", right)), whole("references", counted)
            if ((right < 0) | (right > counted)).any():
                raise ValueError("`predictions`, the numbers of right ones, must lie between 0 and `references`")
            return {"right": int(right.sum()), "counted": int(counted.sum())}
        predictions, references = class_pairs(columns)
        return {"right": int((predictions == references).sum()), "counted": references.size}

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        if not sums.get("counted"):
            raise no_example()
        return {"accuracy": sums["right"] / sums["counted"]}
