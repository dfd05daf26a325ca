"""The state space duality for exported programs of any length.

Dimensions as in `chunks.py`; `J` blocks of chunks, `F` numbers of the states of a head.

An exported program can contain neither a loop over chunks nor a number of operations that depends on the length. So
the states at the ends of the chunks are computed like the outputs within a chunk, by a matrix of decays: within blocks
of 16 chunks, and then between the blocks.
"""

from functools import partial

import torch
from torch import Tensor

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.ssd.arguments import in_dtype_of_steps
from hf_ssm.ops.ssd.chunks import (
    heads_apart,
    heads_in_rows,
    per_row,
    positions_first,
    positions_of,
    segment_decays,
    span_of,
)
from hf_ssm.ops.ssd.step import step_torch

__all__ = ["ssd_by_levels"]

_SSD_CHUNK, _SSD_BLOCK = 64, 16


def _after(logs: Tensor, added: Tensor) -> Tensor:
    """`s_k = exp(log_k) s_{k-1} + added_k` `(..., K, F)` from zero, of `(..., K)` and `(..., K, F)`."""
    return segment_decays(logs) @ added


def _states_after(logs: Tensor, added: Tensor, before: Tensor, length: int) -> Tensor:
    """The state after each of the chunks `(B, G, R, K, F)`.

    Args:
        logs: Logarithms of the decays of the chunks `(B, G, R, K)`.
        added: What they add to the state `(B, G, R, K, F)`.
        before: The state before the first `(B, G, R, 1, F)`.
        length: Number of positions.
    """
    count = block_count(length, _SSD_CHUNK * _SSD_BLOCK)
    logs, added = (in_blocks(t, 3, _SSD_BLOCK, count) for t in (logs, added))
    states, reach = _after(logs, added), logs.cumsum(-1)
    # The state before the first block is an addition of a block before all others.
    total = torch.cat([torch.zeros_like(reach[..., :1, -1]), reach[..., -1]], dim=3)
    ends = _after(total, torch.cat([before, states[..., -1, :]], dim=3))[..., :-1, :]
    states = states + torch.exp(reach).unsqueeze(-1) * ends.unsqueeze(4)
    return first_positions(states.flatten(3, 4), 3, block_count(length, _SSD_CHUNK))


@in_dtype_of_steps
def ssd_by_levels(
    x: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state; for the arguments see `loop_ssd`. The size of the chunks is fixed."""
    (batch, length, heads, channels), (groups, states) = x.shape, B.shape[2:]
    if state is None:
        state = x.new_zeros(batch, heads, channels, states)
    if type(length) is int and length == 1:
        y, last = step_torch(x[:, 0], d[:, 0], A, B[:, 0], C[:, 0], D, state)
        return y.unsqueeze(1), last
    count = block_count(length, _SSD_CHUNK)
    span = span_of(x, d, A, B, C, starts, partial(in_blocks, dim=1, size=_SSD_CHUNK, count=count))
    decay, p = segment_decays(span.logs), torch.exp(span.logs.cumsum(-1))
    inner = ((span.C @ span.B.transpose(-1, -2)).unsqueeze(2) * decay) @ heads_apart(span.u)
    added = span.B.transpose(-1, -2) @ heads_in_rows(per_row(decay[..., -1, :]) * span.u)
    # (B, G, K, N, R P) -> (B, G, R, K, N P), and back.
    added = added.unflatten(-1, (heads // groups, channels)).movedim(4, 2).flatten(4)
    first = state.transpose(-1, -2).flatten(2).unflatten(1, (groups, heads // groups)).unsqueeze(3)
    ends = _states_after(span.logs.sum(-1), added, first, length)
    starting = torch.cat([first, ends[..., :-1, :]], dim=3).unflatten(-1, (states, channels))
    starting = starting.movedim(2, 4).flatten(-2)
    outer = positions_of(span.C @ starting, heads // groups)
    y = (positions_first(inner) + per_row(p) * outer).flatten(3, 4).flatten(1, 2)
    y = first_positions(y, 1, length)
    if D is not None:
        y = y + (D.unsqueeze(-1) if D.dim() == 1 else D) * x
    return y, ends[..., -1, :].flatten(1, 2).unflatten(-1, (states, channels)).transpose(-1, -2)
