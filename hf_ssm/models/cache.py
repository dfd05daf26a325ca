"""The cache of a causal model: what its layers remember, in the shape that transformers' `generate` works with.

Legend: `B` batch, `L` length.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Cache

from hf_ssm.modules.state import LayerState

from .configuration_common import SSMConfig


class SSMCacheLayer(LayerState):
    """The memory of one layer, with the method names of transformers' cache layers."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        self.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self.select(indices)

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: a recurrent state cannot be taken back."""
        raise ValueError(
            "The cache of a state space model cannot be cropped, as it keeps no state of the past: copy it "
            "(copy.deepcopy) before the tokens that you may want to take back."
        )


class SSMCache(Cache):
    """What a causal model of hf_ssm remembers of the tokens it has read.

    `model(..., use_cache=True)` returns one as `past_key_values`; pass it back with the tokens that follow. It is
    changed in place; `copy.deepcopy` keeps the state of now. It belongs to the model that filled it.

    Args:
        config: The configuration of the model.
    """

    def __init__(self, config: SSMConfig):
        layers: list[Any] = [SSMCacheLayer() for _ in range(config.num_hidden_layers)]
        super().__init__(layers=layers)
        # Positions seen, padding included, and tokens seen by each row, `(B,)`.
        self.length = 0
        self.tokens_seen: Tensor | None = None
        # Which model filled it: its states and constants mean nothing to another one.
        self.owner: str | None = None

    @property
    def states(self) -> list[SSMCacheLayer]:
        """The memory of each layer."""
        return cast(list[SSMCacheLayer], self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions seen so far, padding included."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: the cache itself has no limit."""
        return -1

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether anything was read."""
        return self.length > 0

    @property
    def batch_size(self) -> int:
        """Rows, or -1 before the first use."""
        return -1 if self.tokens_seen is None else len(self.tokens_seen)

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.length > 0

    def advance(self, length: int, tokens: Tensor | int, like: Tensor) -> None:
        """Count positions and tokens, `(B,)` or the same for all rows, that were read."""
        if self.tokens_seen is None:
            self.tokens_seen = torch.zeros(len(like), dtype=torch.long, device=like.device)
        self.tokens_seen = self.tokens_seen + tokens
        self.length += length

    def reset(self) -> None:
        """Forget everything; the cache can then serve any model with as many layers."""
        super().reset()
        self.length, self.tokens_seen, self.owner = 0, None, None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may come more than once."""
        super().batch_select_indices(indices)
        if self.tokens_seen is not None:
            self.tokens_seen = self.tokens_seen.index_select(0, indices.to(self.tokens_seen.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.tokens_seen is not None:
            rows = torch.arange(len(self.tokens_seen), device=self.tokens_seen.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def rows(self, rows: Tensor) -> list[LayerState]:
        """Memories of these rows alone."""
        return [layer.rows(rows) for layer in self.states]

    def assemble(self, rows: Sequence[Tensor], parts: Sequence[Sequence[LayerState]]) -> None:
        """Take back what `rows` gave out, all rows of the batch in any number of parts."""
        order = torch.cat(list(rows)).argsort()
        for index, layer in enumerate(self.states):
            layer.assemble([part[index] for part in parts])
            layer.select(order)


__all__ = ["SSMCache", "SSMCacheLayer"]
