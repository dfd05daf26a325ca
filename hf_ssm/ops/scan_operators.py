"""What the custom operators of scans by kernels share: their signatures, and their derivatives.

An operator takes the tensors that have gradients, further tensors, an option, and whether to keep states for the
backward; it returns the output, the last state and the kept states. Its backward takes the gradients of the first two,
the tensors, the kept states, the option, and which gradients are wanted; the others it returns empty.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import differentiable_gradients

__all__ = ["keeps_states", "register_gradients", "scan_schemas", "wanted_gradients"]


def scan_schemas(tensors: str, option: str) -> tuple[str, str]:
    """Signatures of an operator and of its backward, for `torch.library.custom_op`.

    Args:
        tensors: All tensors, such as `"Tensor x, Tensor? D"`.
        option: The option, such as `"int chunk"`.
    """
    forward = f"({tensors}, {option}, bool keep) -> (Tensor, Tensor, Tensor)"
    return forward, f"(Tensor grad_y, Tensor? grad_last, {tensors}, Tensor kept, {option}, bool[] wanted) -> Tensor[]"


def keeps_states(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a backward through an operator of these tensors may follow."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def wanted_gradients(grads: Sequence[Tensor | None], wanted: Sequence[bool], like: Tensor) -> list[Tensor]:
    """The result of a backward; empty tensors in place of gradients that are `None`, or not wanted."""
    present = [like.new_empty(0) if grad is None else grad for grad in grads]
    return [grad if want else grad.new_empty(0) for grad, want in zip(present, wanted, strict=True)]


def register_gradients(operator: Any, backward: Any, plain: Callable[..., tuple[Tensor, Tensor]], count: int) -> None:
    """Let an operator be differentiated by its backward, and a second time through plain operations.

    Args:
        operator: The operator.
        backward: Its backward.
        plain: The output and the last state in PyTorch, from the tensors and the option of the operator.
        count: Number of the tensors that have gradients, the first.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *tensors, option, keep = inputs
        ctx.set_materialize_grads(False)
        if keep:
            ctx.save_for_backward(*tensors, output[2])
            ctx.option = option

    def gradients(ctx: Any, grad_y: Tensor | None, grad_last: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        *tensors, kept = ctx.saved_tensors
        differentiable, others = tensors[:count], tensors[count:]
        none = (None,) * (len(others) + 2)
        if torch.is_grad_enabled():

            def plain_scan(*given: Tensor | None) -> tuple[Tensor, Tensor]:
                return plain(*given, *others, ctx.option)

            return *differentiable_gradients(plain_scan, differentiable, [grad_y, grad_last]), *none
        wanted = list(ctx.needs_input_grad[:count])
        grad_y = torch.zeros_like(tensors[0]) if grad_y is None else grad_y
        grads = backward(grad_y, grad_last, *tensors, kept, ctx.option, wanted)
        return *(grad if want else None for grad, want in zip(grads, wanted, strict=True)), *none

    operator.register_autograd(gradients, setup_context=save)
