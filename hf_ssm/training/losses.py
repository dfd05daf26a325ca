"""The τ regulariser as a loss for transformers' own Trainer (Liu & Li 2024, Algorithm 2)."""

import weakref
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from hf_ssm.models.views.packing import find_documents
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.utils.checks import check_model, check_type

__all__ = ["TauLogger", "TauLoss", "tau_loss", "warn_of_fixed_orders"]

logger = logging.get_logger(__name__)


class TauLoss:
    """The loss function that `tau_loss` returns; called with the model's outputs and the labels."""

    def __init__(self, model: Any, weight: float):
        self.model = model
        self.weight = weight
        # What the head needs beside the labels, of the last batch.
        self._rows: dict[str, Any] = {}
        self._labels_are_shifted = type(model).__name__.endswith("ForCausalLM")
        model.register_forward_pre_hook(self._request_tau, with_kwargs=True)

    def _request_tau(self, model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask = kwargs.get("attention_mask")
        self._rows = {"attention_mask": mask}
        documents = find_documents(mask, None, kwargs, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        if documents is not None and hasattr(model, "counted_labels"):
            self._rows["documents"] = documents
        if model.training and self.weight > 0:
            kwargs = {**kwargs, "output_tau": True, "return_dict": True}
        return args, kwargs

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Task loss + λ Σ τ, times the share of this micro-batch in `num_items_in_batch`."""
        total = self.model.task_loss(outputs.logits, labels, **self._rows)
        if outputs.tau is not None:
            total = total + self.weight * outputs.tau.sum()
        if num_items_in_batch is None:
            return total
        counted = labels[..., 1:] if self._labels_are_shifted else labels
        return total * (counted.ne(-100).sum() / num_items_in_batch)


def warn_of_fixed_orders(model: Any) -> None:
    """Warn once if the regulariser gives trainable Sobolev orders β no gradient.

    A filter of the inputs (zero-phase, or before a scan) enters τ only through the statistics of the inputs.
    """
    config = model.config
    constant = config.tau_detach_statistics or config.tau_statistics != "batch"
    if not constant:
        return
    operators = (part for part in model.modules() if isinstance(part, SequenceOperator))
    filters_inputs = any(
        part.sobolev_order is not None and (part.sobolev_mode == "zero_phase" or not part.is_time_invariant)
        for part in operators
    )
    if filters_inputs:
        logger.warning_once(
            "The Sobolev filter acts on the inputs, whose statistics τ takes as constants: the regulariser does not "
            "train β (`sobolev_trainable`), only the task loss does. Set `tau_statistics='batch'` and "
            "`tau_detach_statistics=False` for gradients of τ with respect to β."
        )


def tau_loss(model: Any, weight: float | None = None) -> TauLoss:
    """A `compute_loss_func` for the plain `transformers.Trainer`: task loss + λ Σ τ over the layers.

    ```python
    Trainer(model, args, train_dataset=data, compute_loss_func=tau_loss(model))
    ```

    A hook makes the model return τ in training mode; evaluation reports the task loss only. With gradient accumulation
    each micro-batch is weighted by its share of the labels, both for the task loss and for τ.

    Args:
        model: A model of hf_ssm with a head.
        weight: λ; default: the configuration's `tau_weight`.

    Raises:
        TypeError: An argument of another type.
        ValueError: A negative λ.

    Source: Liu & Li 2024, eq. (8) and Algorithm 2.
    """
    check_model(model)
    if weight is not None:
        check_type("weight", weight, (float, int), "a number")
    factor = float(model.config.tau_weight if weight is None else weight)
    if not factor >= 0:
        raise ValueError(f"`weight` must not be negative, got {weight}.")
    if factor > 0:
        warn_of_fixed_orders(model)
    return TauLoss(model, factor)


class TauLogger(TrainerCallback):
    """Logs τ of each layer with transformers' own `Trainer`; `SSMTrainer` does without it.

    ```python
    Trainer(model, args, train_dataset=data, callbacks=[TauLogger(model)])
    ```

    Each entry of `log_history` with a training loss gets `tau_layer_<i>`, the mean over the batches in training mode
    since the entry before, and `tau`, their sum. In distributed training these are the batches of the main process.
    With `compute_loss_func=tau_loss(model)`, τ is computed once for both.

    Args:
        model: A model of hf_ssm, the one that is trained.

    Source: Liu & Li 2024, eq. (6).
    """

    def __init__(self, model: Any):
        self._sums: Tensor | None = None
        self._count = 0
        owner = weakref.proxy(self)  # a model outlives its callbacks
        self._hooks = [
            model.register_forward_pre_hook(_request_tau, with_kwargs=True),
            model.register_forward_hook(lambda module, args, outputs: owner._record(module, outputs)),
        ]

    def _record(self, model: Any, outputs: Any) -> None:
        if model.training:
            tau = outputs.tau.detach()
            self._sums = tau if self._sums is None else self._sums + tau
            self._count += 1

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the means to the last entry of the log."""
        if self._sums is not None and "loss" in (kwargs.get("logs") or {}):
            means = (self._sums / self._count).tolist()
            found = {"tau": sum(means), **{f"tau_layer_{i}": value for i, value in enumerate(means)}}
            state.log_history[-1].update(found)
            self._sums, self._count = None, 0

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()


def _request_tau(model: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    return args, {**kwargs, "output_tau": True, "return_dict": True} if model.training else kwargs
