"""One position of the state space duality, for decoding.

Dimensions: `B` batch, `H` heads, `P` channels of a head, `G` groups of heads, `N` states per channel.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_ssm.ops.ssd.arguments import SSDTensors, check_dt_limit, check_ssd_tensors, limited_steps

__all__ = ["ssd_step"]


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
    args = SSDTensors(x, dt, A, B, C, D, dt_bias, state)
    check_ssd_tensors(args, axes="batch", state="state")
    check_dt_limit(dt_limit)
    dtype = x.dtype
    x, dt, A, B, C, D, dt_bias, state = args.cast(args.dtype)
    d = limited_steps(dt, dt_bias, dt_softplus, dt_limit)
    groups = B.shape[1]
    u = (d.unsqueeze(-1) * x).unflatten(1, (groups, -1))
    decay = torch.exp(d * A).unflatten(1, (groups, -1))[..., None, None]
    state = torch.addcmul(u.unsqueeze(-1) * B[:, :, None, None], decay, state.unflatten(1, (groups, -1)))
    y = (state * C[:, :, None, None]).sum(-1).flatten(1, 2)
    if D is not None:
        y = torch.addcmul(y, D.unsqueeze(-1) if D.dim() == 1 else D, x)
    return y.to(dtype), state.flatten(1, 2)
