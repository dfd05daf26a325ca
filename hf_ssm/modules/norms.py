"""Norms by name.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from torch import Tensor, nn

__all__ = ["LayerNorm", "MaskedBatchNorm", "NoNorm", "RMSNorm", "build_norm"]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the channels of `(B, L, D)`, with the statistics of the tokens that the mask keeps."""

    parameter_quantity = "norm"

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training:
            return super().forward(hidden_states.flatten(0, 1)).view_as(hidden_states)
        output = hidden_states.new_zeros(hidden_states.shape)
        output[mask] = super().forward(hidden_states[mask])
        return output


class LayerNorm(nn.LayerNorm):
    """Layer norm that takes (and does not need) the mask."""

    parameter_quantity = "norm"

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states)


class RMSNorm(nn.RMSNorm):
    """RMS norm that takes (and does not need) the mask."""

    parameter_quantity = "norm"

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states)


class NoNorm(nn.Module):
    """Identity with the interface of a norm."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        return hidden_states


def build_norm(config) -> nn.Module:
    """The norm of a configuration, called with `(B, L, D)` and the mask."""
    if config.norm_type == "none":
        return NoNorm()
    kind = {"batch": MaskedBatchNorm, "layer": LayerNorm, "rms": RMSNorm}[config.norm_type]
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)
