"""Return of a cache to an earlier position, as assisted generation needs where a draft is rejected.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hf_ssm.modules.rows import Rows

# Reads hidden states `(B, L, D)` with their rows into the cache, and returns the hidden states of every layer.
ReadPiece = Callable[[Tensor, Rows], list[Tensor]]

# At the end of a longer piece, such as a prompt with a draft behind it, so many positions are read by themselves.
LONGEST_DRAFT = 64


class PastRecording:
    """The last pieces that a cache has read, and the states before them.

    A recurrent state cannot be computed backwards. So the recording copies the states before the first piece that
    follows a crop, and keeps the embedded inputs since then; `crop` returns to the copy and reads what remains once
    more, in one pass. It costs the memory of one more cache, one copy of it for each draft (of a streaming convolution
    all inputs of the sequence, O(L D)), and where a draft is rejected a pass over its accepted tokens.
    """

    def __init__(self) -> None:
        # The copies, each with the pieces read after it.
        self._copies: list[tuple[Any, list[tuple[Tensor, Rows]]]] = []
        self._read: ReadPiece | None = None

    def forget(self) -> None:
        """Remove everything recorded: the cache cannot return to before its present position."""
        self._copies, self._read = [], None

    def read(self, cache: Any, read: ReadPiece, hidden_states: Tensor, rows: Rows) -> list[Tensor]:
        """Read a piece, and remember how to return to any of its positions.

        Args:
            cache: The cache that `read` changes.
            read: Reads the piece.
            hidden_states: `(B, L, D)`.
            rows: What is known of the piece.
        """
        self._read = read
        beginning, end = _split(hidden_states, rows, max(hidden_states.shape[1] - LONGEST_DRAFT, 0))
        if beginning is None or end is None:
            return self._read_piece(cache, hidden_states, rows)
        pairs = zip(self._read_piece(cache, *beginning), self._read_piece(cache, *end, copies=True), strict=True)
        return [torch.cat(pair, dim=1) for pair in pairs]

    def _read_piece(self, cache: Any, hidden_states: Tensor, rows: Rows, copies: bool = False) -> list[Tensor]:
        assert self._read is not None
        if copies or not self._copies:
            self._copies.append((copy.deepcopy(cache), []))
        outputs = self._read(hidden_states, rows)
        pieces = self._copies[-1][1]
        if pieces and _is_plain(rows) and _is_plain(pieces[-1][1]):
            # Tokens that an assistant has generated one by one are read again together.
            hidden_states = torch.cat([pieces.pop()[0], hidden_states], dim=1)
        pieces.append((hidden_states, rows))
        return outputs

    def crop(self, cache: Any, count: int) -> None:
        """Return to `count` positions.

        Raises:
            ValueError: The recording does not reach back so far.
        """
        copies, read = self._copies, self._read
        self.forget()
        while copies and copies[-1][0].get_seq_length() > count:
            copies.pop()
        if not copies or read is None:
            raise ValueError(
                f"The cache cannot return to {count} positions, because it keeps no states from before the last crop "
                "or the last packed rows: copy the cache (copy.deepcopy) before you read tokens that may have to be "
                "removed."
            )
        earlier, pieces = copies[-1]
        cache.restore(earlier)
        for piece in pieces:
            kept, _ = _split(*piece, count - cache.get_seq_length())
            if kept is not None:
                read(*kept)


def _is_plain(rows: Rows) -> bool:
    return rows.mask is None and not rows.extra


def _split(
    hidden_states: Tensor, rows: Rows, count: int
) -> tuple[tuple[Tensor, Rows] | None, tuple[Tensor, Rows] | None]:
    """The first `count` positions of a piece and the others; `None` where there are none."""
    if count <= 0:
        return None, (hidden_states, rows)
    if count >= hidden_states.shape[1]:
        return (hidden_states, rows), None
    first = hidden_states[:, :count], rows.moved(lambda values: values[:, :count])
    return first, (hidden_states[:, count:], rows.moved(lambda values: values[:, count:]))


__all__ = ["PastRecording"]
