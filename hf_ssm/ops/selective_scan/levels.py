"""The selective scan as nested blocks, for exported programs of any length.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel, `K` blocks.

An exported program can contain neither a loop over positions nor a number of operations that depends on the length. So
all blocks of 16 positions are advanced together from a zero state, each of four steps doubling the reach; the states at
their ends are a scan of `K` positions, computed in the same way; and each block then adds the state before it. All
states are kept, a few times `B L D N` numbers.

Source: Hillis & Steele 1986, "Data parallel algorithms", for the steps within a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.selective_scan.arguments import ScanTensors, skip_and_gate, step_sizes, without_masked_positions

__all__ = ["scan_by_levels"]

_LEVEL_BLOCK = 16
# 16^6 positions: more than the states of a sequence that fits in memory.
_LEVELS = 6

# A real tensor, or real and imaginary parts.
Parts = tuple[Tensor, ...]


def _to_parts(t: Tensor) -> Parts:
    return (t.real, t.imag) if t.is_complex() else (t,)


def _times(a: Parts, b: Parts) -> Parts:
    if len(a) == 1:
        return (a[0] * b[0],)
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _exponential(logs: Parts, same: Tensor | None = None) -> Parts:
    """The decays, zero between positions that are not of the `same` document."""
    size = torch.exp(logs[0])
    size = size if same is None else torch.where(same, size, 0)
    return (size,) if len(logs) == 1 else (size * torch.cos(logs[1]), size * torch.sin(logs[1]))


def _all_states(
    logs: Parts, inputs: Parts, before: Parts, length: int, begun: Tensor | None = None, level: int = 1
) -> Parts:
    """`x_t = exp(log_t) x_{t-1} + input_t` for `(B, K, D, N)`, with `x_{-1}` = `before` `(B, 1, D, N)`.

    Args:
        logs: Logarithms of the decay of K positions, or at a level above 1 of K blocks.
        inputs: The same.
        before: The state before the first.
        length: Number of positions of the sequence.
        begun: Number of documents that begin at each position or in each block, before which the state is zero,
            `(B, K, 1, 1)`, default none.
        level: Which level.
    """
    count = block_count(length, _LEVEL_BLOCK**level)
    logs = tuple(in_blocks(part, 1, _LEVEL_BLOCK, count).cumsum(2) for part in logs)
    states = tuple(in_blocks(part, 1, _LEVEL_BLOCK, count) for part in inputs)
    begun = None if begun is None else in_blocks(begun, 1, _LEVEL_BLOCK, count).cumsum(2)
    reach = 1
    while reach < _LEVEL_BLOCK:
        same = None if begun is None else begun == _later(begun, reach)
        decay = _exponential(tuple(part - _later(part, reach) for part in logs), same)
        added = _times(decay, tuple(_later(part, reach) for part in states))
        states = tuple(part + more for part, more in zip(states, added, strict=True))
        reach *= 2
    if level < _LEVELS:
        last_logs, last_states = (tuple(part[:, :, -1] for part in parts) for parts in (logs, states))
        last_begun = None if begun is None else begun[:, :, -1]
        ends = _all_states(last_logs, last_states, before, length, last_begun, level + 1)
        before = tuple(torch.cat([first, end[:, :-1]], dim=1) for first, end in zip(before, ends, strict=True))
    decay = _exponential(logs, None if begun is None else begun == 0)
    added = _times(decay, tuple(part.unsqueeze(2) for part in before))
    wanted = length if level == 1 else block_count(length, _LEVEL_BLOCK ** (level - 1))
    whole = (part + more for part, more in zip(states, added, strict=True))
    return tuple(first_positions(part.flatten(1, 2), 1, wanted) for part in whole)


def _later(t: Tensor, steps: int) -> Tensor:
    """`(B, K, T, D, N)` moved by a number of positions within each block, with zeros before."""
    return F.pad(t[:, :, :-steps], (0, 0, 0, 0, steps, 0))


def scan_by_levels(
    args: ScanTensors,
    delta_softplus: bool,
    needs_last: bool,
    mask: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state."""
    u, delta, A, B, C, D, z, delta_bias, state = without_masked_positions(args, mask).cast(args.dtype)
    d = step_sizes(delta, delta_bias, delta_softplus, mask).unsqueeze(-1)
    logs = tuple(d * part for part in _to_parts(A))
    inputs = tuple((d * u.unsqueeze(-1)) * part.unsqueeze(2) for part in _to_parts(B))
    if state is None:
        before = tuple(torch.zeros_like(part[:, :1]) for part in inputs)
    else:
        before = tuple(part.unsqueeze(1) for part in _to_parts(state))
    if type(u.shape[1]) is int and u.shape[1] == 1:
        # The first position of a row starts no other document.
        decayed = _times(_exponential(logs), before)
        states = tuple(part + more for part, more in zip(decayed, inputs, strict=True))
    else:
        begun = None if starts is None else starts[:, :, None, None].to(u.dtype)
        states = _all_states(logs, inputs, before, u.shape[1], begun)
    weights = _to_parts(C)
    y = (states[0] * weights[0].unsqueeze(2)).sum(-1)
    if A.is_complex():
        y = 2 * (y - (states[1] * weights[1].unsqueeze(2)).sum(-1))
    ends = [part[:, -1] for part in states]
    last = torch.complex(*ends) if A.is_complex() else ends[0]
    return skip_and_gate(y, u, D, z).to(args.u.dtype), last
