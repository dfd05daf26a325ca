"""The generalisation gap as a module of the evaluate library."""

from collections.abc import Mapping
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np

from hf_ssm.metrics.base import StreamedMetric, Sums, finite, numbers

_DESCRIPTION = """
Generalisation gap: how much worse a model does on new examples than on those it was trained on.

It is the mean loss of test examples less the mean loss of training examples, or, of a score that should be large
(accuracy), the mean over training less that over test examples. Positive means worse on new examples.
"""

_CITATION = """
@article{honarpisheh2025generalization,
  title = {Generalization Error Analysis for Selective State-Space Models Through the Lens of Attention},
  author = {Honarpisheh, Arya and Bozdag, Mustafa and Camps, Octavia and Sznaier, Mario},
  year = {2025}
}
"""

_INPUTS = """
Args:
    predictions (floats): the loss of each example, `(n,)`, in any unit, or its score (1 where the class is right, else
        0, for accuracy).
    references (strings): the split of each example, "train" or "test".
    greater_is_better (bool): whether `predictions` are scores, which should be large; default False: losses.

Returns:
    generalization_gap (float): in the unit of `predictions`; 0 is best.
    train (float): the mean over training examples.
    test (float): the mean over test examples.

Examples:
    >>> metric = hf_ssm.metrics.load("generalization_gap")
    >>> metric.compute(predictions=[0.25, 0.75, 1.0], references=["train", "train", "test"])
    {'generalization_gap': 0.5, 'train': 0.5, 'test': 1.0}
    >>> metric.add_batch(predictions=[1, 1], references=["train", "train"])
    >>> metric.add_batch(predictions=[1, 0], references=["test", "test"])
    >>> metric.compute(greater_is_better=True)
    {'generalization_gap': 0.5, 'train': 1.0, 'test': 0.5}
"""

_SPLITS = ("train", "test")


class GeneralizationGap(StreamedMetric):
    """Mean over new examples against mean over those of the training."""

    options: ClassVar[Mapping[str, Any]] = {"greater_is_better": False}

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("float64"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=self._of_config({"default": features}),
            license="Apache-2.0",
        )

    def _count(self, columns: Mapping[str, Any]) -> Sums:
        scores, shape = numbers("predictions", columns["predictions"])
        scores, splits = finite("predictions", scores), np.asarray(columns["references"])
        if shape != splits.shape or splits.ndim != 1:
            raise ValueError(f"the columns must be of one shape `(n,)`, got {shape} and {splits.shape}")
        if unknown := sorted(set(splits.tolist()) - set(_SPLITS), key=str):
            raise ValueError(f"`references` must be {' or '.join(map(repr, _SPLITS))}, got {unknown[0]!r}")
        chosen = {split: scores[splits == split] for split in _SPLITS}
        totals = {(split, "total"): float(values.sum()) for split, values in chosen.items()}
        return {**totals, **{(split, "number"): values.size for split, values in chosen.items()}}

    def _score(self, sums: Sums, options: Mapping[str, Any]) -> dict[str, Any]:
        for split in _SPLITS:
            if not sums.get((split, "number")):
                raise ValueError(f"there is no {split} example: the gap needs some of both splits")
        train, test = (sums[split, "total"] / sums[split, "number"] for split in _SPLITS)
        gap = train - test if options["greater_is_better"] else test - train
        return {"generalization_gap": gap, "train": train, "test": test}
