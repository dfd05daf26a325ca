"""The cache of a causal model: what its layers remember, in the shape that transformers' `generate` works with.

Legend: `B` batch, `L` length.
"""

import copy
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache

from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.modules.state import LayerState


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
    changed in place; `copy.deepcopy` keeps the state of now, without its gradients. It belongs to the model that
    filled it, with the weights of then: after they have changed, begin a new one. It can be pickled; which model it
    belongs to is then for the reader to know.

    Args:
        config: The configuration of the model.
    """

    def __init__(self, config: SSMConfig):
        layers: list[Any] = [SSMCacheLayer() for _ in range(config.num_hidden_layers)]
        super().__init__(layers=layers)
        # Positions seen, padding included, and tokens seen by each row, `(B,)`.
        self.length = 0
        self.tokens_seen: Tensor | None = None
        # Rows that read nothing lately and their memories, apart from `layers`, which then are of the rows `_awake`.
        self._asleep: tuple[Tensor, list[LayerState]] | None = None
        self._awake: Tensor | None = None
        # Which model filled it: its states and constants mean nothing to another one.
        self._owner: weakref.ref[nn.Module] | None = None

    def may_belong_to(self, model: nn.Module) -> bool:
        """Whether no other model has filled it."""
        return self._owner is None or self.belongs_to(model)

    def belongs_to(self, model: nn.Module) -> bool:
        """Whether this model has filled it."""
        return self._owner is not None and self._owner() is model

    def claim(self, model: nn.Module) -> None:
        """Remember that this model fills it."""
        self._owner = weakref.ref(model)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_owner": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> "SSMCache":
        copied = copy.copy(self)
        copied._owner = self._owner
        copied.layers = copy.deepcopy(self.layers, memo)
        copied._asleep = copy.deepcopy(self._asleep, memo)
        return copied

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

    @property
    def goes_on_as_one(self) -> bool:
        """Whether all rows have read something and none is asleep."""
        return self.tokens_seen is not None and self._awake is None

    def advance(self, length: int, tokens: Tensor | int) -> None:
        """Count the positions, and the tokens of each row `(B,)`, or of all rows that have read before, as read."""
        before: Any = 0 if self.tokens_seen is None else self.tokens_seen
        self.tokens_seen = before + tokens
        self.length += length

    def reset(self) -> None:
        """Forget everything; the cache can then serve any model with as many layers."""
        super().reset()
        self.length, self.tokens_seen, self._owner = 0, None, None
        self._asleep = self._awake = None

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may come more than once."""
        self.wake()
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

    def assemble(self, groups: Sequence[tuple[Tensor, list[LayerState]]]) -> Tensor:
        """Make the memories of groups of rows those of the cache; returns all these rows in ascending order."""
        rows = torch.cat([rows for rows, _ in groups])
        order = rows.argsort()
        for index, layer in enumerate(self.states):
            layer.assemble([states[index] for _, states in groups])
            layer.select(order)
        return rows[order]

    def lay_to_sleep(self, rows: Tensor, states: list[LayerState], awake: Tensor) -> None:
        """Keep these rows apart, so that the others, whose memories the layers hold, go on at no cost for them."""
        self._asleep, self._awake = (rows, states), awake

    def wake(self) -> None:
        """Bring all rows together again."""
        if self._awake is not None and self._asleep is not None:
            awake = self._awake, [layer.rows(torch.arange(len(self._awake))) for layer in self.states]
            self.assemble([awake, self._asleep])
            self._asleep = self._awake = None

    def awake_if_just_these(self, tokens: Tensor, length: int) -> Tensor | None:
        """The rows that are awake, if they and no others read a whole piece, by the `tokens` that each row reads."""
        if self._awake is None:
            return None
        wanted = torch.zeros_like(tokens)
        wanted[self._awake] = length
        return self._awake if torch.equal(wanted, tokens) else None


# All layers of a model, from states of theirs: hidden states, mask and states to the hidden states of every layer.
Run = Callable[[Tensor, Tensor | None, Sequence[LayerState]], list[Tensor]]


def go_on(run: Run, hidden_states: Tensor, mask: Tensor | None, cache: SSMCache) -> list[Tensor]:
    """Read the next positions of the sequences in a cache, whose rows may be padded on either side.

    Mixers know padding in front of all tokens alone. So rows that have read nothing yet are shifted to the right, and
    rows with padding after what they have read before go on without it; those that read nothing are kept apart.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        mask: `(B, L)`, true at tokens; `None` where all are.
        cache: Changed in place.

    Returns:
        What `run` returns, at the places of the input; at padding it means nothing.
    """
    batch, length = hidden_states.shape[:2]
    if mask is None and cache.goes_on_as_one:
        outputs = run(hidden_states, None, cache.states)
        cache.advance(length, length)
        return outputs
    tokens = hidden_states.new_full((batch,), length, dtype=torch.long) if mask is None else mask.sum(dim=1)
    awake = cache.awake_if_just_these(tokens, length)
    if awake is not None:
        outputs = [
            output.new_zeros(hidden_states.shape).index_copy(0, awake, output)
            for output in run(hidden_states[awake], None, cache.states)
        ]
    else:
        cache.wake()
        if mask is None:
            outputs = run(hidden_states, None, cache.states)
        elif cache.tokens_seen is None or not ((tokens < length) & (cache.tokens_seen > 0)).any():
            outputs = _right_aligned(run, hidden_states, mask, cache)
        else:
            outputs = _in_groups(run, hidden_states, mask, tokens, cache)
    cache.advance(length, tokens)
    return outputs


def _right_aligned(run: Run, hidden_states: Tensor, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    length = hidden_states.shape[1]
    steps = torch.arange(length, device=mask.device)
    behind = length - 1 - (mask.int() * (steps + 1)).argmax(dim=1, keepdim=True)
    behind = behind * mask.any(dim=1, keepdim=True)
    if not behind.any():
        return run(hidden_states, mask, cache.states)
    forth, back = (steps - behind) % length, (steps + behind) % length
    outputs = run(_permuted(hidden_states, forth), mask.gather(1, forth), cache.states)
    return [_permuted(output, back) for output in outputs]


def _permuted(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Positions of each row in the order `index`, `(B, L)`."""
    return hidden_states.gather(1, index.unsqueeze(-1).expand_as(hidden_states))


def _in_groups(run: Run, hidden_states: Tensor, mask: Tensor, tokens: Tensor, cache: SSMCache) -> list[Tensor]:
    """Rows with equally many tokens go on together, without their padding; those with none are left alone."""
    outputs: list[Tensor] = []
    groups = []
    for count in tokens.unique().tolist():
        rows = (tokens == count).nonzero().squeeze(1)
        states = cache.rows(rows)
        groups.append((rows, states))
        if count > 0:
            places = rows.unsqueeze(1), mask[rows].nonzero()[:, 1].view(len(rows), count)
            found = run(hidden_states[places], None, states)
            outputs = outputs or [output.new_zeros(hidden_states.shape) for output in found]
            outputs = [whole.index_put(places, part) for whole, part in zip(outputs, found, strict=True)]
    if not outputs:
        # Nothing but padding: nothing was read.
        return [torch.zeros_like(hidden_states) for _ in range(len(cache) + 1)]
    if tokens.min() > 0:
        cache.assemble(groups)
    else:
        cache.lay_to_sleep(*groups[0], awake=cache.assemble(groups[1:]))
    return outputs


__all__ = ["SSMCache", "SSMCacheLayer", "go_on"]
