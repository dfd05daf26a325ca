"""State space duality (SSD): a state space model with one decay per head, the scan of Mamba-2.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel.

With `d_t = softplus(dt_t + dt_bias)` (or without the softplus), clamped to `dt_limit`, for each head

    S_t = exp(d_t A) S_{t-1} + d_t x_t B_tᵀ,        y_t = S_t C_t + D x_t,

where `S` is `(P, N)`, `A` a number, and head h reads B and C of group `h // (H / G)`.

Sources: Dao & Gu 2024 (Mamba-2), Sections 5 and 6; Honarpisheh et al. 2025, eq. (20), for the matrix.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.arguments import arithmetic_dtype, check_shapes, in_arithmetic
from hf_ssm.ops.blocks import block_count, first_positions, in_blocks
from hf_ssm.ops.context import is_exporting, no_autocast, recomputed
from hf_ssm.ops.linear_scan import linear_scan
from hf_ssm.ops.sharing import current

__all__ = ["ssd_extend", "ssd_matrix", "ssd_scan", "ssd_scan_reference", "ssd_step"]

# The products with states cost the same for every size; those within chunks grow with it. On a CPU longer chunks than
# this are slower in any case; on an accelerator they take fewer calls.
_CHUNK = 64


def ssd_scan(
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
    chunk_size: int | None = None,
    return_last_state: bool = False,
) -> Any:
    """The scan of the module's docstring, differentiable in every floating point argument.

    Args:
        x: Input `(B, L, H, P)`, `L >= 1`.
        dt: Step sizes before bias and softplus `(B, L, H)`.
        A: Decay rates `(H,)`; positive entries grow and are not clamped.
        B: Input weights `(B, L, G, N)`.
        C: Output weights `(B, L, G, N)`.
        D: Skip `(H,)` or `(H, P)`, default none.
        dt_bias: `(H,)`, default none.
        dt_softplus: Whether to apply the softplus to `dt + dt_bias`.
        dt_limit: Least and greatest step size `d`; default from 0 upwards.
        initial_state: State before the first position `(B, H, P, N)`, default zero.
        chunk_size: Positions of a chunk, for the speed only; default: chosen by the implementation.
        return_last_state: Whether to return the state after the last position too.

    Returns:
        `y` `(B, L, H, P)` in the dtype of `x`, or `(y, last_state)` with `last_state` `(B, H, P, N)` in the dtype of
        the arithmetic: float64 if an argument is in double precision, else float32.

    Raises:
        ValueError: A shape does not fit, the sequence is empty, or `dt_limit` or `chunk_size` is out of range.
        TypeError: A tensor holds no real floating point numbers.
    """
    _check("batch, length", x, dt, A, B, C, D, dt_bias, initial_state, dt_limit)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None for an automatic choice, got {chunk_size}")
    if current.layout is not None:
        settings: dict[str, Any] = {
            "dt_bias": dt_bias,
            "dt_softplus": dt_softplus,
            "dt_limit": dt_limit,
            "chunk_size": chunk_size,
        }
        run = partial(ssd_scan, x, dt, A, B, C, D, **settings, return_last_state=True)
        logs = _limited_steps(dt, dt_bias, dt_softplus, dt_limit) * A
        y, last = current.layout.scan(lambda state: run(initial_state=state), torch.exp(logs.sum(1))[..., None, None])
        return (y, last) if return_last_state else y
    out_dtype = x.dtype
    dtype = arithmetic_dtype(x, dt, A, B, C, D, dt_bias, initial_state)
    x, dt, A, B, C, D, dt_bias, state = in_arithmetic(dtype, x, dt, A, B, C, D, dt_bias, initial_state)
    d = _limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    state = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[3]) if state is None else state
    size = _CHUNK if chunk_size is None or (chunk_size > _CHUNK and x.device.type == "cpu") else chunk_size
    with no_autocast(x.device):
        size = size if is_exporting() else 1 << (min(x.shape[1], size) - 1).bit_length()
        y, last = recomputed(partial(_scan_in_chunks, size=size), x, d, d * A, B, C, state)
        y = _with_skip(y, D, x).to(out_dtype)
    return (y, last) if return_last_state else y


def _in_chunks(t: Tensor, size: int) -> Tensor:
    """`(B, L, ...)` -> `(B, K, T, ...)`, with zeros after the last position."""
    if is_exporting():
        return in_blocks(t, 1, size, block_count(t.shape[1], size))
    return F.pad(t, [0, 0] * (t.dim() - 2) + [0, -t.shape[1] % size]).unflatten(1, (-1, size))


def _segment_decays(logs: Tensor) -> Tensor:
    """`exp(Σ_{j<k<=i} log_k)` `(..., T, T)` of `(..., T)`, 0 for j > i.

    Sums are taken from the diagonal on: a difference of two sums would lose digits and undefine a reset (-inf).
    """
    sums = logs.unsqueeze(-1).expand(*logs.shape, logs.shape[-1]).tril(-1).cumsum(-2)
    return torch.exp(sums).tril()


def _scan_in_chunks(
    x: Tensor, d: Tensor, logs: Tensor, B: Tensor, C: Tensor, state: Tensor, *, size: int
) -> tuple[Tensor, Tensor]:
    """The output without skip, `(B, L, H, P)`, and the last state `(B, H, P, N)`.

    It is quadratic within chunks, and a linear scan over chunks; `logs` `(B, L, H)` are the logarithms of the decays.
    Within a chunk of T positions, with `u_j = d_j x_j`, the decay `l_ij` from position j to i, `p_i` from the state
    before the chunk to position i and `r_j` from position j to its end,

        y_i = Σ_{j<=i} l_ij (C_i · B_j) u_j + p_i S C_i,        S' = p_T S + Σ_j r_j u_j B_jᵀ.

    Dimensions: `R = H / G` heads of a group, `K` chunks.
    """
    groups, length = B.shape[2], x.shape[1]
    # (B, G, K, T, N), (B, G, K, T, R, P) and (B, G, R, K, T). In batches of matrices the chunks are last: otherwise
    # torch.export, for any length, cannot divide the batch again.
    B, C = (_in_chunks(t, size).movedim(3, 1) for t in (B, C))
    u, logs = (_in_chunks(t, size).unflatten(3, (groups, -1)).movedim(3, 1) for t in (d.unsqueeze(-1) * x, logs))
    logs = logs.movedim(4, 2)
    decay, from_start = _segment_decays(logs), torch.exp(logs.cumsum(-1))
    inside = ((C @ B.mT).unsqueeze(2) * decay) @ u.movedim(4, 2)
    # Products with states are those of all heads of a group at once.
    added = (decay[..., -1, :].movedim(2, 4).unsqueeze(-1) * u).flatten(4).mT @ B
    factor = from_start[..., -1].movedim(3, 1).flatten(2)[..., None, None]
    after = linear_scan(factor, added.movedim(2, 1).reshape(*factor.shape[:3], *state.shape[2:]), state)
    before = torch.cat([state.unsqueeze(1), after[:, :-1]], dim=1).unflatten(2, (groups, -1)).flatten(3, 4)
    across = (C @ before.movedim(2, 1).mT).unflatten(4, u.shape[4:]) * from_start.movedim(2, 4).unsqueeze(-1)
    y = (across.movedim(4, 2) + inside).permute(0, 3, 4, 1, 2, 5).flatten(3, 4).flatten(1, 2)
    y = first_positions(y, 1, length) if is_exporting() else y[:, :length]
    return y, after[:, -1]


def ssd_extend(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor | None,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Sequence[float] = (0.0, math.inf),
    chunk_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state of the next chunk of a sequence; arguments as of `ssd_scan`."""
    if x.shape[1] > 1 or state is None:
        y, last = ssd_scan(x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit, state, chunk_size, True)
        return y, last
    y, last = ssd_step(x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], state, D, dt_bias, dt_softplus, dt_limit)
    return y.unsqueeze(1), last


