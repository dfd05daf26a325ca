"""Custom operators of torch with kernels for their values and their gradients.

torch sees the tensors of an operator one by one; the functions of this package take them as one named tuple.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import torch
from torch import Tensor

from hf_ssm.ops.context import gradients

__all__ = ["differentiable_operator", "empty_gradients", "needs_gradient"]


def differentiable_operator(
    name: str,
    *,
    tensors: Any,
    options: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Sequence[Any]],
    plain: Callable[..., Any],
    outputs: int = 1,
    keeps: bool = False,
    device: str | None = None,
) -> tuple[Any, Any]:
    """Declare an operator that is differentiable any number of times.

    Args:
        name: Namespace and name.
        tensors: Class of its tensors, a `NamedTuple`; those of the type `Tensor | None` may be absent.
        options: Types and names of its other arguments, as in a schema of torch.
        forward: Called with the tensors and the options; returns the outputs.
        fake: As `forward`, for tensors without values.
        backward: Called with the gradient of each output (`None` for those that the loss does not depend on, but zeros
            for the first, which then has the shape of the first tensor), the tensors, the options, and for each tensor
            whether its gradient is wanted; returns the gradients, anything where not wanted. They must not share
            memory.
        plain: As `forward`, by operations of torch, for derivatives of the gradients.
        outputs: Number of outputs.
        keeps: Whether the last option is whether a gradient will be computed, and the last output what `forward` keeps
            for it (not counted in `outputs`); `backward` is called with it in place of that option.
        device: Type of device that the operator runs on; default any.

    Returns:
        The operator, called with the tensors one by one, then the options, and the one that computes its gradients.
    """
    arguments = [f"Tensor{'' if hint is Tensor else '?'} {field}" for field, hint in get_type_hints(tensors).items()]
    count = len(arguments)
    grads = [f"Tensor? grad_{number}" for number in range(outputs)]
    results = ", ".join(["Tensor"] * (outputs + keeps))
    scalars = [option for option in options.split(", ") if option]
    extra = [*scalars[:-1], "Tensor kept"] if keeps else scalars
    register: dict[str, Any] = {"mutates_args": (), "device_types": device}

    def run(*args: Any) -> Any:
        return forward(tensors(*args[:count]), *args[count:])

    def run_backward(*args: Any) -> list[Tensor]:
        inputs = args[outputs : outputs + count]
        grads = backward(*args[:outputs], tensors(*inputs), *args[outputs + count :])
        unwanted = empty_gradients(inputs, [False] * count)
        return [grad if want else none for grad, want, none in zip(grads, args[-1], unwanted, strict=True)]

    schema = f"({', '.join([*arguments, *scalars])}) -> " + (f"({results})" if outputs + keeps > 1 else results)
    operator = torch.library.custom_op(name, run, schema=schema, **register)
    schema = f"({', '.join([*grads, *arguments, *extra, 'bool[] wanted'])}) -> Tensor[]"
    backward_operator = torch.library.custom_op(f"{name}_backward", run_backward, schema=schema, **register)
    operator.register_fake(lambda *args: fake(tensors(*args[:count]), *args[count:]))
    backward_operator.register_fake(lambda *args: empty_gradients(args[outputs : outputs + count], args[-1]))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.options = inputs[count:]
        if not keeps:
            ctx.save_for_backward(*inputs[:count])
        elif inputs[-1]:
            ctx.save_for_backward(*inputs[:count], output[-1])

    def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads[:outputs]):
            return (None,) * (count + len(ctx.options))
        saved, options = ctx.saved_tensors, ctx.options
        inputs, wanted = saved[:count], list(ctx.needs_input_grad[:count])
        if torch.is_grad_enabled():

            def function(*views: Tensor | None) -> Any:
                return plain(tensors(*views), *options)

            results = gradients(function, inputs, grads[:outputs])
        else:
            first = torch.zeros_like(inputs[0]) if grads[0] is None else grads[0]
            others = (*options[:-1], saved[count]) if keeps else options
            results = backward_operator(first, *grads[1:outputs], *inputs, *others, wanted)
        return *(grad if want else None for grad, want in zip(results, wanted, strict=True)), *[None] * len(options)

    operator.register_autograd(differentiate, setup_context=save)
    return operator, backward_operator


def empty_gradients(tensors: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor]:
    """Memory for the gradients of tensors; `(0,)` where none is wanted."""
    like = next(t for t in tensors if t is not None)
    present = [like if t is None else t for t in tensors]
    return [
        torch.empty(t.shape if want else (0,), dtype=t.dtype, device=t.device)
        for t, want in zip(present, wanted, strict=True)
    ]


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient of an operation on these tensors may be computed."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
