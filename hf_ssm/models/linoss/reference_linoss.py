"""Plain recurrence of LinOSS and D-LinOSS, position by position.

Legend: `B` batch, `L` length, `D` input channels, `E` output channels, `S` oscillators.
"""

import torch
from torch import Tensor

from hf_ssm.ops.lti.discretize import zoh_dense

__all__ = ["linoss_reference", "oscillator_matrices"]


def oscillator_matrices(stiffness: Tensor, damping: Tensor, step: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """One step of velocity and position, (z, x) <- M (z, x) + f times the force b u.

    `"imex"`: (z_t - z_{t-1}) / Δ = -A x_{t-1} - G z_t + b u_t, then (x_t - x_{t-1}) / Δ = z_t. `"im"`: the same with
    x_t in place of x_{t-1}. `"zoh"`: the exact solution for a constant force.

    Args:
        stiffness, damping, step: A, G and Δ, one shape `(...)`.
        rule: `"imex"`, `"im"` or `"zoh"`.

    Returns:
        M `(..., 2, 2)` and f `(..., 2)`.

    Source: Rusch & Rus 2025, eqs. (3) and (4); Boyer, Rusch & Rus 2025, Section 3.
    """
    one, zero = torch.ones_like(step), torch.zeros_like(step)
    if rule == "zoh":
        rates = torch.stack([torch.stack([-damping, -stiffness], -1), torch.stack([one, zero], -1)], -2)
        return zoh_dense(rates, torch.stack([one, zero], -1), step)
    divisor = 1 + step * damping + (step.square() * stiffness if rule == "im" else 0)
    velocity = torch.stack([1 / divisor, -step * stiffness / divisor], -1)
    position = step.unsqueeze(-1) * velocity + torch.stack([zero, one], -1)
    force = step / divisor
    return torch.stack([velocity, position], -2), torch.stack([force, step * force], -1)


def linoss_reference(
    u: Tensor,
    stiffness: Tensor,
    damping: Tensor,
    step: Tensor,
    b: Tensor,
    c: Tensor,
    rule: str,
    time_deltas: Tensor | None = None,
) -> Tensor:
    """y = c x with z' = -A x - G z + b u and x' = z, from rest.

    Args:
        u: Inputs `(B, L, D)`.
        stiffness, damping, step: A, G and Δ, `(S,)` each.
        b: `(S, D)`.
        c: `(E, S)`.
        rule: As for `oscillator_matrices`.
        time_deltas: What Δ is multiplied by at each position, `(B, L)`; default 1.

    Returns:
        Outputs `(B, L, E)`.
    """
    state = u.new_zeros(u.shape[0], len(step), 2)
    outputs = []
    for t in range(u.shape[1]):
        steps = step.expand(len(u), -1) if time_deltas is None else step * time_deltas[:, t, None]
        matrix, force = oscillator_matrices(stiffness.expand(steps.shape), damping.expand(steps.shape), steps, rule)
        state = (matrix @ state.unsqueeze(-1)).squeeze(-1) + force * (u[:, t] @ b.T).unsqueeze(-1)
        outputs.append(state[..., 1] @ c.T)
    return torch.stack(outputs, dim=1)
