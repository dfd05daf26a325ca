"""State space duality (SSD): a state space model with one decay per head, the scan of Mamba-2.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel.

With `d_t = softplus(dt_t + dt_bias)` (or without the softplus), clamped to `dt_limit`, for each head

    S_t = exp(d_t A) S_{t-1} + d_t x_t B_tᵀ,        y_t = S_t C_t + D x_t,

where `S` is `(P, N)`, `A` a number, and head h reads B and C of group `h // (H / G)`.

- `reference.py`: the loop over positions, and the scan as a matrix;
- `chunked.py`: PyTorch, quadratic within chunks, a scan over chunks;
- `numba*.py`: compiled kernels for CPUs;
- `step.py`: one position; `decoding.py` one position through all blocks of a Mamba-2 model.

Source: Dao & Gu 2024 (Mamba-2), Sections 5 and 6.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from hf_ssm.ops.backends import Compiled, Operation
from hf_ssm.ops.documents import document_starts
from hf_ssm.ops.ssd.arguments import SSDTensors, check_dt_limit, check_ssd_tensors, limited_steps, to_arithmetic
from hf_ssm.ops.ssd.chunked import chunked_ssd
from hf_ssm.ops.ssd.reference import loop_ssd, ssd_matrix, ssd_scan_reference
from hf_ssm.ops.ssd.step import ssd_step

__all__ = ["ssd_extend", "ssd_matrix", "ssd_scan", "ssd_scan_reference", "ssd_step"]

_SSD_SCAN = Operation(
    numba=Compiled("hf_ssm.ops.ssd.numba", "ssd_numba", "supports_ssd"),
    torch=chunked_ssd,
    reference=loop_ssd,
)


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
    seq_idx: Tensor | None = None,
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
        seq_idx: Index of the document at each position `(B, L)`, integers, default a single document. Where it changes
            along a row, the state is reset to zero; the initial state belongs to the first document of the row.
        chunk_size: Positions of a chunk, for the speed only; default: chosen by the implementation.
        return_last_state: Whether to return the state after the last position too.

    Returns:
        `y` `(B, L, H, P)` in the dtype of `x`, or `(y, last_state)` with `last_state` `(B, H, P, N)` in the dtype of
        the arithmetic: float64 if an argument is in double precision, else float32.

    Raises:
        ValueError: A shape does not fit, the sequence is empty, or `dt_limit` or `chunk_size` is out of range.
        TypeError: `seq_idx` does not hold integers, or another tensor no real floating point numbers.
    """
    args = SSDTensors(x, dt, A, B, C, D, dt_bias, initial_state)
    check_ssd_tensors(args)
    check_dt_limit(dt_limit)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None for an automatic choice, got {chunk_size}")
    starts = document_starts(seq_idx, x)
    # Implementations take x, B and C in their own dtype, or cast them by `in_dtype_of_steps`.
    dt, A, D, dt_bias, state = to_arithmetic(args.dtype, dt, A, D, dt_bias, initial_state)
    d = limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    y, last = _SSD_SCAN(x, d, A, B, C, D, state, starts, chunk_size)
    y = y.to(x.dtype)
    return (y, last) if return_last_state else y


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
        y, last = ssd_scan(x, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit, state, None, chunk_size, True)
        return y, last
    y, last = ssd_step(x[:, 0], dt[:, 0], A, B[:, 0], C[:, 0], state, D, dt_bias, dt_softplus, dt_limit)
    return y.unsqueeze(1), last
