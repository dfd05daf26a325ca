"""Long convolutions of many variants of one sequence, in each of which one token is masked.

They stand in the place of `StreamingConvolution` in the memory of a layer, and are extended by pieces as that is.

Legend: `V` rows, `L` length of a piece, `D` channels, `R` positions of the whole sequence, `K` positions of a change.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.long_conv.streaming import StreamingConvolution, Taps

__all__ = ["LastSum", "OneChange", "SharedPast"]


class SharedPast:
    """A long convolution that all variants of a batch go on with, from one past of theirs: it is read once.

    In the place of the stream that has read that past, for a single piece.

    Args:
        stream: What has read the past.
        last_only: Whether the output at the last position alone is wanted.
    """

    def __init__(self, stream: StreamingConvolution, *, last_only: bool = False):
        self._stream = stream
        self._last_only = last_only
        # Outputs of the past at the positions that follow, `(1, L, D)`, and the taps for inputs there, `(D, L)`.
        self._past: Tensor | None = None
        self._taps: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "SharedPast":
        return self

    def select(self, index: Tensor) -> None:
        """All rows are the same."""

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """As `StreamingConvolution.extend`, or of that the last position."""
        if self._past is None or self._taps is None:
            self._taps = taps(u.shape[1])
            precise = torch.promote_types(u.dtype, self._taps.dtype)
            nothing = torch.zeros_like(u[:1], dtype=precise)
            self._past = copy.copy(self._stream).extend(nothing, taps)
        if self._last_only:
            return (_weighted(u, self._taps) + self._past[:, -1]).unsqueeze(1).to(u.dtype)
        return (long_conv(u.to(self._past.dtype), self._taps).add_(self._past)).to(u.dtype)


class _OfRows:
    """What has one part for each row, which can be taken out and joined; the rest is the same for all."""

    _parts: tuple[str, ...] = ()

    def select(self, index: Tensor) -> None:
        """As `StreamingConvolution.select`."""
        for name in self._parts:
            setattr(self, name, getattr(self, name).index_select(0, index))

    @classmethod
    def join(cls, streams: Sequence[Any]) -> Any:
        """As `StreamingConvolution.join`."""
        joined = copy.copy(streams[0])
        if len(streams) > 1:
            for name in cls._parts:
                setattr(joined, name, torch.cat([getattr(stream, name) for stream in streams]))
        return joined


class OneChange(_OfRows):
    """Of rows whose inputs differ from those of the first row at K positions from a place of each on.

    Outputs are those of the first row and the K taps that the differences meet: there are no transforms of rows.

    Args:
        reach: K.
        length: R.

    Attributes:
        places: `(V,)`, to be set before each piece; the first row's is R or more.
    """

    _parts = ("_changes",)

    def __init__(self, reach: int, length: int):
        self.places = torch.zeros(0, dtype=torch.long)
        self._reach, self._length = reach, length
        # The inputs of the first row, `(1, L, D)`, and the differences from them as far as they are read, `(V, K, D)`.
        self._inputs: Tensor | None = None
        self._changes: Tensor = torch.zeros(0)

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """As `StreamingConvolution.extend`."""
        # Always as many, which are kept; their values do not depend on how many there are.
        kernel = taps(self._length)
        dtype = torch.promote_types(u.dtype, kernel.dtype)
        first = 0 if self._inputs is None else self._inputs.shape[1]
        own = u[:1].to(dtype)
        self._inputs = own if self._inputs is None else torch.cat([self._inputs, own], dim=1)
        self._take_changes(u.to(dtype), first)
        stop = first + u.shape[1]
        output = long_conv(self._inputs, kernel[:, :stop])[:, first:]
        return self._with_changes(output, kernel[:, :stop].T).to(u.dtype)

    def _take_changes(self, u: Tensor, first: int) -> None:
        if self._changes.dim() == 1:
            self._changes = u.new_zeros(len(u), self._reach, u.shape[2])
        at = self.places.unsqueeze(1) + torch.arange(self._reach, device=u.device) - first
        inside = ((at >= 0) & (at < u.shape[1])).unsqueeze(-1)
        at = at.clamp(0, u.shape[1] - 1)
        there = u.gather(1, at.unsqueeze(-1).expand(-1, -1, u.shape[2]))
        self._changes = torch.where(inside, there - u[0][at], self._changes)

    def _with_changes(self, output: Tensor, kernel: Tensor) -> Tensor:
        """Outputs `(1, L, D)` of the first row to those of all; the kernel `(S, D)` ends where the piece does."""
        length, spare = output.shape[1], self._reach - 1
        # The taps from the one that the last position of the change meets at the first position; of negative lag: 0.
        before = length + spare - 1
        padded = F.pad(kernel, (0, 0, before, 0)).contiguous()
        stop, channels = kernel.shape
        # Window `s` begins with the tap of lag `s - before`.
        windows = padded.as_strided((stop, (length + spare) * channels), (channels, 1))
        met = windows.index_select(0, (stop - 1 - self.places).clamp(min=0)).view(-1, length + spare, channels)
        outputs = torch.addcmul(output, met[:, spare:], self._changes[:, :1])
        for step in range(1, self._reach):
            outputs.addcmul_(met[:, spare - step : spare - step + length], self._changes[:, step : step + 1])
        return outputs


class LastSum(_OfRows):
    """Gives the output at the last position of the whole sequence alone, once that is read: a sum that goes on.

    Args:
        length: R.
    """

    _parts = ("_sums",)

    def __init__(self, length: int):
        self._length, self._read = length, 0
        self._sums: Tensor = torch.zeros(0)

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """What the inputs so far give at the last position of the sequence, `(V, 1, D)`."""
        left = self._length - self._read
        self._read += u.shape[1]
        added = _weighted(u, taps(self._length)[:, left - u.shape[1] : left])
        self._sums = added if self._sums.dim() == 1 else self._sums + added
        return self._sums.unsqueeze(1).to(u.dtype)


def _weighted(u: Tensor, taps: Tensor) -> Tensor:
    """What inputs `(V, L, D)` give at one position, `(V, D)`, by taps `(D, L)`: the last input meets the first tap."""
    return (u * taps.flip(-1).T).sum(1)
