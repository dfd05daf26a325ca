"""The Hub's own metrics behind the interface of ours."""

import dataclasses
import tempfile
from collections.abc import Mapping
from typing import Any

import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, confusions, no_example

# Ours -> the Space, the name of the result there, and what makes it compute the same.
_SPACES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "accuracy": ("evaluate-metric/accuracy", "accuracy", {}),
    "f1": ("evaluate-metric/f1", "f1", {"average": "macro"}),
    "mcc": ("evaluate-metric/matthews_correlation", "matthews_correlation", {}),
}


class HubMetric(StreamedMetric):
    """A metric of the Hub that takes what ours takes, and whose result has the name of ours.

    Args:
        ours: the metric that it stands for.
        theirs: the metric of the Hub, for classes.
        key: the name of its result.
        arguments: of its `compute`.
    """

    def __init__(self, ours: StreamedMetric, theirs: evaluate.Metric, key: str, arguments: Mapping[str, Any]) -> None:
        self._ours, self._theirs, self._key, self._arguments = ours, theirs, key, arguments
        super().__init__()
        self.info.module_name = ours.name

    def _info(self) -> evaluate.MetricInfo:
        return dataclasses.replace(self._ours.info)

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        return confusions(columns)

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        if not sums:
            raise no_example()
        # The examples again, in another order, without those that are ignored.
        counts = np.array(list(sums.values()), dtype=np.int64)
        true, predicted = np.repeat(np.array(list(sums)), counts, axis=0).T
        result = self._theirs.compute(predictions=predicted, references=true, **self._arguments)
        return {self._ours.name: float(result[self._key])}


def from_hub(ours: StreamedMetric) -> HubMetric:
    """The metric of the Hub that computes what `ours` does.

    Args:
        ours: one of our metrics.

    Raises:
        ValueError: the Hub has none, or not with this configuration or for several processes.
        Exception: whatever evaluate, the network and the downloaded code raise.
    """
    if ours.name not in _SPACES:
        raise ValueError(f"the Hub has none that takes the same; it has {', '.join(_SPACES)}")
    if ours.config_name != "default" or ours.num_process > 1:
        raise ValueError("it has no configurations and is for one process")
    space, key, arguments = _SPACES[ours.name]
    with tempfile.TemporaryDirectory() as scratch:
        theirs = evaluate.load(space, module_type="metric", keep_in_memory=True, cache_dir=scratch)
    return HubMetric(ours, theirs, key, arguments)
