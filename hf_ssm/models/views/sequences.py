"""The sequences of a batch as rows that layers read: their tokens stand together, and nothing else is in the row.

A sequence is the tokens that a mask keeps of a row, or one document of packed rows. Layers read each as a row of its
own. Behind the layers, the output of a token goes back to its position, and a masked position repeats the output of the
last token before it, so the last position of a row always has the output of its last token.

Legend: `B` batch, `L` length, `D` hidden size, `n` sequences, `M` length of the rows of a bucket, `T` tokens.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hf_ssm.modules.rows import Rows
from hf_ssm.ops.context import has_readable_values

# A bucket holds documents of at least this share of its longest one, and all documents of at most so many tokens.
_SHARE, _SHORT = 0.35, 128


class Bucket(NamedTuple):
    """Sequences that layers read together.

    Attributes:
        positions: Where in the flattened rows of the client, `(n, M)`.
        mask: `(n, M)`, true at tokens; `None` where there is no padding.
    """

    positions: Tensor
    mask: Tensor | None

    def take(self, values: Tensor) -> Tensor:
        """From rows of the client `(B, L, ...)` to `(n, M, ...)`."""
        index = self.positions.to(values.device)
        return values.flatten(0, 1).index_select(0, index.flatten()).unflatten(0, index.shape)

    def rows(self, rows: Rows) -> Rows:
        """Mask and extra inputs of these rows."""
        return rows._replace(mask=self.mask, extra={name: self.take(value) for name, value in rows.extra.items()})


class Arrangement(NamedTuple):
    """The rows that layers read, and where the outputs for the client come from.

    Attributes:
        buckets: The rows.
        source: For each position of the client, the place in the flattened outputs of the buckets, `(B, L)`.
    """

    buckets: list[Bucket]
    source: Tensor

    def restore(self, outputs: Sequence[Tensor]) -> Tensor:
        """From outputs of the buckets, `(n, M, D)` each, to `(B, L, D)`."""
        flat = torch.cat([output.flatten(0, 1) for output in outputs])
        return flat.index_select(0, self.source.flatten()).unflatten(0, self.source.shape)


def has_holes(mask: Tensor) -> bool:
    """Whether a row of a mask `(B, L)` has padding between tokens."""
    # Along a row without holes the mask rises and falls at most once.
    return bool((nn.functional.pad(mask.int(), (1, 1)).diff(dim=1).abs().sum(dim=1) > 2).any())


def arrange_tokens(mask: Tensor, *, at_end: bool = False) -> Arrangement | None:
    """Move the tokens of each row together; `None` for rows that stay as they are, padded on the left at most.

    No size depends on values, which are read on a CPU only.

    Args:
        mask: `(B, L)`, bool.
        at_end: Whether the tokens come last, as the state of a layer needs it, or first.
    """
    if has_readable_values(mask) and mask[:, -1].all() and not has_holes(mask):
        return None
    batch, length = mask.shape
    tokens, others = mask.long().cumsum(1), (~mask).long().cumsum(1)
    counts, steps = tokens[:, -1:], torch.arange(length, device=mask.device)
    first = length - counts if at_end else torch.zeros_like(counts)
    places = torch.where(mask, first + tokens, others if at_end else counts + others) - 1
    order = torch.zeros_like(places).scatter(1, places, steps.expand_as(places))
    starts = length * torch.arange(batch, device=mask.device).unsqueeze(1)
    present = steps >= first if at_end else steps < counts
    return Arrangement([Bucket(starts + order, present)], starts + (first + tokens - 1).clamp(min=0))


class Documents:
    """Sequences of which a row may hold several.

    Args:
        rows: Row of each document, `(n,)`, int64 on the CPU; documents are in the order of rows and positions.
        lengths: Number of tokens, `(n,)`, likewise.
        places: Positions of all tokens in the flattened rows, `(T,)`, likewise.
        shape: `(B, L)` of the rows.
        device: Where the tensors of the model are.
        continued: Whether a document continues that of a cache, `(n,)`, on the CPU; default: none does.
    """

    def __init__(
        self,
        rows: Tensor,
        lengths: Tensor,
        places: Tensor,
        shape: tuple[int, int],
        device: torch.device | None = None,
        continued: Tensor | None = None,
    ):
        self.rows, self.lengths, self.places, self.shape, self.device = rows, lengths, places, shape, device
        self.continued = torch.zeros(len(rows), dtype=torch.bool) if continued is None else continued

    @classmethod
    def of_rows(cls, mask: Tensor, continued: Tensor) -> "Documents":
        """The tokens of each row that has any; `continued` is `(B,)`."""
        kept = mask.cpu()
        lengths = kept.sum(1)
        rows = lengths.nonzero().squeeze(1)
        places = kept.flatten().nonzero().squeeze(1)
        shape = kept.shape[0], kept.shape[1]
        return cls(rows, lengths[rows], places, shape, mask.device, continued.cpu()[rows])

    def with_empty_rows(self) -> "Documents":
        """Also a document without tokens for each row that has none."""
        rows = torch.arange(self.shape[0])
        rows = torch.cat([self.rows, rows[~torch.isin(rows, self.rows)]])
        order, added = rows.argsort(stable=True), (0, len(rows) - len(self))
        lengths, continued = (nn.functional.pad(values, added)[order] for values in (self.lengths, self.continued))
        return Documents(rows[order], lengths, self.places, self.shape, self.device, continued)

    def __len__(self) -> int:
        return len(self.lengths)

    def longest_after(self, history: int) -> int:
        """Length of the longest document, including the `history` positions in the cache of one that continues."""
        return int((self.lengths + history * self.continued).max())

    def bucket(self, numbers: Tensor | None = None, *, least: int = 1, at_end: bool = False) -> Bucket:
        """These documents (default: all) as one batch, of rows with at least so many positions.

        Args:
            numbers: Which documents.
            least: Smallest length of the rows.
            at_end: Whether padding comes first.
        """
        numbers = torch.arange(len(self)) if numbers is None else numbers
        lengths = self.lengths[numbers].unsqueeze(1)
        longest = max(least, int(lengths.max()))
        steps = torch.arange(longest) - (longest - lengths if at_end else 0)
        present = (steps >= 0) & (steps < lengths)
        starts = (self.lengths.cumsum(0) - self.lengths)[numbers].unsqueeze(1)
        # Padding repeats the first token.
        index = (starts + torch.where(present, steps, 0)).clamp(max=len(self.places) - 1)
        mask = None if bool(present.all()) else present.to(self.device)
        return Bucket(self.places[index].to(self.device), mask)

    def arrange(self, groups: Sequence[Tensor], *, least: int = 1, at_end: bool = False) -> Arrangement:
        """Make a bucket of each group of documents; together they are all documents."""
        buckets = [self.bucket(numbers, least=least, at_end=at_end) for numbers in groups]
        batch, length = self.shape
        slots, first = torch.zeros(batch * length, dtype=torch.long), 0
        for positions, mask in buckets:
            places = torch.arange(first, first := first + positions.numel()).view(positions.shape)
            present = torch.ones_like(places, dtype=torch.bool) if mask is None else mask.cpu()
            slots[positions.cpu()[present]] = places[present]
        is_token = torch.zeros_like(slots).index_fill(0, self.places, 1)
        source = slots[self.places][(is_token.cumsum(0) - 1).clamp(min=0)]
        return Arrangement(buckets, source.view(batch, length).to(self.device))

    def of_similar_length(self) -> list[Tensor]:
        """All documents in groups of similar length."""
        order = self.lengths.argsort(descending=True, stable=True)
        sizes = self.lengths[order].tolist()
        borders = [0]
        for place, size in enumerate(sizes):
            longest = sizes[borders[-1]]
            if size < _SHARE * longest and longest > _SHORT:
                borders.append(place)
        return [order[start:stop] for start, stop in pairwise([*borders, len(sizes)])]


__all__ = ["Arrangement", "Bucket", "Documents", "arrange_tokens", "has_holes"]
