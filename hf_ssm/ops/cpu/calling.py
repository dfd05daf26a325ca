"""How a compiled kernel may be called."""

import torch
from torch import Tensor, nn

__all__ = ["in_function_transform", "is_plain_call"]


def in_function_transform() -> bool:
    """Whether a transform of `torch.func` is at work: its tensors have no memory, and custom operators refuse it."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_plain_call(*tensors: Tensor | None) -> bool:
    """Whether only the numbers of these tensors are asked for: no gradient, no tracing, no tensor of another kind.

    A custom operator costs some ten microseconds a call; a kernel may then be called without it.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (type(t) not in (Tensor, nn.Parameter) or (grad and t.requires_grad)):
            return False
    return not in_function_transform()
