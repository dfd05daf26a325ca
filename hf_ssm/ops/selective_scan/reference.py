"""The selective scan as a loop over positions, and as an explicit matrix.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel.
"""

from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.selective_scan.arguments import (
    ScanTensors,
    check_scan_tensors,
    complex_or_real_exp,
    step_sizes,
    sum_over_states,
)

__all__ = ["loop_scan", "scan_matrix", "selective_scan_reference"]


def loop_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """The output and the last state."""
    u, delta, A, B, C, D, z, delta_bias, state = args.cast(args.dtype)
    state = A.new_zeros(len(u), *A.shape) if state is None else state
    d = step_sizes(delta, delta_bias, delta_softplus)
    rows = []
    for t in range(u.shape[1]):
        state = torch.exp(d[:, t, :, None] * A) * state + (d[:, t] * u[:, t])[:, :, None] * B[:, t, None]
        rows.append(sum_over_states(C[:, t, None], state))
    y = torch.stack(rows, dim=1)
    y = y if D is None else y + D * u
    y = y if z is None else y * z * torch.sigmoid(z)
    return y.to(args.u.dtype), state


def selective_scan_reference(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
) -> Any:
    """`selective_scan` as a loop over positions; same arguments."""
    args = ScanTensors(u, delta, A, B, C, D, z, delta_bias, initial_state)
    check_scan_tensors(args)
    y, last = loop_scan(args, delta_softplus, return_last_state)
    return (y, last) if return_last_state else y


def scan_matrix(delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None) -> Tensor:
    """The scan without gate as a matrix that multiplies its input, `y = M u`: its attention matrix.

    `M[t, j] = Σ_n C_t exp(A Σ_{j<k<=t} d_k) d_j B_j` for `j <= t` (for complex states `2 Re Σ_n`), plus `D` on the
    diagonal. It takes a few tensors of `B D L L` numbers in float64, independent of `N`.

    Args:
        delta: Step sizes as they enter the recurrence, after bias and softplus, `(B, L, D)` or `(B, L, 1)`.
        A: `(D, N)`.
        B: `(B, L, N)`.
        C: `(B, L, N)`.
        D: `(D,)`, default none.

    Returns:
        `(B, D, L, L)`, lower triangular, float64 if an argument is in double precision, else float32.

    Raises:
        ValueError: As in `selective_scan`.

    Source: Honarpisheh et al. 2025, eq. (20), there delayed by one position; here, as in the authors' code, the
    output depends on the current input.
    """
    if delta.dim() != 3 or delta.shape[1] < 1:
        raise ValueError(f"delta must have shape (batch, length >= 1, channels or 1), got {tuple(delta.shape)}")
    args = ScanTensors(delta.new_zeros(()).expand(*delta.shape[:2], len(A)), delta, A, B, C, D)
    check_scan_tensors(args)
    _, delta, A, B, C, D, *_ = args.cast(torch.float64)
    d = delta.transpose(1, 2)
    total = d.cumsum(-1)
    # Above the diagonal the sums would be negative, and the exponentials of a stable A might overflow.
    span = (total.unsqueeze(-1) - total.unsqueeze(-2)).tril()
    matrix = torch.zeros((), dtype=torch.float64, device=delta.device)
    for n in range(A.shape[1]):
        weight = C[:, None, :, None, n] * B[:, None, None, :, n]
        term = complex_or_real_exp(span, A[:, None, None, n]) * weight
        matrix = matrix + (2 * term.real if term.is_complex() else term)
    matrix = (matrix * d.unsqueeze(-2)).tril()
    if D is not None:
        matrix.diagonal(dim1=-2, dim2=-1).add_(D.unsqueeze(-1))
    return matrix.to(args.dtype)
