"""Norms by name, and the gated norm of Mamba-2.

Legend: `B` batch, `L` length, `D` hidden size (channels of the gated norm).
"""

import torch
from torch import Tensor, nn

__all__ = ["GatedRMSNorm", "MaskedBatchNorm", "build_norm", "normalized"]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the channels of `(B, L, D)`, with the statistics of the tokens that the mask keeps."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training:
            return super().forward(hidden_states.flatten(0, 1)).view_as(hidden_states)
        output = hidden_states.new_zeros(hidden_states.shape)
        output[mask] = super().forward(hidden_states[mask])
        return output


class GatedRMSNorm(nn.Module):
    """RMS norm of y ⊙ SiLU(z), or RMS norm of y times SiLU(z); the mean square is that of each group of channels.

    Args:
        channels: D.
        groups: Number of groups of consecutive channels.
        epsilon: ε, added to the mean square.
        norm_before_gate: Apply the gate to the output instead of the input.

    Source: Dao & Gu 2024 (Mamba-2), Section 7.
    """

    parameter_quantity = "norm"

    def __init__(self, channels: int, groups: int = 1, epsilon: float = 1e-5, norm_before_gate: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.groups, self.epsilon, self.norm_before_gate = groups, epsilon, norm_before_gate

    def initial_parameters(self) -> dict[str, Tensor]:
        """Initial values by name."""
        return {"weight": torch.ones(self.weight.shape)}

    def extra_repr(self) -> str:
        return f"{len(self.weight)}, groups={self.groups}, epsilon={self.epsilon}"

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:
        """`(B, L, D)` from y and z, both `(B, L, D)`; computed in float32 or better."""
        dtype = hidden_states.dtype
        precise = torch.promote_types(dtype, torch.float32)
        hidden_states, gate = hidden_states.to(precise), nn.functional.silu(gate.to(precise))
        if not self.norm_before_gate:
            hidden_states = hidden_states * gate
        grouped = hidden_states.unflatten(-1, (self.groups, -1))
        normed = nn.functional.rms_norm(grouped, grouped.shape[-1:], None, self.epsilon).flatten(-2)
        output = self.weight * normed.to(dtype)
        return output * gate.to(dtype) if self.norm_before_gate else output


def build_norm(config) -> nn.Module:
    """The norm of a configuration, for `normalized`.

    All but the batch norm are torch's own classes, which libraries for attributions and quantisation look up.
    """
    if config.norm_type == "none":
        return nn.Identity()
    kind = {"batch": MaskedBatchNorm, "layer": nn.LayerNorm, "rms": nn.RMSNorm}[config.norm_type]
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)


def normalized(norm: nn.Module, hidden_states: Tensor, mask: Tensor | None, norm_type: str) -> Tensor:
    """The norm of `(B, L, D)`; only batch norm needs the mask.

    Args:
        norm: A result of `build_norm`, or a wrapper around it.
        hidden_states: `(B, L, D)`.
        mask: `(B, L)` or `None`, true at tokens.
        norm_type: That of the configuration.
    """
    output: Tensor = norm(hidden_states, mask) if norm_type == "batch" else norm(hidden_states)
    return output
