"""The recurrence of Mamba-3 as a loop over positions, which `trapezoidal_scan` computes.

Legend: `B` batch, `L` length, `H` heads, `P` channels of a head, `N` states, `R` rank (inputs and outputs of each
state), `K` pairs of states that turn.
"""

import torch
from torch import Tensor

__all__ = ["mamba3_reference"]


def mamba3_reference(
    x: Tensor, alpha: Tensor, beta: Tensor, gamma: Tensor, angles: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """The outputs y_t,r = S_t C_t,r and the last state, with S_t = α_t S'_{t-1} + β_t X'_{t-1} + γ_t X_t.

    X_t = Σ_r x_t,r B_t,rᵀ; a prime turns the first K pairs of states by minus the angles at t.

    Args:
        x: Inputs `(B, L, R, H, P)`.
        alpha, beta, gamma: Weights of the state, of the last input and of the input, `(B, L, H)`.
        angles: `(B, L, H, K)`.
        B, C: `(B, L, R, H, N)`.

    Returns:
        `(B, L, R, H, P)` and `(B, H, P, N)`.

    Source: Lahoti et al. 2026 (Mamba-3), and its code in state-spaces/mamba.
    """
    pairs = angles.shape[-1]
    state = x.new_zeros(len(x), *x.shape[3:], B.shape[-1])
    last, outputs = torch.zeros_like(state), []
    for t in range(x.shape[1]):
        cosine, sine = (values[:, :, None] for values in (angles[:, t].cos(), angles[:, t].sin()))
        turned = []
        for matrix in (state, last):
            even, odd, rest = matrix[..., : 2 * pairs : 2], matrix[..., 1 : 2 * pairs : 2], matrix[..., 2 * pairs :]
            both = torch.stack([cosine * even + sine * odd, cosine * odd - sine * even], dim=-1).flatten(-2)
            turned.append(torch.cat([both, rest], dim=-1))
        last = (x[:, t, ..., None] * B[:, t, :, :, None]).sum(1)
        weights = (values[:, t, :, None, None] for values in (alpha, beta, gamma))
        state = sum((weight * matrix for weight, matrix in zip(weights, (*turned, last), strict=True)), 0 * state)
        outputs.append((state[:, None] * C[:, t, :, :, None]).sum(-1))
    return torch.stack(outputs, dim=1), state
