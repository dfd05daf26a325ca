"""Return of a cache to an earlier position, as assisted generation needs where a draft is rejected.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from hf_ssm.modules.rows import Rows

# At the end of a longer piece, such as a prompt with a draft behind it, so many positions are read by themselves.
LONGEST_DRAFT = 64


class PastRecording:
    """The pieces that a cache has read since the last crop, and the states before each.

    A recurrent state cannot be computed backwards. So `crop` returns to the states before a piece, and reads the kept
    part of this piece once more. The recording keeps the states of one more cache for each piece.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Any, Tensor, Rows]] = []
        self._read: Callable[[Tensor, Rows], list[Tensor]]

    def forget(self) -> None:
        """Remove everything recorded: the cache cannot return to before its present position."""
        self._pieces = []

    def read(
        self, cache: Any, read: Callable[[Tensor, Rows], list[Tensor]], hidden_states: Tensor, rows: Rows
    ) -> list[Tensor]:
        """Read a piece, and remember how to return to any of its positions.

        Args:
            cache: The cache that `read` changes.
            read: Reads hidden states with their rows into the cache, and returns the hidden states of every layer.
            hidden_states: `(B, L, D)`.
            rows: Mask and extra inputs of the piece.
        """
        self._read = read
        cut = max(hidden_states.shape[1] - LONGEST_DRAFT, 0)
        outputs = []
        for place in (slice(cut), slice(cut, None)) if cut else (slice(None),):
            piece = hidden_states[:, place], rows.moved(itemgetter((slice(None), place)))
            self._pieces.append((cache.with_layers([layer.snapshot() for layer in cache.states]), *piece))
            outputs.append(read(*piece))
        return [torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True)] if cut else outputs[0]

    def crop(self, cache: Any, count: int) -> bool:
        """Return to `count` positions; false if the recording does not reach back so far."""
        pieces, self._pieces = self._pieces, []
        while pieces:
            snapshot, hidden_states, rows = pieces.pop()
            if (kept := count - snapshot.length) >= 0:
                vars(cache).update(vars(snapshot) | {"recording": self})
                if kept:
                    self._read(hidden_states[:, :kept], rows.moved(lambda values: values[:, :kept]))
                return True
        return False


__all__ = ["PastRecording"]
