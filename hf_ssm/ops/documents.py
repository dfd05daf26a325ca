"""Several documents in one row: their boundaries, and the layout in which operations read them.

Legend: `B` batch, `L` length of the packed rows, `n` documents, `T` positions of the layout.

Operations that mix positions must not cross from one document to the next. A model therefore rearranges packed rows
once, before its first layer: documents of similar length form a padded batch (a bucket), and all buckets lie one after
the other in a single row of `T` positions. Operations on single positions read that row as it is; operations that mix
positions read each bucket, a view of it, as an ordinary batch. The work grows with the number of tokens, whatever the
number of documents; `benchmarks/packing.py` compares the alternatives.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["Documents", "document_starts"]

# A bucket holds documents of at least this share of its longest one, and all documents of at most so many tokens.
_SHARE, _SHORT = 0.8, 16


def document_starts(seq_idx: Tensor | None, x: Tensor) -> Tensor | None:
    """Whether a document other than the first of its row begins at a position, `(B, L)`.

    Raises:
        ValueError: Another shape than the first two axes of `x`.
        TypeError: Not integers.
    """
    if seq_idx is None:
        return None
    if seq_idx.shape != x.shape[:2]:
        raise ValueError(f"seq_idx must have shape (batch, length) = {tuple(x.shape[:2])}, got {tuple(seq_idx.shape)}")
    if seq_idx.is_floating_point() or seq_idx.is_complex() or seq_idx.dtype == torch.bool:
        raise TypeError(f"seq_idx must be of an integer type, got {seq_idx.dtype}")
    # Without slices, of whose length an exported program would have to know whether it is 1.
    begins = torch.arange(x.shape[1], device=seq_idx.device) > 0
    return (seq_idx != seq_idx.roll(1, 1)) & begins


class _Rearrange(torch.autograd.Function):
    """`tokens[index]`, whose gradient is `grad[inverse]`: on a CPU far faster than a sum over an index.

    `is_source` and `is_target` are true at the entries of `tokens` and of the result that correspond one to one; the
    others get no gradient.
    """

    @staticmethod
    def forward(tokens: Tensor, index: Tensor, inverse: Tensor, is_source: Tensor, is_target: Tensor) -> Tensor:
        return tokens.index_select(0, index)

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return _Rearrange.apply(tangent, *ctx.saved_tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        index, inverse, is_source, is_target = ctx.saved_tensors
        found = _Rearrange.apply(grad, inverse, index, is_target, is_source)
        return found * is_source.view(-1, *[1] * (grad.dim() - 1)), None, None, None, None


class Documents:
    """The documents in packed rows, and their arrangement in buckets.

    Args:
        rows: Row of each document, `(n,)`, int64 on the CPU; documents are in the order of rows and positions.
        starts: First position in the row, `(n,)`, likewise.
        lengths: Number of tokens, `(n,)`, likewise, all positive.
        shape: `(B, L)` of the packed rows.
        device: Where the tensors of the model are.
        share: Documents of a bucket have at least this share of the length of its longest one.
        continued: Whether a document continues that of a cache, `(n,)`, on the CPU; default: none does.

    Attributes:
        mask: `(1, T)`, false at padding of the buckets; `None` where there is none.
        masks: Mask of each bucket, `(documents, length)` or `None`.
        longest: Length of the longest document.
        order: Number of each document, in the order of the buckets, `(n,)`.
    """

    is_shared = False

    def __init__(
        self,
        rows: Tensor,
        starts: Tensor,
        lengths: Tensor,
        shape: tuple[int, int],
        device: torch.device | None = None,
        *,
        share: float = _SHARE,
        continued: Tensor | None = None,
    ):
        self.rows, self.starts, self.lengths, self.shape = rows, starts, lengths, shape
        self.longest = int(lengths.max())
        self.continued = torch.zeros(len(rows), dtype=torch.bool) if continued is None else continued
        self.order = order = lengths.argsort(descending=True, stable=True)
        sizes = lengths[order].tolist()
        borders = [0]
        for place, size in enumerate(sizes):
            longest = sizes[borders[-1]]
            if size < share * longest and longest > _SHORT:
                borders.append(place)
        borders.append(len(sizes))
        # Number of documents and of positions of each bucket.
        self.buckets = [(stop - start, sizes[start]) for start, stop in pairwise(borders)]
        firsts = (rows * shape[1] + starts)[order]
        index, present = [], []
        for (start, stop), (_, size) in zip(pairwise(borders), self.buckets, strict=True):
            steps = torch.arange(size)
            there = steps < lengths[order[start:stop]].unsqueeze(1)
            # Padding repeats the first token of its document, so that it holds ordinary numbers.
            index.append((firsts[start:stop].unsqueeze(1) + torch.where(there, steps, 0)).flatten())
            present.append(there)
        layout, tokens = torch.cat(index), torch.cat([there.flatten() for there in present])
        at = torch.zeros(shape[0] * shape[1], dtype=torch.long)
        at[layout[tokens]] = tokens.nonzero().squeeze(1)
        is_token = torch.zeros(len(at), dtype=torch.bool)
        is_token[layout] = True
        # What `_Rearrange` needs to go from packed rows to the layout; for the way back, in another order.
        self._places = tuple(part.to(device) for part in (layout, at, is_token, tokens))
        self.mask = None if bool(tokens.all()) else self._places[-1].unsqueeze(0)
        self.masks: list[Tensor | None] = [None if bool(there.all()) else there.to(device) for there in present]

    def __len__(self) -> int:
        return len(self.lengths)

    def longest_after(self, history: int) -> int:
        """Length of the longest document, including the `history` positions in the cache of one that continues."""
        return int((self.lengths + history * self.continued).max())

    def arrange(self, packed: Tensor) -> Tensor:
        """From packed rows `(B, L, ...)` to the layout `(1, T, ...)`; padding holds copies of tokens."""
        places = (part.to(packed.device) for part in self._places)
        return _Rearrange.apply(packed.flatten(0, 1), *places).unsqueeze(0)

    def restore(self, arranged: Tensor) -> Tensor:
        """From the layout `(1, T, ...)` to packed rows `(B, L, ...)`, meaningless where no document is."""
        layout, at, is_token, is_copied = (part.to(arranged.device) for part in self._places)
        return _Rearrange.apply(arranged[0], at, layout, is_copied, is_token).unflatten(0, self.shape)

    def batches(self, arranged: Tensor) -> list[Tensor]:
        """Views of the layout `(1, T, ...)`: the batch `(documents, length, ...)` of each bucket."""
        parts = arranged[0].split([count * size for count, size in self.buckets])
        return [part.unflatten(0, bucket) for part, bucket in zip(parts, self.buckets, strict=True)]

    def masks_on(self, device: torch.device) -> list[Tensor | None]:
        """`masks` on a device: the layers of a model may be spread over several."""
        return [None if mask is None else mask.to(device) for mask in self.masks]

    def masked_batches(self, arranged: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The batch `(documents, length, ...)` and the mask of each bucket."""
        return list(zip(self.batches(arranged), self.masks_on(arranged.device), strict=True))

    def join(self, batches: Sequence[Tensor]) -> Tensor:
        """The layout `(1, T, ...)` of the batches of all buckets."""
        return torch.cat([batch.flatten(0, 1) for batch in batches]).unsqueeze(0)

    def map(self, function: Callable[..., Tensor], *arranged: Tensor | None, split: Any = None) -> Tensor:
        """Apply a function of batches to each bucket.

        Args:
            function: Called with one batch `(documents, length, ...)` for each tensor (`None` for `None`) and the mask
                of the bucket, `(documents, length)` or `None`.
            *arranged: Tensors `(1, T, ...)`, or `None`.
            split: Without effect: all documents are those of this process.

        Returns:
            The results `(documents, length, ...)` in the layout, `(1, T, ...)`.
        """
        parts = [[None] * len(self.buckets) if whole is None else self.batches(whole) for whole in arranged]
        masks = self.masks_on(next(whole for whole in arranged if whole is not None).device)
        return self.join([function(*batch) for batch in zip(*parts, masks, strict=True)])

    def by_document(self, arranged: Tensor, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """One result for each document, `(n, ...)`, in their order.

        Args:
            arranged: `(1, T, ...)`.
            function: Called with the batch and the mask of a bucket; returns `(documents, ...)`.
        """
        found = torch.cat([function(*part) for part in self.masked_batches(arranged)])
        return found[self.order.argsort().to(found.device)]

    def reversed(self) -> "Documents":
        """The same layout with the positions of each bucket in reverse order, as `flip` returns them."""
        other = copy.copy(self)
        other.masks = [None if mask is None else mask.flip(1) for mask in self.masks]
        other.mask = None if self.mask is None else self.flip(self.mask)
        return other

    def flip(self, arranged: Tensor) -> Tensor:
        """Reverse the positions of each bucket."""
        return self.join([batch.flip(1) for batch in self.batches(arranged)])
