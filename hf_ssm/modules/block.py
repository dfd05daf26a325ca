"""The residual block around a mixer, its norms and its MLP.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

__all__ = ["MLP", "Block", "MaskedBatchNorm", "build_norm"]


class MaskedBatchNorm(nn.BatchNorm1d):
    """Batch norm over the channels of `(B, L, D)`, with the statistics of the tokens that the mask keeps."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None or not self.training:
            return super().forward(hidden_states.flatten(0, 1)).view_as(hidden_states)
        output = hidden_states.new_zeros(hidden_states.shape)
        output[mask] = super().forward(hidden_states[mask])
        return output


class _LayerNorm(nn.LayerNorm):
    """Layer norm that takes (and does not need) the mask."""

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states)


def build_norm(config) -> nn.Module:
    """The norm of a configuration, called with `(B, L, D)` and the mask."""
    kind = MaskedBatchNorm if config.norm_type == "batch" else _LayerNorm
    return kind(config.hidden_size, eps=config.layer_norm_epsilon)


class MLP(nn.Module):
    """fc2(act(fc1(h))), `(B, L, D)` to `(B, L, D)`."""

    def __init__(self, config):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(hidden_states)))


class Block(GradientCheckpointingLayer):
    """Mixer and (where the configuration has an `intermediate_size`) MLP, each with a norm and a residual sum."""

    def __init__(self, config, layer_idx: int, mixer: Callable[..., nn.Module]):
        super().__init__()
        self.norm_first = config.norm_first
        self.norm1 = build_norm(config)
        self.mixer = mixer(config, layer_idx)
        self.dropout = nn.Dropout(config.hidden_dropout)
        has_mlp = getattr(config, "intermediate_size", None) is not None
        self.norm2 = build_norm(config) if has_mlp else None
        self.mlp = MLP(config) if has_mlp else None

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, output_tau: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """One block.

        Args:
            hidden_states: `(B, L, D)`.
            mask: `(B, L)` or `None`, true at tokens.
            output_tau: Also return the τ of the mixer.

        Returns:
            `(B, L, D)`, and τ or `None`.
        """
        normed = self.norm1(hidden_states, mask) if self.norm_first else hidden_states
        mixed, tau = self.mixer(normed, mask, output_tau)
        hidden_states = hidden_states + self.dropout(mixed)
        if not self.norm_first:
            hidden_states = self.norm1(hidden_states, mask)
        if self.mlp is None or self.norm2 is None:
            return hidden_states, tau
        normed = self.norm2(hidden_states, mask) if self.norm_first else hidden_states
        hidden_states = hidden_states + self.dropout(self.mlp(normed))
        return hidden_states if self.norm_first else self.norm2(hidden_states, mask), tau
