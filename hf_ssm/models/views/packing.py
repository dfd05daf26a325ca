"""Packed rows: several documents one after the other in a row, as data collators for training without padding make.

Legend: `B` batch, `L` length, `n` documents.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.inputs import check_whole_numbers, mask_of_new_positions
from hf_ssm.models.views.alignment import RunLayers, read_with_cache
from hf_ssm.modules.rows import Rows
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.documents import Bucket, Documents

# Arguments of packed rows, in the order of trust.
PACKING_ARGUMENTS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "position_ids")
# Numbers that an error shows.
_MOST_SHOWN = 20


def find_documents(
    attention_mask: Tensor | None, cache: Any, arguments: Mapping[str, Any], *inputs: Tensor | None
) -> Documents | None:
    """The documents of packed rows, from the first of these arguments that is given; `None` for one document per row.

    - `seq_idx` `(B, L)`, integers: a document ends where the number changes.
    - `cu_seq_lens_q`, `cu_seq_lens_k` `(n + 1,)`, integers: the first position of each document in the rows laid end to
      end, and B L; equal if both are given.
    - `position_ids` `(B, L)` or `(1, L)`, integers: as in transformers, a document begins where the number is not the
      one before plus 1.

    Args:
        attention_mask: `(B, L)` or, with a cache, `(B, P + L)`; padding is part of no document.
        cache: The `SSMCache` to continue from, or `None`. The first document of a row continues from the cache if
            its `seq_idx` is that of the last position read, or if its position ids do not begin with 0.
        arguments: The arguments by name.
        *inputs: The inputs of the model, of which one is given: `(B, L)` or `(B, L, ...)`.

    Raises:
        TypeError: An argument is not a tensor of signed integers.
        ValueError: Wrong shapes; a mask with other values than 0 and 1 (on a CPU); `cu_seq_lens_q` that do not cover
            the rows, or with a cache; `seq_idx` with a cache that was filled without; padding inside a document; any of
            them while exporting.
    """
    given = {name: arguments[name] for name in PACKING_ARGUMENTS if arguments.get(name) is not None}
    tensor = next((tensor for tensor in inputs if isinstance(tensor, Tensor) and tensor.dim() > 1), None)
    for name, value in given.items():
        check_whole_numbers(name, value)
    # Without inputs, the model raises its own error.
    if not given or tensor is None or tensor.numel() == 0:
        return None
    if is_exporting():
        raise ValueError(f"An exported program reads one document in each row: leave out `{next(iter(given))}`.")
    return _find(tensor, attention_mask, cache if isinstance(cache, SSMCache) else None, given)


# The number of documents decides about shapes: a compiled model breaks its graph here.
@torch.compiler.disable
def _find(
    inputs: Tensor, attention_mask: Tensor | None, cache: SSMCache | None, given: dict[str, Tensor]
) -> Documents | None:
    batch, length = shape = inputs.shape[0], inputs.shape[1]
    name, value = next(iter(given.items()))
    values = value.detach().cpu().long()
    has_history = cache is not None and cache.is_initialized
    if name.startswith("cu_seq_lens"):
        other = given.get("cu_seq_lens_k")
        if other is not None and not torch.equal(values, other.detach().cpu().long()):
            raise ValueError("`cu_seq_lens_q` and `cu_seq_lens_k` differ: a state space model reads one sequence.")
        if has_history:
            raise ValueError(
                f"`{name}` does not tell whether a document continues the one in `cache`: pass `seq_idx` or "
                "`position_ids` instead."
            )
        marks = _numbers_of_documents(name, values, shape)
    else:
        if values.dim() != 2 or values.shape[1] != length or values.shape[0] not in (1, batch):
            raise ValueError(f"`{name}` has the shape {tuple(values.shape)}, but the input is {shape} (batch, length).")
        marks = values.expand(batch, length)
    if attention_mask is None:
        places = torch.cartesian_prod(torch.arange(batch), torch.arange(length))
    else:
        mask = mask_of_new_positions(attention_mask, shape, 0 if cache is None else cache.get_seq_length())
        places = mask.detach().cpu().bool().nonzero()
    rows, columns = places.unbind(1)
    marks = marks[rows, columns]
    first_of_row = torch.ones_like(rows, dtype=torch.bool)
    first_of_row[1:] = rows.diff() != 0
    begins = first_of_row.clone()
    begins[1:] |= marks.diff() != (1 if name == "position_ids" else 0)
    continued = torch.zeros(int(begins.sum()), dtype=torch.bool)
    if cache is not None and has_history:
        continued = _continued(name, marks, rows, begins, first_of_row, cache)
    if len(continued) == int(first_of_row.sum()) and (not has_history or bool(continued.all())):
        return None
    inside = ~begins[1:] & (columns.diff() != 1)
    if bool(inside.any()):
        raise ValueError(
            f"`attention_mask` has padding inside a document in row {int(rows[1:][inside][0])}: `{name}` must change "
            "at the padding, or the padding must be left out."
        )
    firsts = begins.nonzero().squeeze(1)
    lengths = torch.cat([firsts, torch.tensor([len(rows)])]).diff()
    return Documents(rows[firsts], columns[firsts], lengths, shape, inputs.device, continued=continued)


def _numbers_of_documents(name: str, borders: Tensor, shape: tuple[int, int]) -> Tensor:
    """The number of the document at each position, `(B, L)`."""
    batch, length = shape
    is_list = borders.dim() == 1 and len(borders) > 1
    if not is_list or borders[0] != 0 or borders[-1] != batch * length or borders.diff().min() < 1:
        shown = borders.tolist() if borders.numel() <= _MOST_SHOWN else f"{borders.numel()} numbers"
        raise ValueError(
            f"`{name}` must rise from 0 to the number of positions, {batch} x {length} = {batch * length}, got {shown}."
        )
    lengths = borders.diff()
    if not torch.isin(torch.arange(0, batch * length, length), borders).all():
        raise ValueError(f"`{name}` lets a document run from one row into the next: rows hold whole documents only.")
    return torch.arange(len(lengths)).repeat_interleave(lengths).view(shape)


def _continued(name: str, marks: Tensor, rows: Tensor, begins: Tensor, first_of_row: Tensor, cache: SSMCache) -> Tensor:
    """Whether each document continues from the cache, `(n,)`."""
    if name == "position_ids":
        return (first_of_row & (marks != 0))[begins]
    if cache.document_ids is None:
        raise ValueError(
            "`cache` was filled without `seq_idx`: pass `position_ids` instead, or pass `seq_idx` with all "
            "pieces of the sequence."
        )
    return (first_of_row & (marks == cache.document_ids.cpu()[rows]))[begins]


def read_packed_with_cache(
    run: RunLayers, hidden_states: Tensor, rows: Rows, documents: Documents, cache: SSMCache
) -> list[Tensor]:
    """Read packed rows after what a cache holds; afterwards it holds the last document of each row.

    Args:
        run: The layers.
        hidden_states: `(B, L, D)`.
        rows: Mask and further inputs of the rows.
        documents: The documents.
        cache: Changed in place.

    Returns:
        The hidden states of every layer, each `(B, L, D)`; values outside documents are meaningless.
    """
    (batch, length), device = documents.shape, hidden_states.device
    before, tokens_before = cache.get_seq_length(), cache.tokens_seen
    is_last = torch.ones(len(documents), dtype=torch.bool)
    is_last[:-1] = documents.rows.diff() != 0
    is_new = ~documents.continued
    # Rows that keep the document of the cache: it fills the row, or the row has no token.
    keeps_state = torch.ones(batch, dtype=torch.bool)
    keeps_state[documents.rows[is_new]] = False
    pieces = []
    if bool(documents.continued.any()):
        mask = _positions(documents, documents.continued, device)
        pieces.append((mask, read_with_cache(run, hidden_states, rows._replace(mask=mask), cache)))
    if bool(is_new.any()):
        bucket = documents.bucket(is_new.nonzero().squeeze(1))
        fresh, taken = cache.empty_copy(), bucket
        owners = torch.where(is_last, documents.rows, -1)[bucket.numbers]
        if not before and bool(keeps_state.any()):
            # Without history, a row without tokens gets a state of its own as well.
            empty = keeps_state.nonzero().squeeze(1)
            tokens = torch.ones_like(bucket.positions, dtype=torch.bool) if bucket.mask is None else bucket.mask
            index = torch.cat([bucket.positions, bucket.positions[:1].expand(len(empty), -1)])
            mask = torch.cat([tokens, torch.zeros_like(tokens[:1]).expand(len(empty), -1)])
            taken, owners = Bucket(bucket.numbers, index, mask), torch.cat([owners, empty])
        read = rows.moved(taken.take)._replace(mask=taken.mask)
        outputs = read_with_cache(run, taken.take(hidden_states), read, fresh)
        restored = [documents.restore([bucket], [output[: len(bucket.positions)]]) for output in outputs]
        pieces.append((_positions(documents, is_new, device), restored))
        # The cache holds the last document of each row.
        kept = (owners >= 0).nonzero().squeeze(1)
        fresh.batch_select_indices(kept.to(device))
        groups: list[tuple[Tensor, list[LayerState]]] = [(owners[kept].to(device), list(fresh.states))]
        if before and bool(keeps_state.any()):
            others = keeps_state.nonzero().squeeze(1).to(device)
            groups.append((others, cache.rows(others)))
        cache.assemble(groups)
    counts = torch.zeros(batch, dtype=torch.long)
    counts[documents.rows[is_last]] = documents.lengths[is_last]
    seen = torch.zeros(batch, dtype=torch.long, device=device) if tokens_before is None else tokens_before
    counts, keeps = counts.to(seen.device), keeps_state.to(seen.device)
    cache.length = before + length
    cache.tokens_seen = torch.where(keeps, seen + counts, counts)
    longest = int(cache.tokens_seen.max())
    for layer in cache.states:
        layer.keep_last(longest)
    return _joined(pieces)


def _positions(documents: Documents, chosen: Tensor, device: torch.device) -> Tensor:
    """The tokens of some documents, `(B, L)`, bool."""
    lengths = documents.lengths[chosen]
    firsts = (documents.rows * documents.shape[1] + documents.starts)[chosen]
    # Within a document, the index in the flattened rows grows with the place among the chosen tokens.
    offsets = firsts - (lengths.cumsum(0) - lengths)
    tokens = offsets.repeat_interleave(lengths) + torch.arange(int(lengths.sum()))
    positions = torch.zeros(documents.shape, dtype=torch.bool)
    positions.view(-1)[tokens] = True
    return positions.to(device)


def _joined(pieces: Sequence[tuple[Tensor, list[Tensor]]]) -> list[Tensor]:
    """One tensor for each layer, each position from the piece that read it."""
    (_, joined), *others = pieces
    for mask, outputs in others:
        joined = [torch.where(mask.unsqueeze(-1), new, old) for new, old in zip(outputs, joined, strict=True)]
    return joined


__all__ = ["PACKING_ARGUMENTS", "find_documents", "read_packed_with_cache"]
