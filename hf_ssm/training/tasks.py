"""The tasks of `hf-ssm train`: model class, requirements on the data, and metrics of each."""

import dataclasses
from collections.abc import Callable
from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForNextSentencePrediction,
    AutoModelForSequenceClassification,
    AutoModelForTimeSeriesPrediction,
    AutoModelForTokenClassification,
)

from hf_ssm.training import metrics


@dataclasses.dataclass(frozen=True)
class Task:
    """How a task is trained and evaluated.

    Attributes:
        auto_class: Auto class that creates and loads the model.
        labels: Allowed kinds of a row's label (see `hf_ssm.data.labels.label_kind`); empty if the task has no labels.
        reads: "text", "numbers", or "either".
        best_metric: Metric of the validation split that selects the checkpoint.
        compute_metrics: Argument of the Trainer.
        preprocess: The Trainer's `preprocess_logits_for_metrics`, if any.
        reads_pairs: Whether the model encodes two texts of each row separately.
    """

    auto_class: Any
    labels: tuple[str, ...]
    reads: str
    best_metric: str = "accuracy"
    compute_metrics: Callable[..., dict[str, float]] = metrics.classification_metrics
    preprocess: Callable[..., Any] | None = None
    reads_pairs: bool = False

    @property
    def labelled(self) -> bool:
        """Whether the task needs labels."""
        return bool(self.labels)

    @property
    def predicts_numbers(self) -> bool:
        """Whether the labels are numbers and not classes."""
        return "number" in self.labels

    @property
    def greater_is_better(self) -> bool:
        """Whether a larger value of `best_metric` is better, not a smaller error or perplexity."""
        return self.best_metric == "accuracy"


def _language_modelling(auto_class: Any, shift: bool) -> Task:
    return Task(
        auto_class, (), "text", "perplexity", metrics.language_modeling_metrics, metrics.token_statistics(shift)
    )


_NUMBERS = ("number", "numbers")

TASKS: dict[str, Task] = {
    "sequence-classification": Task(AutoModelForSequenceClassification, ("class", "flags"), "either"),
    "sequence-pair-classification": Task(AutoModelForNextSentencePrediction, ("class",), "text", reads_pairs=True),
    "token-classification": Task(
        AutoModelForTokenClassification, ("classes",), "either", preprocess=metrics.predicted_classes
    ),
    "sequence-regression": Task(
        AutoModelForSequenceClassification, _NUMBERS, "text", "mse", metrics.sequence_regression_metrics
    ),
    "signal-regression": Task(
        AutoModelForTimeSeriesPrediction,
        _NUMBERS,
        "numbers",
        "mse",
        metrics.regression_metrics,
        metrics.regression_statistics,
    ),
    "causal-lm": _language_modelling(AutoModelForCausalLM, shift=True),
    "masked-lm": _language_modelling(AutoModelForMaskedLM, shift=False),
}
