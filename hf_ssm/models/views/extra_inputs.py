"""What the models of a family read for each position beside their input, such as the time steps of S5.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.models.base.inputs import check_is_tensor
from hf_ssm.modules.rows import Rows, View
from hf_ssm.ops.context import has_readable_values


class ExtraInputs(View):
    """The `extra_inputs` of a model: positive numbers `(B, L)`, which become `rows.extra`.

    Args:
        values: The numbers by name; those at padding are ignored.
        attention_mask: `(B, L)` or `(B, past + L)`, or `None`.
        dtype: The precision of the model.
    """

    def __init__(self, values: dict[str, Tensor], attention_mask: Tensor | None, dtype: torch.dtype):
        self.values, self.attention_mask, self.dtype = values, attention_mask, dtype

    @classmethod
    def of(cls, model: Any, call: dict[str, Any]) -> "ExtraInputs | None":
        values = take_extra_inputs(model, dict(call)) if model.extra_inputs else {}
        if values and call["both_strands"]:
            raise ValueError(f"`{next(iter(values))}` is for signals, which have no reverse complement: leave it out.")
        return cls(values, call.get("attention_mask"), model.dtype) if values else None

    def arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """Add the numbers to the rows.

        Raises:
            TypeError: An input is not a tensor.
            ValueError: Another shape or type; on a CPU also a number at a token that is not positive and finite.
        """
        shape, device = hidden_states.shape[:2], hidden_states.device
        return hidden_states.to(self.dtype), rows._replace(
            extra={name: self._checked(name, value, shape, device) for name, value in self.values.items()}
        )

    def _checked(self, name: str, value: Tensor, shape: torch.Size, device: torch.device) -> Tensor:
        check_is_tensor(name, value)
        if value.shape != shape or value.dtype == torch.bool or value.is_complex():
            raise ValueError(
                f"`{name}` must be a number for each position, (batch, length) = {tuple(shape)}, got "
                f"{tuple(value.shape)} of {value.dtype}."
            )
        value = value.to(device, torch.promote_types(value.dtype, torch.float32))
        if self.attention_mask is not None:
            value = torch.where(self.attention_mask[:, -shape[1] :].to(device).bool(), value, 1.0)
        if has_readable_values(value) and not (valid := (value > 0) & torch.isfinite(value)).all():
            row, position = (~valid).nonzero()[0].tolist()
            raise ValueError(
                f"`{name}` must be positive and finite, got {value[row, position].item()} in row {row} at position "
                f"{position}: give 1 where the time to the position before is not known."
            )
        return value


def declaring(forward: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`forward` with keyword arguments in its signature that it takes as `**kwargs`.

    The Trainer keeps the columns of a data set that the signature names, and `generate` passes the arguments on.
    """
    signature = inspect.signature(forward)
    *others, last = (parameter for name, parameter in signature.parameters.items() if name not in names)
    kind = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, kind, default=None, annotation=Tensor | None) for name in names]

    @functools.wraps(forward)
    def declared(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    declared.__signature__ = signature.replace(parameters=[*others, *added, last])  # type: ignore[attr-defined]
    return declared


def take_extra_inputs(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the given ones of the model's `extra_inputs` from keyword arguments, and return them."""
    taken = {name: kwargs.pop(name, None) for name in model.extra_inputs}
    return {name: value for name, value in taken.items() if value is not None}


def cut_extra_input(value: Tensor, past: int, count: int) -> Tensor:
    """An extra input of a prompt at the `count` positions after the first `past`, `(B, count)`; 1 after the prompt."""
    return nn.functional.pad(value, (0, max(0, past + count - value.shape[1])), value=1.0)[:, past : past + count]


def take_for_backbone(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Remove the `extra_inputs` and the arguments of views from those of a head, and return them."""
    views = {name: kwargs.pop(name) for name in View.all_arguments.intersection(kwargs)}
    return take_extra_inputs(model, kwargs) | views


__all__ = ["ExtraInputs", "cut_extra_input", "declaring", "take_extra_inputs", "take_for_backbone"]
