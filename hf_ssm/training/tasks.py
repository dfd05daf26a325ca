"""The tasks of `hf-ssm train`: the model of each, what its data must be like, and how it is judged."""

import dataclasses
from collections.abc import Callable
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTimeSeriesPrediction,
    AutoModelForTokenClassification,
)

from hf_ssm.training import metrics


@dataclasses.dataclass(frozen=True)
class Task:
    """How a task is trained and judged.

    Attributes:
        auto_class: makes and loads the model.
        labels: what a row's label may be (see `label_kind`); empty if the task needs no labels.
        reads: "text", "numbers", or "either".
        best_metric: the metric of the validation split that chooses the checkpoint.
        greater_is_better: whether a larger value of it is better.
        compute_metrics: for the Trainer.
        preprocess: the Trainer's `preprocess_logits_for_metrics`, if any.
    """

    auto_class: Any
    labels: tuple[str, ...]
    reads: str
    best_metric: str
    greater_is_better: bool
    compute_metrics: Callable[..., dict[str, float]]
    preprocess: Callable[..., Any] | None = None

    @property
    def labelled(self) -> bool:
        """Whether the data must have labels."""
        return bool(self.labels)

    @property
    def predicts_numbers(self) -> bool:
        """Whether the labels are numbers to predict, not classes."""
        return "number" in self.labels


def _language_modelling(auto_class: Any, shift: bool) -> Task:
    return Task(
        auto_class,
        labels=(),
        reads="text",
        best_metric="perplexity",
        greater_is_better=False,
        compute_metrics=metrics.language_modeling_metrics,
        preprocess=metrics.token_statistics(shift),
    )


TASKS: dict[str, Task] = {
    "sequence-classification": Task(
        AutoModelForSequenceClassification, ("class",), "either", "accuracy", True, metrics.classification_metrics
    ),
    "token-classification": Task(
        AutoModelForTokenClassification,
        ("classes",),
        "either",
        "accuracy",
        True,
        metrics.classification_metrics,
        metrics.predicted_classes,
    ),
    "signal-regression": Task(
        AutoModelForTimeSeriesPrediction,
        ("number", "numbers"),
        "numbers",
        "mse",
        False,
        metrics.regression_metrics,
        metrics.regression_statistics,
    ),
    "causal-lm": _language_modelling(AutoModelForCausalLM, shift=True),
    "masked-lm": _language_modelling(AutoModelForMaskedLM, shift=False),
}
