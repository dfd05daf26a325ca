"""The circumstances of a call: autocast, tracing, function transforms; and the namespace of custom operators."""

import hashlib
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

__all__ = [
    "NAMESPACE",
    "in_function_transform",
    "is_exporting",
    "is_plain_call",
    "no_autocast",
    "refuse_second_derivative",
]

# torch knows one operator of a name, and a process may load several checkpoints that contain copies of this code.
_COPY = "" if __name__ == "hf_ssm.ops.context" else f"_{hashlib.sha256(__name__.encode()).hexdigest()[:12]}"
NAMESPACE = f"hf_ssm{_COPY}"
"""Namespace of custom operators: `"hf_ssm"`, and a unique name in each copy of the code."""


def no_autocast(device: torch.device) -> AbstractContextManager:
    """Disables autocast, for computations with a precision of their own: kernels, scans and τ."""
    if is_exporting() and not torch.is_autocast_enabled(device.type):
        return nullcontext()
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def is_exporting() -> bool:
    """Whether `torch.export` or `torch.jit.trace` records a program that has to run without this package.

    Its operations are those of PyTorch, real-valued, and of any batch size and length.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def in_function_transform() -> bool:
    """Whether a transform of `torch.func` is active: its tensors have no memory, and custom operators refuse them."""
    # There is no public way to find out.
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_plain_call(*tensors: Tensor | None) -> bool:
    """Whether a call needs values only: no gradient, no tracing, no tensor subclass.

    A kernel may then be called without its custom operator, which costs some ten microseconds a call. Reads no values.
    """
    # There is no public way to detect a dispatch mode, such as that of fake tensors.
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (type(t) not in (Tensor, nn.Parameter) or (grad and t.requires_grad)):
            return False
    return not in_function_transform()


def refuse_second_derivative(backward: Any, name: str, alternative: str) -> None:
    """Make the backward operator of `name` raise an error when it is differentiated."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise RuntimeError(
            f"{name} can be differentiated once only (once_differentiable); for second derivatives use {alternative}"
        )

    backward.register_autograd(refuse)
