"""The residual block around a mixer, and its MLP.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_ssm.modules.activation import build_activation
from hf_ssm.modules.norms import build_norm, normalized
from hf_ssm.modules.rows import Rows
from hf_ssm.modules.state import LayerState

__all__ = ["MLP", "Block"]


class MLP(nn.Module):
    """fc2(act(fc1(h))), `(B, L, D)` to `(B, L, D)`; in general fc1 to fcN with N - 1 activations between them."""

    parameter_quantity = "mlp"

    def __init__(self, config, layer_idx: int = 0):
        super().__init__()
        depth = config.num_mlp_layers
        sizes = [config.hidden_size, *[config.mlp_size] * (depth - 1), config.hidden_size]
        for layer, (before, after) in enumerate(pairwise(sizes), start=1):
            self.add_module(f"fc{layer}", nn.Linear(before, after))
            if layer == 1 < depth:
                self.activation = build_activation(config)
            elif layer < depth:
                # A module for each call: rules of attributions are attached to modules.
                self.add_module(f"activation{layer}", build_activation(config))

    def forward(self, hidden_states: Tensor) -> Tensor:
        for layer in self.children():
            hidden_states = layer(hidden_states)
        return hidden_states


class Block(GradientCheckpointingLayer):
    """Mixer and (where the configuration has an `mlp_size`) MLP, each with a norm and a residual sum."""

    # Beside that of the rows: `observers.observing`.
    observer: Any = None
    # Of all parameters of the mixer that its modules do not describe.
    parameter_quantity = "projection"

    def __init__(self, config, layer_idx: int, mixer: Callable[..., nn.Module], mlp: Callable[..., nn.Module] = MLP):
        super().__init__()
        self.norm_first = config.norm_first
        self.use_residual = config.use_residual
        self.residual_in_fp32 = config.residual_in_fp32
        self.norm_type = config.norm_type
        self.norm1 = build_norm(config)
        self.mixer = mixer(config, layer_idx)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.tie_dropout = config.tie_dropout
        has_mlp = config.mlp_size is not None
        self.norm2 = build_norm(config) if has_mlp else None
        self.mlp = mlp(config, layer_idx) if has_mlp else None

    def forward(
        self, hidden_states: Tensor, rows: Rows = Rows(), state: LayerState | None = None
    ) -> tuple[Tensor, ...]:
        """One block.

        Args:
            hidden_states: `(B, L, D)`.
            rows: What is known of the rows.
            state: Continue from this state, which is changed in place.

        Returns:
            `(B, L, D)`, or `(B, 1, D)` for a state with `last_position_only`; and the results of an observer.
        """
        if self.observer is not None:
            rows = rows._replace(observer=self.observer.beside(rows.observer))
        rows = rows if rows.observer is None else rows._replace(observer=rows.observer.begin())
        mixed = self.mixer(self.mixer_inputs(hidden_states, rows.mask), rows, state)
        if not isinstance(mixed, Tensor):
            kind = type(self.mixer).__name__
            raise TypeError(f"{kind}.forward(hidden_states, rows, state) must return a tensor: see hf_ssm.models.")
        mask = rows.mask
        if state is not None and state.last_position_only:
            hidden_states, mask = hidden_states[:, -1:], None if mask is None else mask[:, -1:]
        hidden_states = self._sum(hidden_states, self._dropped(mixed, rows))
        if not self.norm_first:
            hidden_states = self._norm(self.norm1, hidden_states, mask)
        if self.mlp is not None and self.norm2 is not None:
            normed = self._norm(self.norm2, hidden_states, mask) if self.norm_first else hidden_states
            hidden_states = self._sum(hidden_states, self._dropped(self.mlp(self._in_weight_dtype(normed)), rows))
            hidden_states = hidden_states if self.norm_first else self._norm(self.norm2, hidden_states, mask)
        return hidden_states, *(() if rows.observer is None else rows.observer.results())

    def mixer_inputs(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """The input of the mixer, `(B, L, D)`."""
        normed = self._norm(self.norm1, hidden_states, mask) if self.norm_first else hidden_states
        return self._in_weight_dtype(normed)

    def _in_weight_dtype(self, hidden_states: Tensor) -> Tensor:
        """The hidden states in the precision of the projections, which a float32 residual stream does not have."""
        if not self.residual_in_fp32:
            return hidden_states
        dtype = next(module for module in self.modules() if isinstance(module, nn.Linear)).weight.dtype
        # The weights of a quantised projection are integers.
        return hidden_states.to(dtype) if dtype.is_floating_point else hidden_states

    def _norm(self, norm: nn.Module, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        if self.residual_in_fp32 and isinstance(weight := getattr(norm, "weight", None), Tensor):
            hidden_states = hidden_states.to(weight.dtype)
        return normalized(norm, hidden_states, mask, self.norm_type)

    def _dropped(self, update: Tensor, rows: Rows) -> Tensor:
        """Dropout; tied: one mask for all positions of a sequence or document."""
        if not (self.tie_dropout and self.dropout.training):
            return self.dropout(update)
        return rows.map(lambda batch, _: batch * self.dropout(torch.ones_like(batch[:, :1])), update)

    def _sum(self, hidden_states: Tensor, update: Tensor) -> Tensor:
        if not self.use_residual:
            return update
        if self.residual_in_fp32:
            hidden_states = hidden_states.to(torch.promote_types(hidden_states.dtype, torch.float32))
        return hidden_states + update
