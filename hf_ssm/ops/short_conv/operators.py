"""What the custom operators of the short convolution share: shapes of results, and gradients.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import differentiable_gradients
from hf_ssm.ops.short_conv.pytorch import short_conv_torch

__all__ = ["register"]


def register(operator: Any, backward: Any) -> None:
    """Register the shapes of the results of both operators, and the second as the backward of the first.

    Args:
        operator: From u `(B, L, D)`, weight `(D, K)`, bias `(D,)` or `None`, mask `(B, L)` or `None`, the number of
            taps before a position, and whether SiLU follows, to y `(B, L, D)`.
        backward: From the gradient of y, the arguments of `operator`, whether the gradient of u is needed, and whether
            that of weight or bias is, to the gradients of u, weight and bias; empty tensors where not needed.
    """
    operator.register_fake(_fake)
    backward.register_fake(_fake_backward)
    operator.register_autograd(partial(_gradients, backward), setup_context=_save)


def _fake(u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, left: int, silu: bool) -> Tensor:
    return torch.empty(u.shape, dtype=u.dtype, device=u.device)


def _fake_backward(
    grad: Tensor,
    u: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    left: int,
    silu: bool,
    needs_u: bool,
    needs_sums: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_u = torch.empty(u.shape if needs_u else (0,), dtype=u.dtype, device=u.device)
    if not needs_sums:
        return grad_u, weight.new_empty(0), weight.new_empty(0)
    grad_weight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return grad_u, grad_weight, (weight if bias is None else bias).new_empty(len(weight))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, weight, bias, mask, ctx.left, ctx.silu = inputs
    ctx.save_for_backward(u, weight, bias, mask)


def _gradients(backward: Any, ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        u, weight, bias, mask = ctx.saved_tensors
        options = {"bidirectional": ctx.left < weight.shape[1] - 1, "activation": "silu" if ctx.silu else None}
        plain = partial(short_conv_torch, mask=mask, **options)
        return *differentiable_gradients(plain, (u, weight, bias), [grad]), None, None, None
    needs_u, needs_weight, needs_bias, *_ = ctx.needs_input_grad
    grads = backward(grad, *ctx.saved_tensors, ctx.left, ctx.silu, needs_u, needs_weight or needs_bias)
    needed = zip(grads, ctx.needs_input_grad, strict=False)
    return *(g if needs else None for g, needs in needed), None, None, None
