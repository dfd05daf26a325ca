"""Inputs that the models of a family read for each position beside the main one, such as the time steps of S5.

Legend: `B` batch, `L` length.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


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


__all__ = ["declaring", "take_extra_inputs"]
