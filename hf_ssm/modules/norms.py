"""Norms by name.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from torch import Tensor, nn

__all__ = ["MaskedBatchNorm", "build_norm", "normalized"]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the channels of `(B, L, D)`, with the statistics of the tokens that the mask keeps."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training:
            return super().forward(hidden_states.flatten(0, 1)).view_as(hidden_states)
        output = hidden_states.new_zeros(hidden_states.shape)
        output[mask] = super().forward(hidden_states[mask])
        return output


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
