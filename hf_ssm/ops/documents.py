"""Several documents in one row: their boundaries, and the rows in which layers read them.

Legend: `B` batch, `L` length of the packed rows, `n` documents, `M` length of the rows of a bucket.

Operations that mix positions must not cross from one document to the next. So a model moves documents to padded rows of
their own before its first layer, and back behind the last one. Documents of similar length form a bucket, which the
layers read as one batch. The work grows with the number of tokens, whatever the number of documents;
`benchmarks/packing.py` compares the alternatives.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Bucket", "Documents", "document_starts"]

# A bucket holds documents of at least this share of its longest one, and all documents of at most so many tokens.
_SHARE, _SHORT = 0.35, 128


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


class Bucket(NamedTuple):
    """Documents of similar length as rows of their own, with the tokens on the left.

    Attributes:
        numbers: Which documents, `(n,)`, on the CPU.
        positions: Where in the flattened packed rows, `(n, M)`; padding repeats the first token of its document.
        mask: `(n, M)`, true at tokens; `None` where there is no padding.
    """

    numbers: Tensor
    positions: Tensor
    mask: Tensor | None

    def take(self, packed: Tensor) -> Tensor:
        """From packed rows `(B, L, ...)` to rows of documents, `(n, M, ...)`."""
        index = self.positions.to(packed.device)
        return packed.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, tuple(index.shape))


class Documents:
    """The documents in packed rows.

    Args:
        rows: Row of each document, `(n,)`, int64 on the CPU; documents are in the order of rows and positions.
        starts: First position in the row, `(n,)`, likewise.
        lengths: Number of tokens, `(n,)`, likewise, all positive.
        shape: `(B, L)` of the packed rows.
        device: Where the tensors of the model are.
        continued: Whether a document continues that of a cache, `(n,)`, on the CPU; default: none does.

    Attributes:
        longest: Length of the longest document.
    """

    def __init__(
        self,
        rows: Tensor,
        starts: Tensor,
        lengths: Tensor,
        shape: tuple[int, int],
        device: torch.device | None = None,
        *,
        continued: Tensor | None = None,
    ):
        self.rows, self.starts, self.lengths, self.shape, self.device = rows, starts, lengths, shape, device
        self.longest = int(lengths.max())
        self.continued = torch.zeros(len(rows), dtype=torch.bool) if continued is None else continued

    def __len__(self) -> int:
        return len(self.lengths)

    def longest_after(self, history: int) -> int:
        """Length of the longest document, including the `history` positions in the cache of one that continues."""
        return int((self.lengths + history * self.continued).max())

    def bucket(self, numbers: Tensor | None = None, least: int = 1) -> Bucket:
        """These documents (default: all) as one batch, of rows with at least so many positions."""
        numbers = torch.arange(len(self)) if numbers is None else numbers
        lengths = self.lengths[numbers].unsqueeze(1)
        steps = torch.arange(max(least, int(lengths.max())))
        present = steps < lengths
        firsts = (self.rows * self.shape[1] + self.starts)[numbers].unsqueeze(1)
        index = (firsts + torch.where(present, steps, 0)).to(self.device)
        return Bucket(numbers, index, None if bool(present.all()) else present.to(self.device))

    def buckets(self) -> list[Bucket]:
        """All documents, those of similar length together."""
        order = self.lengths.argsort(descending=True, stable=True)
        sizes = self.lengths[order].tolist()
        borders = [0]
        for place, size in enumerate(sizes):
            longest = sizes[borders[-1]]
            if size < _SHARE * longest and longest > _SHORT:
                borders.append(place)
        return [self.bucket(order[start:stop]) for start, stop in pairwise([*borders, len(sizes)])]

    def restore(self, buckets: Sequence[Bucket], outputs: Sequence[Tensor]) -> Tensor:
        """From outputs of buckets, `(n, M, ...)` each, to packed rows `(B, L, ...)`, zero where no document is."""
        device, size = outputs[0].device, self.shape[0] * self.shape[1]
        place = torch.full((size,), sum(output.shape[0] * output.shape[1] for output in outputs), device=device)
        first = 0
        for bucket in buckets:
            index = bucket.positions.to(device)
            slots = first + torch.arange(index.numel(), device=device).view_as(index)
            first += index.numel()
            place[index] = slots
            # Padding has the position of the first token, which is the right one.
            place[index[:, 0]] = slots[:, 0]
        flat = torch.cat(
            [*(output.flatten(0, 1) for output in outputs), outputs[0].new_zeros(1, *outputs[0].shape[2:])]
        )
        return flat.index_select(0, place).unflatten(0, self.shape)
