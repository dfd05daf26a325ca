"""Reading the next positions of sequences whose earlier positions are in a cache.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import has_readable_values, is_exporting

# All layers of a model with their states: hidden states, mask and states to the hidden states of every layer.
RunLayers = Callable[[Tensor, Tensor | None, Sequence[LayerState]], list[Tensor]]


def forward_with_cache(
    run: RunLayers,
    hidden_states: Tensor,
    mask: Tensor | None,
    cache: SSMCache,
    step: Callable[[Tensor, Tensor | None, Sequence[LayerState]], list[Tensor] | None] | None = None,
) -> list[Tensor]:
    """Read the next positions of the sequences in a cache; rows may be padded on either side.

    Mixers handle padding before the first token only. So rows without history are shifted to the right, and rows with
    padding after their history are grouped by their number of tokens and read without padding.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        mask: `(B, L)`, true at tokens; `None` if all positions are tokens.
        cache: Changed in place.
        step: As `run` for a single position, where rows without a token keep their states; returns `None` if the layers
            must be run. Default: they must.

    Returns:
        The hidden states of every layer, each `(B, L, D)`; values at padding are meaningless.
    """
    batch, length = hidden_states.shape[:2]
    if mask is None and cache.tokens_seen is not None:
        outputs = run(hidden_states, None, cache.states)
        cache.advance(length, length)
        return outputs
    if step is not None and mask is not None and length == 1 and cache.tokens_seen is not None:
        # On a GPU, what the mask holds is not known, and generation passes one at every position.
        stepped = step(hidden_states, mask, cache.states)
        if stepped is not None:
            cache.advance(length, mask.sum(dim=1))
            return stepped
    tokens = hidden_states.new_full((batch,), length, dtype=torch.long) if mask is None else mask.sum(dim=1)
    if mask is None:
        outputs = run(hidden_states, None, cache.states)
    elif cache.tokens_seen is not None and is_exporting():
        raise ValueError(
            "An exported program that continues from a cache takes no `attention_mask`: read all padding with the "
            "first piece."
        )
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
    forth, back = steps - behind, steps + behind
    # Not the remainder by the length, which ONNX exporters do not know.
    forth, back = torch.where(forth < 0, forth + length, forth), torch.where(back < length, back, back - length)
    outputs = run(_permuted(hidden_states, forth), mask.gather(1, forth), cache.states)
    return [_permuted(output, back) for output in outputs]


def _permuted(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Positions of each row in the order `index`, `(B, L)`."""
    return hidden_states.gather(1, index.unsqueeze(-1).expand_as(hidden_states))


def _in_groups(run: RunLayers, hidden_states: Tensor, mask: Tensor, tokens: Tensor, cache: SSMCache) -> list[Tensor]:
    """Rows with equally many tokens are read together, without their padding; those without tokens do not change."""
    outputs: list[Tensor] = []
    groups = []
    for count in tokens.unique().tolist():
        rows = (tokens == count).nonzero().squeeze(1)
        states = cache.rows(rows)
        groups.append((rows, states))
        if count > 0:
            places = rows.unsqueeze(1), mask[rows].nonzero()[:, 1].view(len(rows), count)
            found = run(hidden_states[places], None, states)
            # The run may take channels of extra inputs off.
            outputs = outputs or [hidden_states.new_zeros(*mask.shape, part.shape[-1]) for part in found]
            outputs = [whole.to(part.dtype).index_put(places, part) for whole, part in zip(outputs, found, strict=True)]
    cache.assemble(groups)
    return outputs or [torch.zeros_like(hidden_states)] * (len(cache) + 1)


__all__ = ["RunLayers", "forward_with_cache"]
