"""One position of the selective scan, for decoding.

Dimensions: `B` batch, `D` channels, `N` stored states per channel.
"""

import torch
from torch import Tensor

from hf_ssm.ops.selective_scan.arguments import (
    ScanTensors,
    check_scan_tensors,
    complex_or_real_exp,
    skip_and_gate,
    step_sizes,
    sum_over_states,
)

__all__ = ["selective_scan_step"]


def selective_scan_step(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:
    """One position of `selective_scan`.

    Args:
        u: Input `(B, D)`.
        delta: `(B, D)` or `(B, 1)`.
        A: `(D, N)`.
        B: `(B, N)`.
        C: `(B, N)`.
        state: State before the position `(B, D, N)`, complex if `A` is; not modified.
        D: `(D,)`, default none.
        z: `(B, D)`, default none.
        delta_bias: `(D,)`, or `(1,)` for a shared step size, default none.
        delta_softplus: As in `selective_scan`.

    Returns:
        `y` `(B, D)` in the dtype of `u`, and the new state `(B, D, N)` in the dtype of the arithmetic.

    Raises:
        ValueError: As in `selective_scan`.
    """
    args = ScanTensors(u, delta, A, B, C, D, z, delta_bias, state)
    check_scan_tensors(args, axes="batch", state="state")
    dtype = u.dtype
    u, delta, A, B, C, D, z, delta_bias, state = args.cast(args.dtype)
    d = step_sizes(delta, delta_bias, delta_softplus)
    decay = complex_or_real_exp(d.unsqueeze(-1), A)
    state = torch.addcmul((d * u).unsqueeze(-1) * B.unsqueeze(1), decay, state)
    return skip_and_gate(sum_over_states(C.unsqueeze(1), state), u, D, z).to(dtype), state
