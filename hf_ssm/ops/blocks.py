"""Blocks of a symbolic number of positions, for exported programs.

A program that `torch.export` records for any length may not compare sizes that depend on the length, as slices and
`unflatten` do. Indexing with a range compares none.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["block_count", "first_positions", "in_blocks"]


def first_positions(t: Tensor, dim: int, count: int) -> Tensor:
    """The first `count` positions along a dimension, which has at least as many."""
    return t.index_select(dim, torch.arange(count, device=t.device))


def block_count(length: int, size: int) -> int:
    """A number of blocks that hold `length` positions, with two more that hold none.

    Neither it nor one less is ever 1, which torch.export would take for a constant. For blocks of blocks, `size` is the
    product of both sizes: a quotient of quotients takes torch.export minutes.
    """
    return (length - 1) // size + 3


def in_blocks(t: Tensor, dim: int, size: int, count: int) -> Tensor:
    """`(..., L, ...)` -> `(..., count, size, ...)`, with zeros after the last position; `count` of `block_count`."""
    dim %= t.dim()
    padded = F.pad(t, [0, 0] * (t.dim() - 1 - dim) + [0, 3 * size])
    index = size * torch.arange(count, device=t.device).unsqueeze(1) + torch.arange(size, device=t.device)
    return padded[(slice(None),) * dim + (index,)]
