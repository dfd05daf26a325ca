"""The τ regulariser as a loss for transformers' own Trainer (Liu & Li 2024, Algorithm 2)."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

__all__ = ["tau_loss"]


def tau_loss(model: PreTrainedModel, weight: float | None = None) -> Callable[..., Tensor]:
    """A `compute_loss_func` for the plain `transformers.Trainer`: task loss + λ Σ τ over the layers.

    ```python
    Trainer(model, args, train_dataset=data, compute_loss_func=tau_loss(model))
    ```

    The model is made to return τ while it trains (by a hook, which leaves its configuration alone); evaluation
    reports the task loss alone. With gradient accumulation each micro-batch counts by its share of the labels, for
    the task loss and for τ alike.

    Args:
        model: A model of hf_ssm with a head.
        weight: λ; default: the configuration's `tau_weight`.

    Raises:
        ValueError: A negative λ.

    Source: Liu & Li 2024, eq. (8) and Algorithm 2.
    """
    factor = float(model.config.tau_weight if weight is None else weight)
    if not factor >= 0:
        raise ValueError(f"`weight` must not be negative, got {weight}.")
    seen: dict[str, Any] = {}

    def ask_for_tau(module: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        seen["attention_mask"] = kwargs.get("attention_mask")
        kwargs["output_tau"] = module.training and factor > 0
        return args, kwargs

    model.register_forward_pre_hook(ask_for_tau, with_kwargs=True)
    shifts = type(model).__name__.endswith("ForCausalLM")

    def loss(outputs: ModelOutput, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        total = model.task_loss(outputs.logits, labels, seen["attention_mask"])
        if outputs.tau is not None:
            total = total + factor * outputs.tau.sum()
        if num_items_in_batch is None:
            return total
        counted = labels[..., 1:] if shifts else labels
        return total * (counted.ne(-100).sum() / num_items_in_batch)

    loss.adds_tau = True  # SSMTrainer refuses to add it twice
    return loss
