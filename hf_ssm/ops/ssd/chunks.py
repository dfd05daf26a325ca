"""Chunks of positions, and the layouts in which matrix products read them.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `R = H / G` heads of a group,
`N` states per channel, `K` chunks, `T` positions of a chunk.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Span",
    "heads_apart",
    "heads_in_rows",
    "in_chunks",
    "per_row",
    "per_state",
    "positions_first",
    "positions_of",
    "segment_decays",
    "span_of",
]


def in_chunks(t: Tensor, size: int) -> Tensor:
    """`(B, L, ...)` -> `(B, K, T, ...)`, with zeros after the last position."""
    return F.pad(t, [0, 0] * (t.dim() - 2) + [0, -t.shape[1] % size]).unflatten(1, (-1, size))


class Span(NamedTuple):
    """Some chunks of the tensors of `ChunkedSSD`.

    Attributes:
        x: `(B, K, T, G, R, P)`.
        d: `(B, K, T, G, R)`.
        B: `(B, G, K, T, N)`.
        C: `(B, G, K, T, N)`.
        logs: Logarithms of the decays `(B, G, R, K, T)`.
    """

    x: Tensor
    d: Tensor
    B: Tensor
    C: Tensor
    logs: Tensor

    @property
    def u(self) -> Tensor:
        return self.d.unsqueeze(-1) * self.x


def span_of(
    x: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, starts: Tensor | None, chunks: Callable[[Tensor], Tensor]
) -> Span:
    """The span of positions `(B, L, ...)`, which `chunks` divides into `(B, K, T, ...)`."""
    groups, heads = B.shape[2], x.shape[2]
    logs = d * A
    logs = logs if starts is None else logs.masked_fill(starts.unsqueeze(-1), -math.inf)
    B, C = (chunks(t).movedim(3, 1).contiguous() for t in (B, C))
    x, d, logs = (chunks(t).unflatten(3, (groups, heads // groups)) for t in (x, d, logs))
    return Span(x, d, B, C, logs.permute(0, 3, 4, 1, 2).contiguous())


# In batches of matrices the chunks are last: otherwise torch.export, for any length, cannot divide the batch again.


def heads_in_rows(t: Tensor) -> Tensor:
    """`(B, K, T, G, R, P)` -> `(B, G, K, T, R P)`."""
    return t.flatten(-2).movedim(3, 1)


def heads_apart(t: Tensor) -> Tensor:
    """`(B, K, T, G, R, P)` -> `(B, G, R, K, T, P)`."""
    return t.permute(0, 3, 4, 1, 2, 5)


def positions_first(t: Tensor) -> Tensor:
    """`(B, G, R, K, T, ...)` -> `(B, K, T, G, R, ...)`."""
    return t.movedim((3, 4), (1, 2))


def positions_of(rows: Tensor, heads: int) -> Tensor:
    """`(B, G, K, T, R P)` -> `(B, K, T, G, R, P)`."""
    return rows.movedim(1, 3).unflatten(-1, (heads, rows.shape[-1] // heads))


def per_row(t: Tensor) -> Tensor:
    """`(B, G, R, K, T)` -> `(B, K, T, G, R, 1)`, a factor for each head at each position."""
    return positions_first(t).unsqueeze(-1)


def per_state(t: Tensor, channels: int) -> Tensor:
    """`(B, G, R)` -> `(B, G, 1, R P)`, a factor for each head's state."""
    return t.repeat_interleave(channels, dim=-1).unsqueeze(-2)


def segment_decays(logs: Tensor) -> Tensor:
    """`exp(Σ_{j<k<=i} log_k)` `(..., T, T)` of `(..., T)`, 0 for j > i, differentiable in any mode.

    Sums are taken from the diagonal on: a difference of two sums would lose digits and undefine a reset (-inf).
    """
    size = logs.shape[-1]
    at = torch.arange(size, device=logs.device)
    later = at.unsqueeze(1) > at
    sums = logs.unsqueeze(-1).expand(*logs.shape, size).masked_fill(~later, 0).cumsum(-2)
    return torch.exp(sums.masked_fill(later.t(), -math.inf))
