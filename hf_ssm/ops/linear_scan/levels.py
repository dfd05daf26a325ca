"""The linear scan as nested blocks of real numbers, for exported programs of any length.

Dimensions: `B` batch, `L` length, `M` lines of a sequence, `S` states, `K` blocks.

An exported program can contain neither a loop over positions nor a number of operations that depends on the length. So
all blocks of 16 positions are advanced together from a zero state, each of four steps doubling the reach; the states at
their ends are a scan of `K` positions, computed in the same way; and each block then adds the state before it.

Source: Hillis & Steele 1986, "Data parallel algorithms", for the steps within a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks

__all__ = ["scan_by_levels", "scan_parts_by_levels"]

_STEPS_AT_ONCE = 16
# 16^6 positions: more than the states of a sequence that fits in memory.
_SCAN_LEVELS = 6

# A real tensor, or real and imaginary parts.
ScanParts = tuple[Tensor, ...]


def scan_by_levels(a: Tensor, b: Tensor, state: Tensor | None, reverse: bool) -> Tensor:
    """All states `(B, L, M, S)`; arguments as in `loop_scan`."""
    before = None if state is None else _scan_parts(state)
    states = scan_parts_by_levels(_scan_parts(a), _scan_parts(b), before, reverse)
    return torch.complex(*states) if len(states) == 2 else states[0]


def scan_parts_by_levels(a: ScanParts, b: ScanParts, state: ScanParts | None, reverse: bool) -> ScanParts:
    """The scan of real numbers, or of complex numbers as real and imaginary parts, without complex tensors.

    Args:
        a: One or two tensors `(1 or B, 1 or L, 1 or M, S)`.
        b: As many, `(B, L, M, S)`.
        state: As many, `(B, M, S)`, or `None` for zero.
        reverse: Whether to begin at the last position.

    Returns:
        As many, `(B, L, M, S)`.
    """
    length = b[0].shape[1]
    before = tuple(torch.zeros_like(part[:, :1]) for part in b) if state is None else _unsqueezed(state, 1)
    if type(length) is int and length == 1:
        return _added(_products(a, before), b)
    if reverse:
        a, b = (tuple(part.flip(1) for part in parts) for parts in (a, b))
    states = _nested_states(a, b, before, length)
    return tuple(part.flip(1) for part in states) if reverse else states


def _is_constant(part: Tensor) -> bool:
    return type(part.shape[1]) is int and part.shape[1] == 1


def _scan_parts(t: Tensor) -> ScanParts:
    return (t.real, t.imag) if t.is_complex() else (t,)


def _products(a: ScanParts, b: ScanParts) -> ScanParts:
    if len(a) == 1:
        return (a[0] * b[0],)
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _added(a: ScanParts, b: ScanParts) -> ScanParts:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _unsqueezed(parts: ScanParts, dim: int) -> ScanParts:
    return tuple(part.unsqueeze(dim) for part in parts)


def _nested_states(a: ScanParts, b: ScanParts, before: ScanParts, length: int, level: int = 1) -> ScanParts:
    """The scan of the positions, or at a level above 1 of blocks; `before` is `(B, 1, M, S)`."""
    count = block_count(length, _STEPS_AT_ONCE**level)
    constant = _is_constant(a[0])
    b = tuple(in_blocks(part, 1, _STEPS_AT_ONCE, count) for part in b)
    # Products of the decays of so many positions, and from the beginning of a block to each position.
    decay = _unsqueezed(a, 1)
    products = decay if constant else tuple(in_blocks(part, 1, _STEPS_AT_ONCE, count) for part in a)
    reach = 1
    while reach < _STEPS_AT_ONCE:
        b = _added(b, _products(decay if constant else products, tuple(_delayed(part, reach) for part in b)))
        if constant:
            longer = _products(products, decay)
            products = tuple(torch.cat(pair, dim=2) for pair in zip(products, longer, strict=True))
            decay = _products(decay, decay)
        else:
            # Before the beginning of a block the product of no decays is 1.
            ones = (1.0, 0.0)
            delayed = tuple(_delayed(part, reach, one) for part, one in zip(products, ones, strict=False))
            products = _products(products, delayed)
        reach *= 2
    if level < _SCAN_LEVELS:
        last_a = tuple(part.squeeze(2) for part in decay) if constant else tuple(part[:, :, -1] for part in products)
        ends = _nested_states(last_a, tuple(part[:, :, -1] for part in b), before, length, level + 1)
        before = tuple(torch.cat([first, end[:, :-1]], dim=1) for first, end in zip(before, ends, strict=True))
    states = _added(b, _products(products, _unsqueezed(before, 2)))
    wanted = length if level == 1 else block_count(length, _STEPS_AT_ONCE ** (level - 1))
    return tuple(first_positions(part.flatten(1, 2), 1, wanted) for part in states)


def _delayed(t: Tensor, steps: int, value: float = 0.0) -> Tensor:
    """`(B, K, T, M, S)` moved by a number of positions within each block, with `value` before."""
    return F.pad(t[:, :, :-steps], (0, 0, 0, 0, steps, 0), value=value)
