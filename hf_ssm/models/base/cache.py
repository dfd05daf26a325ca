"""The cache of a causal model: the states of its layers, in the form that transformers' `generate` works with.

Legend: `B` batch, `L` length.
"""

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig

from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import has_readable_values
from hf_ssm.utils.checks import check_type


class SSMCacheLayer(LayerState):
    """The state of one layer, with the method names of transformers' cache layers."""

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
        """Raise `ValueError`: a recurrent state keeps no earlier states."""
        raise ValueError(
            "The cache of a state space model cannot be cropped, as it keeps no earlier states: copy it "
            "(copy.deepcopy) before the tokens that may have to be removed."
        )


class SSMCache(Cache):
    """What a causal model of hf_ssm remembers of the tokens it has read.

    `model(..., use_cache=True)` returns one as `past_key_values`; pass it back with the tokens that follow. It is
    changed in place; `copy.deepcopy` keeps the present state, without gradients. It belongs to the model that filled
    it, with the weights of that time: after they have changed, start a new one. It can be pickled; the reader has to
    know which model it belongs to.

    Args:
        config: The configuration of the model.
    """

    def __init__(self, config: SSMConfig):
        # Of any class: with remote code, transformers loads the module of the configuration a second time.
        check_type("config", config, PreTrainedConfig, "a configuration of hf_ssm, such as `model.config`")
        layers: list[Any] = [SSMCacheLayer() for _ in range(config.num_hidden_layers)]
        super().__init__(layers=layers)
        # Positions read, padding included, and tokens read by each row, `(B,)`.
        self.length = 0
        self.tokens_seen: Tensor | None = None
        # Positions that the states remember: fewer than `length` after packed rows, whose earlier documents are over.
        self.history = 0
        # `seq_idx` at the last position read, `(B,)`, if it was given.
        self.document_ids: Tensor | None = None
        # The model that filled it: its states and constants are meaningless for another one.
        self._owner: weakref.ref[nn.Module] | None = None

    def may_belong_to(self, model: nn.Module) -> bool:
        """Whether no other model has filled it."""
        return self._owner is None or self.belongs_to(model)

    def belongs_to(self, model: nn.Module) -> bool:
        """Whether this model has filled it."""
        return self._owner is not None and self._owner() is model

    def claim(self, model: nn.Module) -> None:
        """Record that this model fills it."""
        self._owner = weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "SSMCache":
        copied = copy.copy(self)
        copied._owner = self._owner
        copied.layers = copy.deepcopy(self.layers, memo)
        return copied

    @property
    def states(self) -> list[SSMCacheLayer]:
        """The state of each layer."""
        return cast(list[SSMCacheLayer], self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read so far, padding included."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: the cache itself has no limit."""
        return -1

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether anything was read."""
        return self.length > 0

    @property
    def batch_size(self) -> int:
        """Number of rows, or -1 before the first use."""
        return -1 if self.tokens_seen is None else len(self.tokens_seen)

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.length > 0

    def advance(self, length: int, tokens: Tensor | int) -> None:
        """Count positions and tokens as read.

        Args:
            length: Positions.
            tokens: Tokens of each row, `(B,)`, or of all rows.
        """
        before: Any = 0 if self.tokens_seen is None else self.tokens_seen
        self.tokens_seen = before + tokens
        self.length += length
        self.history += length

    def remember_document(self, seq_idx: Tensor, attention_mask: Tensor | None) -> None:
        """Keep the `seq_idx`, `(B, L)`, of the last token of each row, for the piece that follows."""
        last = seq_idx[:, -1]
        if attention_mask is not None:
            mask = attention_mask[:, -seq_idx.shape[1] :].bool()
            steps = torch.arange(1, mask.shape[1] + 1, device=mask.device)
            last = seq_idx.to(mask.device).gather(1, (mask * steps).argmax(dim=1, keepdim=True)).squeeze(1)
            if self.document_ids is not None:
                last = torch.where(mask.any(dim=1), last, self.document_ids)
        self.document_ids = last

    def empty_copy(self) -> "SSMCache":
        """An empty cache for the same model."""
        copied = copy.copy(self)
        layers: list[Any] = [type(layer)() for layer in self.states]
        copied.layers = layers
        copied.length, copied.history, copied.tokens_seen, copied.document_ids = 0, 0, None, None
        return copied

    def reset(self) -> None:
        """Remove everything; the cache can then serve any model with as many layers."""
        super().reset()
        self.length, self.history, self.tokens_seen, self.document_ids = 0, 0, None, None
        self._owner = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may appear more than once."""
        super().batch_select_indices(indices)
        if self.tokens_seen is not None:
            self.tokens_seen = self.tokens_seen.index_select(0, indices.to(self.tokens_seen.device))
        if self.document_ids is not None:
            self.document_ids = self.document_ids.index_select(0, indices.to(self.document_ids.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self.tokens_seen is not None:
            rows = torch.arange(len(self.tokens_seen), device=self.tokens_seen.device)
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def rows(self, rows: Tensor) -> list[LayerState]:
        """States of these rows only."""
        return [layer.rows(rows) for layer in self.states]

    def assemble(self, groups: Sequence[tuple[Tensor, list[LayerState]]]) -> None:
        """Take over the states of groups of rows, which together are all rows."""
        order = torch.cat([rows for rows, _ in groups]).argsort()
        for index, layer in enumerate(self.states):
            layer.assemble([states[index] for _, states in groups])
            layer.select(order)


# All layers of a model with their states: hidden states, mask and states to the hidden states of every layer.
RunLayers = Callable[[Tensor, Tensor | None, Sequence[LayerState]], list[Tensor]]


def forward_with_cache(run: RunLayers, hidden_states: Tensor, mask: Tensor | None, cache: SSMCache) -> list[Tensor]:
    """Read the next positions of the sequences in a cache; rows may be padded on either side.

    Mixers handle padding before the first token only. So rows without history are shifted to the right, and rows with
    padding after their history are grouped by their number of tokens and read without padding.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        mask: `(B, L)`, true at tokens; `None` if all positions are tokens.
        cache: Changed in place.

    Returns:
        The hidden states of every layer, each `(B, L, D)`; values at padding are meaningless.
    """
    batch, length = hidden_states.shape[:2]
    if mask is None and cache.tokens_seen is not None:
        outputs = run(hidden_states, None, cache.states)
        cache.advance(length, length)
        return outputs
    tokens = hidden_states.new_full((batch,), length, dtype=torch.long) if mask is None else mask.sum(dim=1)
    if mask is None:
        outputs = run(hidden_states, None, cache.states)
    elif cache.tokens_seen is None or not ((tokens < length) & (cache.tokens_seen > 0)).any():
        outputs = _right_aligned(run, hidden_states, mask, cache)
    else:
        outputs = _in_groups(run, hidden_states, mask, tokens, cache)
    cache.advance(length, tokens)
    return outputs


def _right_aligned(run: RunLayers, hidden_states: Tensor, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    length = hidden_states.shape[1]
    steps = torch.arange(length, device=mask.device)
    behind = length - 1 - (mask.int() * (steps + 1)).argmax(dim=1, keepdim=True)
    behind = behind * mask.any(dim=1, keepdim=True)
    if has_readable_values(behind) and not behind.any():
        return run(hidden_states, mask, cache.states)
    forth, back = (steps - behind) % length, (steps + behind) % length
    outputs = run(_permuted(hidden_states, forth), mask.gather(1, forth), cache.states)
    return [_permuted(output, back) for output in outputs]


def _permuted(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Positions of each row in the order `index`, `(B, L)`."""
    return hidden_states.gather(1, index.unsqueeze(-1).expand_as(hidden_states))


def _in_groups(run: RunLayers, hidden_states: Tensor, mask: Tensor, tokens: Tensor, cache: SSMCache) -> list[Tensor]:
    """Rows with equally many tokens are read together, without their padding; those without tokens do not change."""
    outputs = [torch.zeros_like(hidden_states) for _ in range(len(cache) + 1)]
    groups = []
    for count in tokens.unique().tolist():
        rows = (tokens == count).nonzero().squeeze(1)
        states = cache.rows(rows)
        groups.append((rows, states))
        if count > 0:
            places = rows.unsqueeze(1), mask[rows].nonzero()[:, 1].view(len(rows), count)
            found = run(hidden_states[places], None, states)
            outputs = [whole.to(part.dtype).index_put(places, part) for whole, part in zip(outputs, found, strict=True)]
    cache.assemble(groups)
    return outputs


__all__ = ["SSMCache", "SSMCacheLayer", "forward_with_cache"]
