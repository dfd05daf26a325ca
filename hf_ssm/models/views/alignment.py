"""Padded rows: the mask of a call, and the alignment of rows that continue from a cache.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.inputs import check_mask
from hf_ssm.modules.rows import Rows, View
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import has_readable_values, is_exporting

# All layers of a model: hidden states, rows and states (`None` without a cache) to the hidden states of every layer.
RunLayers = Callable[[Tensor, Rows, Sequence[LayerState] | None], list[Tensor]]


class Alignment(View):
    """The mask of padded rows, `rows.mask`.

    Args:
        attention_mask: `(B, L)` or `(B, past + L)`, 1 at tokens.
        past: Positions read before.
        in_pieces: Whether a row may be nothing but padding.
    """

    def __init__(self, attention_mask: Tensor, past: int, in_pieces: bool):
        self.attention_mask, self.past, self.in_pieces = attention_mask, past, in_pieces

    @classmethod
    def of(cls, model: Any, call: dict[str, Any]) -> "Alignment | None":
        mask, cache = call["attention_mask"], call["cache"]
        if mask is None or call["documents"] is not None:
            return None
        # An exported program checks the number of positions where it has to know them, in a streaming convolution.
        continues = isinstance(cache, SSMCache) and not is_exporting()
        return cls(mask, cache.get_seq_length() if continues else 0, cache is not None)

    def arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        mask = check_mask(self.attention_mask, hidden_states, self.past, in_pieces=self.in_pieces)
        return hidden_states, rows._replace(mask=mask)


def read_with_cache(run: RunLayers, hidden_states: Tensor, rows: Rows, cache: SSMCache) -> list[Tensor]:
    """Read the next positions of the sequences in a cache; rows may be padded on either side.

    Mixers handle padding before the first token only. So rows without history are shifted to the right, and rows with
    padding after their history are grouped by their number of tokens and read without padding.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        rows: What is known of the rows.
        cache: Changed in place.

    Returns:
        The hidden states of every layer, each `(B, L, D)`; values at padding are meaningless.
    """
    batch, length = hidden_states.shape[:2]
    mask = rows.mask
    if mask is None and cache.tokens_seen is not None:
        outputs = run(hidden_states, rows, cache.states)
        cache.advance(length, length)
        return outputs
    tokens = hidden_states.new_full((batch,), length, dtype=torch.long) if mask is None else mask.sum(dim=1)
    if mask is None:
        outputs = run(hidden_states, rows, cache.states)
    elif cache.tokens_seen is not None and is_exporting():
        raise ValueError(
            "An exported program that continues from a cache takes no `attention_mask`: read all padding with the "
            "first piece."
        )
    elif cache.tokens_seen is None or not ((tokens < length) & (cache.tokens_seen > 0)).any():
        outputs = _right_aligned(run, hidden_states, rows, mask, cache)
    else:
        outputs = _in_groups(run, hidden_states, rows, mask, tokens, cache)
    cache.advance(length, tokens)
    return outputs


def _right_aligned(run: RunLayers, hidden_states: Tensor, rows: Rows, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    hidden_states, rows, back = right_aligned(hidden_states, rows, mask)
    outputs = run(hidden_states, rows, cache.states)
    return outputs if back is None else [permuted(output, back) for output in outputs]


def right_aligned(hidden_states: Tensor, rows: Rows, mask: Tensor) -> tuple[Tensor, Rows, Tensor | None]:
    """Hidden states `(B, L, D)` and rows whose padding precedes the tokens, as states need it.

    Returns:
        Both, and the order in which `permuted` restores the positions; `None` if they are where they were.
    """
    length = hidden_states.shape[1]
    steps = torch.arange(length, device=mask.device)
    behind = length - 1 - (mask.int() * (steps + 1)).argmax(dim=1, keepdim=True)
    behind = behind * mask.any(dim=1, keepdim=True)
    if has_readable_values(behind) and not behind.any():
        return hidden_states, rows, None
    forth, back = steps - behind, steps + behind
    # Not the remainder by the length, which ONNX exporters do not know.
    forth, back = torch.where(forth < 0, forth + length, forth), torch.where(back < length, back, back - length)
    return permuted(hidden_states, forth), rows.moved(lambda values: values.gather(1, forth)), back


def permuted(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Positions of each row in the order `index`, `(B, L)`."""
    return hidden_states.gather(1, index.unsqueeze(-1).expand_as(hidden_states))


def _in_groups(
    run: RunLayers, hidden_states: Tensor, rows: Rows, mask: Tensor, tokens: Tensor, cache: SSMCache
) -> list[Tensor]:
    """Rows with equally many tokens are read together, without their padding; those without tokens do not change."""
    outputs: list[Tensor] = []
    groups = []
    for count in tokens.unique().tolist():
        members = (tokens == count).nonzero().squeeze(1)
        states = cache.rows(members)
        groups.append((members, states))
        if count > 0:
            places = members.unsqueeze(1), mask[members].nonzero()[:, 1].view(len(members), count)
            chosen = rows.moved(operator.itemgetter(places))._replace(mask=None)
            group = run(hidden_states[places], chosen, states)
            outputs = outputs or [hidden_states.new_zeros(*mask.shape, output.shape[-1]) for output in group]
            pairs = zip(outputs, group, strict=True)
            outputs = [whole.to(output.dtype).index_put(places, output) for whole, output in pairs]
    cache.assemble(groups)
    return outputs or [torch.zeros_like(hidden_states)] * (len(cache) + 1)


__all__ = ["Alignment", "RunLayers", "permuted", "read_with_cache", "right_aligned"]
