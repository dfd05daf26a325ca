"""The pass rate of signals as a module of the evaluate library."""

import math
from collections.abc import Mapping
from typing import Any

import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, finite, no_example, number_features, pairs

_DESCRIPTION = """
Pass rate: how much of a kind of signal a model lets through, the norm of its outputs over that of its inputs.

A linear time-invariant model has one for each frequency. The pass rate of slow signals over that of fast ones is large
where a model has a bias towards low frequencies.
"""

_CITATION = """
@inproceedings{yu2025tuning,
  title = {Tuning Frequency Bias of State Space Models},
  author = {Yu, Annan and Lyu, Dongwei and Lim, Soon Hoe and Mahoney, Michael W. and Erichson, N. Benjamin},
  booktitle = {International Conference on Learning Representations},
  year = {2025}
}
"""

_INPUTS = """
Args:
    predictions (floats): the outputs, `(n,)` or `(n, L)`, in the unit of the inputs; less the output for zeros where
        the model has biases, as that is no part of what passes.
    references (floats): the inputs, all of one kind (one frequency, one direction of stripes), in the same shape.

Returns:
    pass_rate (float): at least 0, no unit; 1 leaves the size as it is. The norms are Euclidean, over all values.

Examples:
    >>> metric = hf_ssm.metrics.load("pass_rate")
    >>> metric.compute(predictions=[[0.5, 0.5], [-0.5, -0.5]], references=[[1.0, 1.0], [-1.0, -1.0]])
    {'pass_rate': 0.5}
"""


class PassRate(StreamedMetric):
    """Size of the outputs over size of the inputs."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=self._of_config({"default": number_features("float64", "float64")}),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        outputs, inputs = pairs(columns)
        outputs, inputs = finite("predictions", outputs), finite("references", inputs)
        return {"outputs": float(np.square(outputs).sum()), "inputs": float(np.square(inputs).sum())}

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        if not sums:
            raise no_example()
        if sums["inputs"] == 0:
            raise ValueError("`references` are all 0: there is no signal that could pass")
        return {"pass_rate": math.sqrt(sums["outputs"] / sums["inputs"])}
