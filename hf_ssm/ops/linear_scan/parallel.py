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

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.context import in_function_transform, is_exporting, no_autocast

__all__ = ["parallel_scan", "plain_scan"]

_SCAN_BLOCK = 16
# Of so many positions the loop is faster, since blocks take three times its work.
_LOOP = 64
# Of an exported program, for 16^6 positions: more than the states of a sequence that fits in memory.
_SCAN_LEVELS = 6


def parallel_scan(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """All states `(B, L, M, S)`; arguments as in `loop_scan`."""
    if in_function_transform() or is_exporting():
        return _run_scan(a, b, state, reverse)
    x: Tensor = _ParallelScan.apply(a, b, state, reverse)
    return x


def _run_scan(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    if type(b.shape[1]) is int and b.shape[1] <= _LOOP:
        return _states_one_by_one(a, b, state, reverse)
    return plain_scan(a.flip(1), b.flip(1), state).flip(1) if reverse else plain_scan(a, b, state).contiguous()


def _states_one_by_one(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    # The gradient of an index would be a tensor of zeros of the whole size for each position.
    decays = a.unbind(1) if a.shape[1] > 1 else a.unbind(1) * b.shape[1]
    pairs, states = list(zip(decays, b.unbind(1), strict=True)), []
    for decay, inputs in reversed(pairs) if reverse else pairs:
        state = inputs if state is None else torch.addcmul(inputs, decay, state)
        states.append(state)
    return torch.stack(states[::-1] if reverse else states, dim=1)


class _ParallelScan(torch.autograd.Function):
    """The scan with the reversed scan as its derivative, which is differentiable again.

    autograd alone would keep all intermediate results, some ten times the memory of the states.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
        return _run_scan(a, b, state, reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, state, ctx.reverse = inputs
        ctx.save_for_backward(a, state, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With `g_t = ∂loss / ∂b_t`: `g_t = grad_t + conj(a_{t+1}) g_{t+1}`, and `∂loss / ∂a_t = g_t conj(x_{t-1})`."""
        a, state, x = ctx.saved_tensors
        decay = a.conj().resolve_conj()
        first = -1 if ctx.reverse else 0
        begin = decay[:, first]
        if a.shape[1] > 1:
            # The adjoint multiplies by the decay of the position that it comes from; it begins at zero.
            zeros = torch.zeros_like(decay[:, :1])
            decay = torch.cat([zeros, decay[:, :-1]] if ctx.reverse else [decay[:, 1:], zeros], dim=1)
        with no_autocast(grad.device):
            g = parallel_scan(decay, grad, None, not ctx.reverse)
        grad_a = grad_state = None
        if ctx.needs_input_grad[0]:
            before = (torch.zeros_like(x[:, 0]) if state is None else state).unsqueeze(1)
            before = torch.cat([x[:, 1:], before] if ctx.reverse else [before, x[:, :-1]], dim=1)
            grad_a = (g * before.conj()).sum_to_size(a.shape)
        if ctx.needs_input_grad[2]:
            grad_state = begin * g[:, first]
        return grad_a, g if ctx.needs_input_grad[1] else None, grad_state, None


def plain_scan(a: Tensor, b: Tensor, state: Tensor | None) -> Tensor:
    """The scan from the first position on, by operations that torch differentiates; arguments as in `loop_scan`."""
    length = b.shape[1]
    if is_exporting() and type(length) is not int:
        return _exported_scan(a, b, state, length, 1)
    if length <= _LOOP:
        return _states_one_by_one(a, b, state, False)
    padding = (0, 0, 0, 0, 0, -length % _SCAN_BLOCK)
    blocks = F.pad(b, padding).unflatten(1, (-1, _SCAN_BLOCK))
    decays = F.pad(a, padding).unflatten(1, (-1, _SCAN_BLOCK)) if a.shape[1] > 1 else a.unsqueeze(1)
    states, products = _states_of_blocks(decays, blocks)
    ends = plain_scan(products[:, :, -1], states[:, :, -1], state)
    return _after_state(states, products, ends, state).flatten(1, 2)[:, :length]


def _states_of_blocks(decays: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The states of blocks `(B, K, T, M, S)` from zero, and the products of their decays from the first position on."""
    factors = decays.unbind(2) if decays.shape[2] > 1 else decays.unbind(2) * _SCAN_BLOCK
    states: list[Tensor] = []
    products: list[Tensor] = []
    for decay, inputs in zip(factors, blocks.unbind(2), strict=True):
        states.append(torch.addcmul(inputs, decay, states[-1]) if states else inputs)
        products.append(decay * products[-1] if products else decay)
    return torch.stack(states, dim=2), torch.stack(products, dim=2)


def _after_state(states: Tensor, products: Tensor, ends: Tensor, state: Tensor | None) -> Tensor:
    """The states of blocks with the states before the blocks, which follow from those at their ends."""
    first = (torch.zeros_like(ends[:, 0]) if state is None else state).unsqueeze(1)
    return torch.addcmul(states, products, torch.cat([first, ends[:, :-1]], dim=1).unsqueeze(2))


def _exported_scan(a: Tensor, b: Tensor, state: Tensor | None, length: int, level: int) -> Tensor:
    """`plain_scan` with a number of operations that does not depend on the length: a fixed number of levels of blocks.

    Args:
        a, b: Those of the positions, or at a level above 1 of blocks.
        length: Number of positions.
    """
    count = block_count(length, _SCAN_BLOCK**level)
    blocks = in_blocks(b, 1, _SCAN_BLOCK, count)
    # While torch.jit traces, sizes are tensors.
    is_constant = len(a.unbind(1)) == 1 if torch.jit.is_tracing() else type(a.shape[1]) is int and a.shape[1] == 1
    states, products = _states_of_blocks(a.unsqueeze(1) if is_constant else in_blocks(a, 1, _SCAN_BLOCK, count), blocks)
    ends = states[:, :, -1]
    if level < _SCAN_LEVELS:
        ends = _exported_scan(products[:, :, -1], ends, state, length, level + 1)
    wanted = length if level == 1 else block_count(length, _SCAN_BLOCK ** (level - 1))
    return first_positions(_after_state(states, products, ends, state).flatten(1, 2), 1, wanted)
