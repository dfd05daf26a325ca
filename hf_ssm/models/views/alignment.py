"""Rows with padding: which positions are tokens, and the place of the tokens where layers read them.

A masked position does not exist: on either side, between tokens, or in a piece that continues from a cache. Layers read
rows whose tokens are consecutive; behind the layers a masked position repeats the output of the last token before it,
so the last position of a row always has the output of its last token.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.inputs import has_holes
from hf_ssm.modules.rows import Rows
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import has_readable_values, is_exporting

# All layers of a model: hidden states, rows and states (`None` without a cache) to the hidden states of every layer.
RunLayers = Callable[[Tensor, Rows, Sequence[LayerState] | None], list[Tensor]]


def plain_rows(
    hidden_states: Tensor, rows: Rows, mask: Tensor, training: bool
) -> tuple[Tensor, Rows, Callable[[Tensor], Tensor] | None]:
    """Rows whose tokens are consecutive: the tokens of rows with holes are moved to the left.

    Args:
        hidden_states: `(B, L, D)`.
        rows: What is known of the rows.
        mask: Their mask, `(B, L)`.
        training: Outputs at padding on the right, which only `generate` reads, are not needed.

    Returns:
        The hidden states, the rows, and what puts outputs back to their places; `None` where they stay.
    """
    # Without holes, only `generate` reads padding, behind a prompt that is padded on the right.
    is_plain = has_readable_values(mask) and not has_holes(mask)
    if is_plain and (training or mask[:, -1].all()):
        return hidden_states, rows, None
    order, back = token_order(mask, at_end=False)
    if not is_plain:
        moved = rows.moved(lambda values: values.gather(1, order))
        return permuted(hidden_states, order), moved, lambda output: permuted(output, back)
    # Positions before the first token keep their outputs, as in rows that are padded on the left only.
    steps = torch.arange(mask.shape[1], device=mask.device)
    places = torch.where(mask.cumsum(1) > 0, order.gather(1, back), steps)
    return hidden_states, rows, lambda output: permuted(output, places)


def token_order(mask: Tensor, *, at_end: bool) -> tuple[Tensor, Tensor]:
    """The order in which `permuted` moves tokens to the end or the beginning of each row, and the way back.

    Args:
        mask: `(B, L)`, bool.
        at_end: Whether the tokens come last.

    Returns:
        The position that moves to each place, `(B, L)`; and the place of the token at each position, or of the last
        token before it.
    """
    tokens, others = mask.long().cumsum(1), (~mask).long().cumsum(1)
    first_token = others[:, -1:] if at_end else torch.zeros_like(others[:, -1:])
    first_other = torch.zeros_like(first_token) if at_end else tokens[:, -1:]
    places = torch.where(mask, first_token + tokens, first_other + others) - 1
    steps = torch.arange(mask.shape[1], device=mask.device).expand_as(places)
    # Before the first token, padding on the left has its own output, as in rows that stay where they are.
    before = places if at_end else first_token
    back = torch.where(tokens > 0, first_token + tokens - 1, before).clamp(max=mask.shape[1] - 1)
    return torch.zeros_like(places).scatter(1, places, steps), back


def permuted(hidden_states: Tensor, index: Tensor) -> Tensor:
    """Positions of each row in the order `index`, `(B, L)`."""
    return hidden_states.gather(1, index.unsqueeze(-1).expand_as(hidden_states))


def read_with_cache(
    run: RunLayers, hidden_states: Tensor, rows: Rows, cache: SSMCache, tokens_before: Tensor | None = None
) -> list[Tensor]:
    """Read the next positions of the sequences in a cache, of which any may be masked.

    Mixers handle padding before the first token only. So rows without history are moved to the right, and rows with
    padding after their history are grouped by their number of tokens and read without padding.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        rows: What is known of the rows.
        cache: Changed in place.
        tokens_before: Number of tokens that were read before according to the mask, `(B,)`; `None` if unknown.

    Returns:
        The hidden states of every layer, each `(B, L, D)`; values before the first token of a row are meaningless.

    Raises:
        ValueError: The mask leaves out positions that the cache has read as tokens.
    """
    batch, length = hidden_states.shape[:2]
    mask, seen = rows.mask, cache.tokens_seen
    if mask is None and seen is not None:
        if tokens_before is not None:
            _check_past((tokens_before < seen).any())
        outputs = run(hidden_states, rows, cache.states)
        cache.advance(length, length)
        return outputs
    tokens = hidden_states.new_full((batch,), length, dtype=torch.long) if mask is None else mask.sum(dim=1)
    if mask is None:
        outputs = run(hidden_states, rows, cache.states)
    elif seen is None:
        outputs = _right_aligned(run, hidden_states, rows, mask, cache)
    elif is_exporting():
        raise ValueError(
            "An exported program that continues from a cache takes no `attention_mask`: read all padding with the "
            "first piece."
        )
    elif length == 1 and tokens_before is None:
        outputs = _one_step(run, hidden_states, rows, mask, cache)
    else:
        # The number of tokens decides about shapes: values are read, on a GPU too.
        left_out = torch.zeros_like(seen) if tokens_before is None else tokens_before.to(seen.device) < seen
        needs_groups, is_polluted = torch.stack([((tokens < length) & (seen > 0)).any(), left_out.any()]).tolist()
        _check_past(is_polluted)
        read = _in_groups if needs_groups else _right_aligned
        outputs = read(run, hidden_states, rows, mask, cache)
    cache.advance(length, tokens)
    return outputs


def _check_past(is_polluted: bool | Tensor) -> None:
    if is_polluted:
        raise ValueError(
            "`attention_mask` leaves out positions that `cache` has read as tokens, such as the padding behind rows "
            "that ended early in `generate`, and a state cannot forget a token: leave out `cache`, and pass the whole "
            "text with its mask."
        )


def _right_aligned(run: RunLayers, hidden_states: Tensor, rows: Rows, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    """Padding precedes the tokens, as states need it."""
    if has_readable_values(mask) and mask[:, -1].all() and not has_holes(mask):
        return run(hidden_states, rows, cache.states)
    order, back = token_order(mask, at_end=True)
    rows = rows.moved(lambda values: values.gather(1, order))
    return [permuted(output, back) for output in run(permuted(hidden_states, order), rows, cache.states)]


def _one_step(run: RunLayers, hidden_states: Tensor, rows: Rows, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    """All rows read one position, and those whose mask leaves it out return to the states before."""
    before = [layer.snapshot() for layer in cache.states]
    outputs = run(hidden_states, rows._replace(mask=None), cache.states)
    pairs = zip(cache.states, before, strict=True)
    cache.layers = [layer.unless(~mask[:, 0], earlier) for layer, earlier in pairs]
    return outputs


def _in_groups(run: RunLayers, hidden_states: Tensor, rows: Rows, mask: Tensor, cache: SSMCache) -> list[Tensor]:
    """Rows with equally many tokens are read together, without their padding; those without tokens do not change."""
    tokens, outputs = mask.sum(1), list[Tensor]()
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
    order, back = token_order(mask, at_end=False)
    last = order.gather(1, back)
    return [permuted(output, last) for output in outputs] or [torch.zeros_like(hidden_states)] * (len(cache) + 1)


__all__ = ["RunLayers", "permuted", "plain_rows", "read_with_cache", "token_order"]
