"""Selective scan: a diagonal state space model whose step, input weights and output weights vary along the sequence.

Dimensions: `B` batch, `L` length, `D` channels, `N` stored states per channel.

With `d_t = softplus(delta_t + delta_bias)` (or without the softplus),

    x_t = exp(d_t A) x_{t-1} + d_t B_t u_t,        y_t = (Σ_n C_t x_t + D u_t) SiLU(z_t).

Of complex states one of each conjugate pair is stored, and the sum is `2 Re Σ_n C_t x_t`.

- `reference.py`: the loop over positions, and the scan as a matrix;
- `chunked.py`: PyTorch, in chunks whose states the backward recomputes;
- `numba*.py`: compiled kernels for CPUs;
- `hub.py`: mamba_ssm's CUDA kernel, for GPUs;
- `step.py`: one position; `decoding.py` one position through all blocks of a Mamba model.

Sources: Gu & Dao 2023 (Mamba), eq. (2) and Algorithm 2, with `d B` as the discretised B; Honarpisheh et al. 2025, eqs.
(8), (13) and (14), for a step that all channels share.
"""

from typing import Any

from torch import Tensor

from hf_ssm.ops.backends import Compiled, Implementation, Operation
from hf_ssm.ops.selective_scan.arguments import ScanTensors, check_scan_tensors
from hf_ssm.ops.selective_scan.chunked import chunked_scan
from hf_ssm.ops.selective_scan.hub import hub_scan, hub_selective_scan, supports_hub_scan
from hf_ssm.ops.selective_scan.reference import loop_scan, scan_matrix, selective_scan_reference
from hf_ssm.ops.selective_scan.step import selective_scan_step

__all__ = [
    "hub_selective_scan",
    "scan_matrix",
    "selective_scan",
    "selective_scan_extend",
    "selective_scan_reference",
    "selective_scan_step",
]

_SELECTIVE_SCAN = Operation(
    hub=Implementation(hub_scan, supports_hub_scan),
    numba=Compiled("hf_ssm.ops.selective_scan.numba", "scan_numba", "supports_scan"),
    torch=chunked_scan,
    reference=loop_scan,
)


def selective_scan(
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
    """The selective scan of the module's docstring, differentiable in every argument.

    The compiled kernel and the chunked scan keep the states at some boundaries for the backward and recompute the
    others, so that no tensor of `B L D N` numbers is ever allocated; forward-mode differentiation and transforms of
    `torch.func` do allocate them.

    Args:
        u: Input `(B, L, D)`, `L >= 1`.
        delta: Step sizes before bias and softplus, `(B, L, D)`, or `(B, L, 1)` for a step that all channels share.
        A: State matrix `(D, N)`, real or complex; positive entries grow and are not clamped.
        B: Input weights `(B, L, N)`, complex if and only if `A` is; so are `C` and `initial_state`.
        C: Output weights `(B, L, N)`.
        D: Skip `(D,)`, default none.
        z: Gate before its SiLU `(B, L, D)`, default none.
        delta_bias: `(D,)`, or `(1,)` for a shared step, default none.
        delta_softplus: Whether to apply the softplus to `delta + delta_bias`.
        initial_state: State before the first position `(B, D, N)`, default zero.
        return_last_state: Whether to return the state after the last position too.

    Returns:
        `y` `(B, L, D)` in the dtype of `u`, or `(y, last_state)` with `last_state` `(B, D, N)` in the dtype of the
        arithmetic: float64 if an argument is in double precision, else float32 (complex with complex `A`).

    Raises:
        ValueError: Shapes or types do not fit, the sequence is empty, or complex and real arguments are mixed.
    """
    args = ScanTensors(u, delta, A, B, C, D, z, delta_bias, initial_state)
    check_scan_tensors(args)
    y, last = _SELECTIVE_SCAN(args, delta_softplus, return_last_state)
    return (y, last) if return_last_state else y


def selective_scan_extend(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    delta_softplus: bool,
    state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state of the next chunk of a sequence; arguments as of `selective_scan`."""
    if u.shape[1] > 1 or state is None:
        y, last = selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, state, return_last_state=True)
        return y, last
    z = None if z is None else z[:, 0]
    y, last = selective_scan_step(u[:, 0], delta[:, 0], A, B[:, 0], C[:, 0], state, D, z, delta_bias, delta_softplus)
    return y.unsqueeze(1), last
