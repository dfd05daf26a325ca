"""The linear scan in PyTorch: all blocks of a sequence at once, with the states before them by a scan of blocks.

Dimensions: `B` batch, `L` length, `M` lines of a sequence, `S` states, `T` positions of a block, `K` blocks.

The operator `(a, b) ∘ (a', b') = (a' a, a' b + b')` is associative. The blocks run their `T` steps together from a zero
state; the pairs of whole blocks are a scan of `K` positions, computed in the same way; then each block adds the state
before it, multiplied by the products of its `a`. This is about three times the work of the loop, in `O(T log_T L)`
operations that each treat many positions.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.context import in_function_transform, no_autocast
from hf_ssm.ops.linear_scan.reference import loop_scan

__all__ = ["parallel_scan", "scan_gradients", "shifted_states"]

_SCAN_BLOCK = 16


def parallel_scan(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """All states `(B, L, M, S)`; arguments as in `loop_scan`."""
    if in_function_transform():
        return loop_scan(a, b, state, reverse)
    x: Tensor = _ParallelScan.apply(a, b, state, reverse)
    return x


class _ParallelScan(torch.autograd.Function):
    """The scan with the reversed scan as its derivative, which is differentiable again."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
        if reverse:
            a, b = a.flip(1), b.flip(1)
        x = _states_by_blocks(a, b, state)
        return x.flip(1) if reverse else x.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, state, ctx.reverse = inputs
        ctx.save_for_backward(a, state, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, state, x = ctx.saved_tensors
        with no_autocast(grad.device):
            return (*scan_gradients(parallel_scan, grad, a, state, x, ctx.reverse, ctx.needs_input_grad), None)


def scan_gradients(
    scan: Any, grad: Tensor, a: Tensor, state: Tensor | None, x: Tensor, reverse: bool, wanted: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of `a`, `b` and the initial state, by operations that are differentiable again.

    With `g_t = ∂loss / ∂b_t`: `g_t = grad_t + conj(a_{t+1}) g_{t+1}`, a scan in the other direction, and
    `∂loss / ∂a_t = g_t conj(x_{t-1})`.
    """
    decay = a.conj().resolve_conj()
    first = decay[:, -1] if reverse else decay[:, 0]
    if a.shape[1] > 1:
        # The adjoint multiplies by the decay of the position that it comes from; it begins at zero.
        zeros = torch.zeros_like(decay[:, :1])
        decay = torch.cat([zeros, decay[:, :-1]] if reverse else [decay[:, 1:], zeros], dim=1)
    g = scan(decay, grad.contiguous(), None, not reverse)
    grad_a = grad_state = None
    if wanted[0]:
        grad_a = (g * shifted_states(x, state, reverse).conj()).sum_to_size(a.shape)
    if wanted[2]:
        grad_state = first * (g[:, -1] if reverse else g[:, 0])
    return grad_a, g if wanted[1] else None, grad_state


def shifted_states(x: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """The state that each position starts from, `(B, L, M, S)`."""
    first = (torch.zeros_like(x[:, 0]) if state is None else state).unsqueeze(1)
    return torch.cat([x[:, 1:], first] if reverse else [first, x[:, :-1]], dim=1)


def _states_by_blocks(a: Tensor, b: Tensor, state: Tensor | None) -> Tensor:
    """The scan from the first position on; arguments as in `loop_scan`."""
    length = b.shape[1]
    if length <= _SCAN_BLOCK:
        states = b.clone(memory_format=torch.contiguous_format)
        if state is not None:
            states[:, 0] += a[:, 0] * state
        for t in range(1, length):
            states[:, t].addcmul_(a[:, t if a.shape[1] > 1 else 0], states[:, t - 1])
        return states
    padding = (0, 0, 0, 0, 0, -length % _SCAN_BLOCK)
    states = F.pad(b, padding).unflatten(1, (-1, _SCAN_BLOCK))
    # `(1 or B, 1 or K, T, 1 or M, S)`.
    products = F.pad(a, padding) if a.shape[1] > 1 else a.expand(-1, _SCAN_BLOCK, -1, -1)
    products = products.unflatten(1, (-1, _SCAN_BLOCK))
    decays, products = products.unbind(2), products.clone(memory_format=torch.contiguous_format)
    for t in range(1, _SCAN_BLOCK):
        states[:, :, t].addcmul_(decays[t], states[:, :, t - 1])
        products[:, :, t] *= products[:, :, t - 1]
    ends = _states_by_blocks(products[:, :, -1], states[:, :, -1], state)
    first = (torch.zeros_like(ends[:, 0]) if state is None else state).unsqueeze(1)
    before = torch.cat([first, ends[:, :-1]], dim=1).unsqueeze(2)
    return states.addcmul_(products, before).flatten(1, 2)[:, :length]
