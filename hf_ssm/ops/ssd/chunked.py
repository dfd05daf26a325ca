"""The state space duality in PyTorch, in chunks: quadratic within a chunk, a recurrence of states between chunks.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `R = H / G` heads of a group,
`N` states per channel, `K` chunks, `T` positions of a chunk.

Within a chunk, with `u_j = d_j x_j`, the decay `l_ij` from position j to i, `p_i` from the state before the chunk to
position i and `r_j` from position j to its end,

    y_i = Σ_{j<=i} l_ij (C_i · B_j) u_j + p_i S C_i,        S' = p_T S + Σ_j r_j u_j B_jᵀ.

Source: Dao & Gu 2024, Section 6.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.context import is_exporting, no_autocast, recomputed
from hf_ssm.ops.linear_scan import plain_scan
from hf_ssm.ops.ssd.arguments import in_dtype_of_steps

__all__ = ["chunked_ssd"]

# The products with states cost the same for every size; those within chunks grow with it. On a CPU longer chunks than
# this are slower in any case; on an accelerator they take fewer calls.
_CHUNK = 64


def _in_chunks(t: Tensor, size: int) -> Tensor:
    """`(B, L, ...)` -> `(B, K, T, ...)`, with zeros after the last position."""
    if is_exporting():
        return in_blocks(t, 1, size, block_count(t.shape[1], size))
    return F.pad(t, [0, 0] * (t.dim() - 2) + [0, -t.shape[1] % size]).unflatten(1, (-1, size))


def _segment_decays(logs: Tensor) -> Tensor:
    """`exp(Σ_{j<k<=i} log_k)` `(..., T, T)` of `(..., T)`, 0 for j > i.

    Sums are taken from the diagonal on: a difference of two sums would lose digits and undefine a reset (-inf).
    """
    size = logs.shape[-1]
    at = torch.arange(size, device=logs.device)
    later = at.unsqueeze(1) > at
    sums = logs.unsqueeze(-1).expand(*logs.shape, size).masked_fill(~later, 0).cumsum(-2)
    # The exponent is masked first: above the diagonal it would overflow, and its gradient would be NaN.
    return torch.exp(sums.masked_fill(later.t(), -math.inf))


def _scan_in_chunks(
    x: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, starts: Tensor | None, *, size: int
) -> tuple[Tensor, Tensor]:
    """The output without skip, `(B, L, H, P)`, and the last state `(B, H, P, N)`."""
    groups, length = B.shape[2], x.shape[1]
    logs = d * A
    logs = logs if starts is None else logs.masked_fill(starts.unsqueeze(-1), -math.inf)
    B, C = (_in_chunks(t, size).movedim(3, 1) for t in (B, C))
    u, logs = (_in_chunks(t, size).unflatten(3, (groups, -1)) for t in (d.unsqueeze(-1) * x, logs))
    # (B, G, R, K, T, P), (B, G, R, K, T) and (B, G, K, T, N). In batches of matrices the chunks are last: otherwise
    # torch.export, for any length, cannot divide the batch again.
    u, logs = u.permute(0, 3, 4, 1, 2, 5), logs.permute(0, 3, 4, 1, 2)
    decay, from_start = _segment_decays(logs), torch.exp(logs.cumsum(-1)).unsqueeze(-1)
    inside = ((C @ B.mT).unsqueeze(2) * decay) @ u
    added = (decay[..., -1, :].unsqueeze(-1) * u).mT @ B.unsqueeze(2)
    # The scan over chunks, (B, K, G R P, N).
    added, factor = (t.movedim(3, 1).flatten(2, 4) for t in (added, from_start[..., -1:, :].expand_as(added[..., :1])))
    after = plain_scan(factor, added, state.flatten(1, 2))
    before = torch.cat([state.flatten(1, 2).unsqueeze(1), after[:, :-1]], dim=1)
    before = before.unflatten(2, (*u.shape[1:3], -1)).movedim(1, 3)
    y = inside + from_start * (C.unsqueeze(2) @ before.mT)
    y = y.permute(0, 3, 4, 1, 2, 5).flatten(3, 4).flatten(1, 2)
    y = first_positions(y, 1, length) if is_exporting() else y[:, :length]
    return y, after[:, -1].view(state.shape)


@in_dtype_of_steps
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
    size = _CHUNK if chunk_size is None or (chunk_size > _CHUNK and x.device.type == "cpu") else chunk_size
    if not is_exporting():
        size = 1 << (min(x.shape[1], size) - 1).bit_length()
    with no_autocast(x.device):
        if state is None:
            state = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[3])
        y, last = recomputed(partial(_scan_in_chunks, size=size), x, d, A, B, C, state, starts)
        y = y if D is None else torch.addcmul(y, D.unsqueeze(-1) if D.dim() == 1 else D, x)
    return y, last
