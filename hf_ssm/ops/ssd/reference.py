"""The state space duality as a loop over positions, and as an explicit matrix.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.documents import document_starts
from hf_ssm.ops.ssd.arguments import (
    SSDTensors,
    check_dt_limit,
    check_ssd_tensors,
    in_dtype_of_steps,
    limited_steps,
)

__all__ = ["loop_ssd", "ssd_matrix", "ssd_scan_reference"]


@in_dtype_of_steps
def loop_ssd(
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
    """The output and the last state; the arguments of all implementations.

    Args:
        x: `(B, L, H, P)`; like B and C also in half precision. All other tensors but `starts` are in the dtype of the
            arithmetic.
        d: Step sizes as they enter the recurrence `(B, L, H)`.
        A: `(H,)`.
        B: `(B, L, G, N)`.
        C: `(B, L, G, N)`.
        D: `(H,)`, `(H, P)` or `None`.
        state: State before the first position `(B, H, P, N)`; `None` for zero.
        starts: Whether the state is reset before a position `(B, L)`; `None` for nowhere.
        chunk_size: Positions of a chunk, without effect on a loop.
    """
    heads = x.shape[2] // B.shape[2]
    B, C = (t.repeat_interleave(heads, dim=2) for t in (B, C))
    state = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]) if state is None else state
    rows = []
    for t in range(x.shape[1]):
        if starts is not None:
            state = state.masked_fill(starts[:, t, None, None, None], 0)
        decay = torch.exp(d[:, t] * A)[:, :, None, None]
        state = decay * state + (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        rows.append((state * C[:, t, :, None]).sum(-1))
    y = torch.stack(rows, dim=1)
    if D is not None:
        y = y + (D.unsqueeze(-1) if D.dim() == 1 else D) * x
    return y, state


def ssd_scan_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Sequence[float] = (0.0, math.inf),
    initial_state: Tensor | None = None,
    seq_idx: Tensor | None = None,
    chunk_size: int | None = None,
    return_last_state: bool = False,
) -> Any:
    """`ssd_scan` as a loop over positions; same arguments."""
    args = SSDTensors(x, dt, A, B, C, D, dt_bias, initial_state)
    check_ssd_tensors(args)
    check_dt_limit(dt_limit)
    starts, out_dtype = document_starts(seq_idx, x), x.dtype
    x, dt, A, B, C, D, dt_bias, state = args.cast(args.dtype)
    d = limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    y, last = loop_ssd(x, d, A, B, C, D, state, starts, chunk_size)
    y = y.to(out_dtype)
    return (y, last) if return_last_state else y


def ssd_matrix(
    dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, seq_idx: Tensor | None = None
) -> Tensor:
    """The scan as a matrix for each head that multiplies its input, `y = M x`: its attention matrix.

    `M[t, j] = C_t B_jᵀ exp(A Σ_{j<k<=t} d_k) d_j` for `j <= t`, plus `D` on the diagonal. It takes a few tensors of
    `B H L L` numbers in float64, independent of `N` and `P`.

    Args:
        dt: Step sizes as they enter the recurrence, after bias, softplus and clamp, `(B, L, H)`.
        A: `(H,)`.
        B: `(B, L, G, N)`.
        C: `(B, L, G, N)`.
        D: `(H,)`, default none; a skip for each channel has no common matrix.
        seq_idx: As in `ssd_scan`.

    Returns:
        `(B, H, L, L)`, lower triangular, float64 if an argument is in double precision, else float32.

    Raises:
        ValueError: As in `ssd_scan`, or `D` is not of shape `(H,)`.

    Source: Honarpisheh et al. 2025, eq. (20), there delayed by one position; Dao & Gu 2024, eq. (7).
    """
    if dt.dim() != 3 or dt.shape[1] < 1:
        raise ValueError(f"dt must have shape (batch, length >= 1, heads), got {tuple(dt.shape)}")
    if D is not None and D.dim() != 1:
        raise ValueError(f"D must have shape (heads,) for one matrix of all channels of a head, got {tuple(D.shape)}")
    x = dt.new_zeros(()).expand(*dt.shape, 1)
    args = SSDTensors(x, dt, A, B, C, D)
    check_ssd_tensors(args)
    starts = document_starts(seq_idx, x)
    _, dt, A, B, C, D, *_ = args.cast(torch.float64)
    d = dt.transpose(1, 2)
    total = (d * A.unsqueeze(-1)).cumsum(-1)
    # Above the diagonal the sums would be negative, and the exponentials of a stable A might overflow.
    decay = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).tril())
    weight = C.transpose(1, 2) @ B.permute(0, 2, 3, 1)
    matrix = decay * weight.repeat_interleave(d.shape[1] // B.shape[2], dim=1) * d.unsqueeze(-2)
    if starts is not None:
        document = starts.cumsum(-1)
        matrix = matrix * (document.unsqueeze(-1) == document.unsqueeze(-2)).unsqueeze(1)
    matrix = matrix.tril()
    if D is not None:
        matrix = matrix + torch.diag_embed(D.unsqueeze(-1).expand(-1, d.shape[-1]))
    return matrix.to(args.dtype)
