"""Errors of a compressed model on data: of each operator beside its bound, and of the predictions."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.analysis.compression import compressible_operators
from hf_ssm.analysis.recording import model_inputs
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.rows import Rows
from hf_ssm.utils.checks import check_iterable
from hf_ssm.utils.evaluation import evaluating

__all__ = ["compare_outputs"]


def compare_outputs(model: Any, compressed: Any, batches: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of a compressed model on data: of each operator, and of the whole model.

    Each operator of the compressed model reads the inputs of the same operator in the given model, so that the errors
    of earlier layers have no effect.

    Args:
        model: The given model.
        compressed: The `model` of the result of `compress`.
        batches: Keyword inputs of the model (tensors), with or without `labels`.

    Returns:
        `layers`: for each operator, `layer`, `name`, `gain` and `relative`. `gain` is the largest `‖y - y_r‖₂ / ‖u‖₂`
        of a channel of a row (for S5: of a row), which the bound limits. `relative` is the root mean square of the
        error divided by that of the output. `agreement`: share of rows (or tokens) with the same most likely class;
        `None` for outputs without classes. `before` and `after`: mean `loss` and `accuracy` if the batches have labels
        of whole rows.

    Raises:
        TypeError: A batch is not a mapping.
        ValueError: There is no batch.
    """
    check_iterable("batches", batches, "batches (keyword inputs of the model)")
    measured = {path: _Errors(layer) for _, path, layer, _ in compressible_operators(model)}
    twins = {path: operator for _, path, _, operator in compressible_operators(compressed)}
    totals = _Totals()
    hooks = [
        operator.register_forward_hook(measured[path].hook(twins[path]), with_kwargs=True)
        for _, path, _, operator in compressible_operators(model)
    ]
    try:
        with evaluating(model), evaluating(compressed):
            for batch in batches:
                inputs = model_inputs(batch, model.device)
                before, after = (part(**inputs, use_cache=False).logits for part in (model, compressed))
                totals.add(before, after, batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not totals.rows:
        raise ValueError("`batches` is empty: pass keyword inputs of the model, for example from a `DataLoader`.")
    return {"layers": [{"name": name, **errors.to_dict()} for name, errors in measured.items()], **totals.to_dict()}


class _Errors:
    """The error of one operator on all inputs so far."""

    def __init__(self, layer: int):
        self.layer, self.gain, self.error, self.output = layer, 0.0, 0.0, 0.0

    def hook(self, twin: Any) -> Any:
        def add(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            rows: Rows = args[1] if len(args) > 1 else kwargs.get("rows", Rows())
            group = {"group": kwargs["group"]} if "group" in kwargs else {}
            error = (output - twin(args[0], rows, **group)).double()
            inputs, output = args[0].double(), output.double()
            if rows.mask is not None:
                # Outputs at padding have no meaning.
                kept = rows.mask.to(output).unsqueeze(-1)
                error, output = error * kept, output * kept
            along = 1 if isinstance(operator, LongConvolution) else (1, 2)
            sizes, norms = (torch.linalg.vector_norm(values, dim=along) for values in (inputs, error))
            self.gain = max(self.gain, torch.where(sizes > 0, norms / sizes, 0.0).max().item())
            self.error += error.square().sum().item()
            self.output += output.square().sum().item()

        return add

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "gain": self.gain,
            "relative": math.sqrt(self.error / self.output) if self.output else 0.0,
        }


class _Totals:
    """Agreement, loss and accuracy of two models over batches."""

    def __init__(self) -> None:
        self.rows = self.agreeing = self.compared = self.labelled = 0
        self.correct, self.loss = [0, 0], [0.0, 0.0]

    def add(self, before: Tensor, after: Tensor, batch: Mapping[str, Any]) -> None:
        self.rows += len(before)
        if before.shape[-1] == 1:
            return
        same = before.argmax(-1) == after.argmax(-1)
        mask = batch.get("attention_mask")
        kept = torch.ones_like(same) if mask is None or mask.shape != same.shape else mask.to(same)
        self.agreeing += int((same & kept).sum())
        self.compared += int(kept.sum())
        labels = batch.get("labels")
        if labels is None or before.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
            return
        labels = labels.to(before.device)
        self.labelled += len(labels)
        for index, logits in enumerate((before, after)):
            self.correct[index] += int((logits.argmax(-1) == labels).sum())
            self.loss[index] += nn.functional.cross_entropy(logits.float(), labels, reduction="sum").item()

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = {"rows": self.rows}
        result["agreement"] = self.agreeing / self.compared if self.compared else None
        if self.labelled:
            for name, correct, loss in zip(("before", "after"), self.correct, self.loss, strict=True):
                result[name] = {"accuracy": correct / self.labelled, "loss": loss / self.labelled}
        return result
