"""The state space duality in PyTorch, in chunks: quadratic within a chunk, a recurrence of states between chunks.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel, `K`
chunks, `T` positions of a chunk.

Source: Dao & Gu 2024, Section 6.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.context import no_autocast

__all__ = ["chunked_ssd"]

_CHUNK = 64


def _segment_sums(a: Tensor) -> Tensor:
    """`Σ_{j<k<=i} a_k` for `(..., T)`, -inf above the diagonal: sums of at most `T` numbers, without differences."""
    size = a.shape[-1]
    rows = a.unsqueeze(-1).expand(*a.shape, size)
    below = torch.ones(size, size, dtype=torch.bool, device=a.device).tril(-1)
    sums = rows.masked_fill(~below, 0).cumsum(-2)
    return sums.masked_fill(below.t(), -math.inf)


def _plain_ssd(
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
    """The output and the last state by operations that are differentiable any number of times, in any mode."""
    batch, length, heads, _ = x.shape
    groups, states = B.shape[2:]
    size = min(length, _CHUNK if chunk_size is None else chunk_size)
    short = -length % size
    logs = d * A
    logs = logs if starts is None else logs.masked_fill(starts.unsqueeze(-1), -math.inf)
    # (B, K, T, G, heads of a group, ...)
    logs = F.pad(logs, (0, 0, 0, short)).view(batch, -1, size, groups, heads // groups).permute(0, 1, 3, 4, 2)
    u = F.pad(d.unsqueeze(-1) * x, (0, 0, 0, 0, 0, short)).view(batch, -1, size, groups, heads // groups, x.shape[-1])
    B, C = (F.pad(t, (0, 0, 0, 0, 0, short)).view(batch, -1, size, groups, states) for t in (B, C))
    sums = _segment_sums(logs)
    weights = torch.einsum("bkign,bkjgn->bkgij", C, B).unsqueeze(3) * torch.exp(sums)
    y = torch.einsum("bkghij,bkjghp->bkighp", weights, u)
    to_end, from_start = torch.exp(sums[..., -1, :]), torch.exp(logs.cumsum(-1))
    added = torch.einsum("bkghj,bkjghp,bkjgn->bkghpn", to_end, u, B)
    if state is None:
        state = x.new_zeros(batch, heads, x.shape[-1], states)
    carry, before = state.unflatten(1, (groups, -1)), []
    for k in range(added.shape[1]):
        before.append(carry)
        carry = from_start[:, k, ..., -1, None, None] * carry + added[:, k]
    y = y + torch.einsum("bkign,bkghpn,bkghi->bkighp", C, torch.stack(before, dim=1), from_start)
    y = y.reshape(batch, -1, heads, x.shape[-1])[:, :length]
    if D is not None:
        y = y + (D.unsqueeze(-1) if D.dim() == 1 else D) * x
    return y, carry.flatten(1, 2)


def chunked_ssd(
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
    """The output and the last state; for the arguments see `loop_ssd`."""
    with no_autocast(x.device):
        return _plain_ssd(x, d, A, B, C, D, state, starts, chunk_size)