def ssd_step(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: Sequence[float] = (0.0, math.inf),
) -> tuple[Tensor, Tensor]:
    """One position of `ssd_scan`, differentiable in every argument.

    Args:
        x: Input `(B, H, P)`.
        dt: Step sizes before bias and softplus `(B, H)`.
        A: `(H,)`.
        B: `(B, G, N)`.
        C: `(B, G, N)`.
        state: State before the position `(B, H, P, N)`; not modified.
        D: `(H,)` or `(H, P)`, default none.
        dt_bias: `(H,)`, default none.
        dt_softplus: As in `ssd_scan`.
        dt_limit: As in `ssd_scan`.

    Returns:
        `y` `(B, H, P)` in the dtype of `x`, and the new state `(B, H, P, N)` in the dtype of the arithmetic.

    Raises:
        ValueError: As in `ssd_scan`.
        TypeError: As in `ssd_scan`.
    """
    _check("batch", x, dt, A, B, C, D, dt_bias, state, dt_limit)
    out_dtype, dtype = x.dtype, arithmetic_dtype(x, dt, A, B, C, D, dt_bias, state)
    x, dt, A, B, C, D, dt_bias, state = in_arithmetic(dtype, x, dt, A, B, C, D, dt_bias, state)
    d = _limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    groups = B.shape[1]
    u = (d.unsqueeze(-1) * x).unflatten(1, (groups, -1))
    decay = torch.exp(d * A).unflatten(1, (groups, -1))[..., None, None]
    state = torch.addcmul(u.unsqueeze(-1) * B[:, :, None, None], decay, state.unflatten(1, (groups, -1)))
    y = (state * C[:, :, None, None]).sum(-1).flatten(1, 2)
    return _with_skip(y, D, x).to(out_dtype), state.flatten(1, 2)


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
    chunk_size: int | None = None,
    return_last_state: bool = False,
) -> Any:
    """`ssd_scan` as a loop over positions; same arguments."""
    _check("batch, length", x, dt, A, B, C, D, dt_bias, initial_state, dt_limit)
    out_dtype = x.dtype
    dtype = arithmetic_dtype(x, dt, A, B, C, D, dt_bias, initial_state)
    x, dt, A, B, C, D, dt_bias, state = in_arithmetic(dtype, x, dt, A, B, C, D, dt_bias, initial_state)
    d = _limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    B, C = (t.repeat_interleave(x.shape[2] // B.shape[2], dim=2) for t in (B, C))
    state = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1]) if state is None else state
    rows = []
    for t in range(x.shape[1]):
        decay = torch.exp(d[:, t] * A)[:, :, None, None]
        state = decay * state + (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        rows.append((state * C[:, t, :, None]).sum(-1))
    y = _with_skip(torch.stack(rows, dim=1), D, x).to(out_dtype)
    return (y, state) if return_last_state else y


def ssd_matrix(dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None) -> Tensor:
    """The scan as a matrix for each head that multiplies its input, `y = M x`: its attention matrix.

    `M[t, j] = C_t B_jᵀ exp(A Σ_{j<k<=t} d_k) d_j` for `j <= t`, plus `D` on the diagonal. It takes a few tensors of
    `B H L L` numbers in float64, independent of `N` and `P`.

    Args:
        dt: Step sizes as they enter the recurrence, after bias, softplus and clamp, `(B, L, H)`.
        A: `(H,)`.
        B: `(B, L, G, N)`.
        C: `(B, L, G, N)`.
        D: `(H,)`, default none; a skip for each channel has no common matrix.

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
    _check("batch, length", x, dt, A, B, C, D, None, None, (0.0, math.inf))
    dtype = arithmetic_dtype(dt, A, B, C, D)
    dt, A, B, C, D = in_arithmetic(torch.float64, dt, A, B, C, D)
    d = dt.transpose(1, 2)
    total = (d * A.unsqueeze(-1)).cumsum(-1)
    # Above the diagonal the sums would be negative, and the exponentials of a stable A might overflow.
    decay = torch.exp((total.unsqueeze(-1) - total.unsqueeze(-2)).tril())
    weight = C.transpose(1, 2) @ B.permute(0, 2, 3, 1)
    matrix = (decay * weight.repeat_interleave(d.shape[1] // B.shape[2], dim=1) * d.unsqueeze(-2)).tril()
    if D is not None:
        matrix = matrix + torch.diag_embed(D.unsqueeze(-1).expand(-1, d.shape[-1]))
    return matrix.to(dtype)


def _check(
    axes: str,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    state: Tensor | None,
    dt_limit: Sequence[float],
) -> None:
    """Raise an error where shapes or types do not fit; `axes` are those before the heads."""
    lead_axes, initial = axes.count(",") + 1, "state" if axes == "batch" else "initial_state"
    if x.dim() != lead_axes + 2 or 0 in x.shape[1:]:
        meaning = f"({axes}, heads, head_dim) with sizes of at least 1 after the batch"
        raise ValueError(f"x must have shape {meaning}, got {tuple(x.shape)}")
    *lead, heads, size = x.shape
    if B.dim() != lead_axes + 2 or 0 in B.shape[-2:] or heads % B.shape[-2]:
        meaning = f"({axes}, groups, states) with a number of groups that divides the {heads} heads of x"
        raise ValueError(f"B must have shape {meaning}, got {tuple(B.shape)}")
    weights, states = (*lead, *B.shape[-2:]), B.shape[-1]
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "dt_bias": dt_bias, initial: state}
    check_shapes(
        tensors,
        {
            **{"dt": [(*lead, heads)], "A": [(heads,)], "B": [weights], "C": [weights], "dt_bias": [(heads,)]},
            **{"D": [(heads,), (heads, size)], initial: [(lead[0], heads, size, states)]},
        },
    )
    for name, value in tensors.items():
        if value is not None and not value.is_floating_point():
            raise TypeError(f"{name} must be of a real floating point type, got {value.dtype}")
    if len(dt_limit) != 2 or not dt_limit[0] <= dt_limit[1]:
        raise ValueError(f"dt_limit must be a pair (low, high) with low <= high, got {dt_limit!r}")


def _with_skip(y: Tensor, D: Tensor | None, x: Tensor) -> Tensor:
    return y if D is None else torch.addcmul(y, D.unsqueeze(-1) if D.dim() == 1 else D, x)


def _limited_steps(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dt_limit: Sequence[float]) -> Tensor:
    """`d = softplus(dt + dt_bias)`, or without the softplus, clamped to `dt_limit`."""
    low, high = dt_limit
    dt = dt if dt_bias is None else dt + dt_bias
    if dt_softplus:
        dt = F.softplus(dt)
    if low > 0 or not dt_softplus:
        dt = dt.clamp(min=low)
    return dt if high == math.inf else dt.clamp(max=high)
