"""Packed rows: several documents one after the other in a row, as data collators for training without padding make.

Legend: `B` batch, `L` length, `n` documents.
"""

from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.views.sequences import Documents
from hf_ssm.ops.context import is_exporting


def document_marks(name: str, value: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, int]:
    """Numbers at the positions of packed rows, `(B, L)` or `(1, L)`, and by how much they rise within a document."""
    if name.startswith("cu_seq_lens"):
        positions = torch.arange(shape[0] * shape[1], device=value.device)
        return torch.isin(positions, value.long()).cumsum(0).view(shape), 0
    return value.long(), int(name == "position_ids")


def find_documents(inputs: Tensor, mask: Tensor | None, cache: Any, name: str, value: Tensor) -> Documents | None:
    """Find the documents of packed rows by one of these arguments; `None` for one document in each row.

    - `seq_idx` `(B, L)`: a document ends where the number changes.
    - `cu_seq_lens_q`, `cu_seq_lens_k` `(n + 1,)`: the first position of each document in the rows laid end to end, and
      B L.
    - `position_ids` `(B, L)` or `(1, L)`: as in transformers, a document begins where the number is not the one before
      plus 1.

    Masked positions are part of no document, and their numbers are not read.

    Args:
        inputs: `(B, L)` or `(B, L, ...)`.
        mask: `(B, L)`, true at tokens; `None` where all positions are tokens.
        cache: The cache to continue from. The first document of a row continues if its `seq_idx` is that of the last
            position read, or if its position ids do not begin with 0.
        name: Name of the argument.
        value: Its value.

    Raises:
        ValueError: Wrong shapes; `cu_seq_lens_q` that do not cover the rows, or with a cache; `seq_idx` with a cache
            that was filled without; any of them while exporting.
    """
    if is_exporting():
        raise ValueError(f"An exported program reads one document in each row: leave out `{name}`.")
    return _find(name, value, inputs, mask, cache if isinstance(cache, SSMCache) else None)


# The number of documents decides about shapes: a compiled model breaks its graph here.
@torch.compiler.disable
def _find(name: str, value: Tensor, inputs: Tensor, mask: Tensor | None, cache: SSMCache | None) -> Documents | None:
    batch, length = shape = inputs.shape[0], inputs.shape[1]
    value = value.detach().cpu()
    has_history = cache is not None and cache.is_initialized
    if name.startswith("cu_seq_lens"):
        _check_borders(name, value, shape, has_history)
    elif value.dim() != 2 or value.shape[1] != length or value.shape[0] not in (1, batch):
        raise ValueError(f"`{name}` has the shape {tuple(value.shape)}, but the input is {shape} (batch, length).")
    marks, step = document_marks(name, value, shape)
    is_token = torch.ones(shape, dtype=torch.bool) if mask is None else mask.detach().cpu()
    rows = is_token.nonzero()[:, 0]
    marks = marks.expand(shape)[is_token]
    first_of_row = torch.ones_like(rows, dtype=torch.bool)
    first_of_row[1:] = rows.diff() != 0
    begins = first_of_row.clone()
    begins[1:] |= marks.diff() != step
    continued = torch.zeros(int(begins.sum()), dtype=torch.bool)
    if cache is not None and has_history:
        if name == "seq_idx" and cache.document_ids is None:
            raise ValueError(
                "`cache` was filled without `seq_idx`: pass `position_ids` instead, or pass `seq_idx` with all "
                "pieces of the sequence."
            )
        goes_on = marks != 0 if cache.document_ids is None or step else marks == cache.document_ids.cpu()[rows]
        continued = (first_of_row & goes_on)[begins]
    if len(continued) == int(first_of_row.sum()) and (not has_history or bool(continued.all())):
        return None
    firsts = begins.nonzero().squeeze(1)
    lengths = torch.cat([firsts, torch.tensor([len(rows)])]).diff()
    places = is_token.flatten().nonzero().squeeze(1)
    return Documents(rows[firsts], lengths, places, shape, inputs.device, continued)


def _check_borders(name: str, borders: Tensor, shape: tuple[int, int], has_history: bool) -> None:
    count = shape[0] * shape[1]
    if has_history:
        raise ValueError(
            f"`{name}` does not tell whether a document continues the one in `cache`: pass `seq_idx` or "
            "`position_ids` instead."
        )
    is_list = borders.dim() == 1 and len(borders) > 1
    if not is_list or borders[0] != 0 or borders[-1] != count or borders.diff().min() < 1:
        shown = borders.tolist() if borders.numel() <= 20 else f"{borders.numel()} numbers"
        raise ValueError(
            f"`{name}` must rise from 0 to the number of positions, {shape[0]} x {shape[1]} = {count}, got {shown}."
        )
    if not torch.isin(torch.arange(0, count, shape[1]), borders).all():
        raise ValueError(f"`{name}` lets a document run from one row into the next: rows hold whole documents only.")


__all__ = ["document_marks", "find_documents"]
