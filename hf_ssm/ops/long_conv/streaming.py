"""Causal long convolution of a sequence that arrives in chunks.

Dimensions: `B` batch, `L` length of a chunk, `T` positions read, `D` channels, `K` taps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.long_conv import long_conv

__all__ = ["StreamingConvolution"]

Taps = Callable[[int], Tensor]

# For more tokens than this, one transform of the whole sequence is faster than a sum for each of them.
_DIRECT_TOKENS = 16
# Numbers that are multiplied and added together, for the cache.
_BLOCK = 1 << 18
# Taps to ask for at least, after the first chunk, which has the digits of the convolution without stream.
_FEWEST_TAPS = 64


class StreamingConvolution:
    """The exact convolution `y[t] = Σ_{j<=t} k[t-j] u[j]`, continued by chunks of any length: it keeps all inputs.

    The output of a single token is a sum over the inputs, that of a long chunk a convolution of the whole sequence.
    With gradients, those of a chunk and of the taps reach back as far as chunks were read with gradients.

    Args:
        longest: Largest number of positions, such as the `max_position_embeddings` of an implicit filter; default no
            limit.

    Attributes:
        history: All inputs seen, `(B, T, D)`, the same tensor until the next chunk; `None` before the first chunk.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.history: Tensor | None = None
        # Memory whose first positions are the history, (B, capacity, D); and the last taps first, (K, D).
        self._room: Tensor | None = None
        self._weights: Tensor | None = None

    @classmethod
    def from_history(cls, history: Tensor, longest: int | None = None) -> "StreamingConvolution":
        """The stream that has seen these inputs, `(B, T, D)`; they are not copied."""
        stream = cls(longest)
        stream.history = history
        return stream

    @property
    def length(self) -> int:
        """Number of inputs seen, including leading zeros of `join`."""
        return 0 if self.history is None else self.history.shape[1]

    def __getstate__(self) -> dict[str, Any]:
        # Only leaves of an autograd graph can be copied; copies must not write to the same memory.
        history = None if self.history is None else self.history.detach().clone()
        return self.__dict__ | {"history": history, "_room": None}

    def extend(self, u: Tensor, taps: Taps) -> Tensor:
        """Append a chunk of the input and return the outputs at its positions.

        Args:
            u: The chunk, `(B, L, D)`.
            taps: Function that returns the first `n` taps `(D, n)`, whose values do not depend on `n`. Without
                gradients they are kept, and each call asks for at least twice as many as the one before.

        Returns:
            `(B, L, D)` in the dtype of `u`. Half precision is computed in float32; float64, of the input or of the
            taps, stays float64.

        Raises:
            ValueError: There are more positions than `longest`.
        """
        count = u.shape[1]
        length = self.length + count
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"the sequence would have {length} positions, but the implicit filter has taps for {self.longest} "
                "(`max_position_embeddings`): shorten the sequence, or train a model with a larger value"
            )
        if self._weights is not None and torch.promote_types(u.dtype, self._weights.dtype) != self._weights.dtype:
            self._weights = None
        weights = self._last_taps_first(length, taps)
        direct = _DIRECT_TOKENS if self.length else 1
        history = self._append(u.to(torch.promote_types(u.dtype, weights.dtype)))
        if type(count) is not int or count > direct:
            return long_conv(history, weights.flip(0).T.contiguous())[:, -count:].to(u.dtype)
        seen = [length - count + 1 + i for i in range(count)]
        return torch.stack([_sum_of_products(history[:, :n], weights[-n:]) for n in seen], dim=1).to(u.dtype)

    def first_taps(self, count: int, taps: Taps) -> Tensor:
        """The first `count` taps `(D, count)`."""
        return self._last_taps_first(count, taps).flip(0).T

    def _last_taps_first(self, count: int, taps: Taps) -> Tensor:
        """The first `count` taps in reverse order, `(count, D)`, at least float32."""
        if torch.is_grad_enabled() or is_exporting():
            first = taps(count)
            return first.to(torch.promote_types(first.dtype, torch.float32)).flip(-1).T
        kept = 0 if self._weights is None else len(self._weights)
        if self._weights is None or kept < count:
            wanted = max(count, 2 * kept, _FEWEST_TAPS if self.length else 0)
            wanted = wanted if self.longest is None else min(wanted, self.longest)
            first = taps(wanted)
            precise = first.to(torch.promote_types(first.dtype, torch.float32))
            self._weights = precise.T.flip(0).contiguous()
        return self._weights[-count:]

    def _append(self, u: Tensor) -> Tensor:
        """Append `u` `(B, L, D)` to the history, in the more precise of their dtypes, and return the history."""
        before, length = self.history, self.length + u.shape[1]
        if torch.is_grad_enabled() or is_exporting():
            self.history, self._room = torch.cat([u] if before is None else [before.to(u.dtype), u], dim=1), None
            return self.history
        dtype = u.dtype if before is None else torch.promote_types(u.dtype, before.dtype)
        room = self._room
        if room is None or room.shape[1] < length or room.dtype != dtype or not _is_writable(room):
            room = u.new_empty(u.shape[0], length if before is None else 2 * length, u.shape[2], dtype=dtype)
            if before is not None:
                room[:, : self.length] = before
        room[:, self.length : length] = u
        self.history, self._room = room[:, :length], room
        return self.history

    def detach_(self) -> None:
        """Cut the stream off the autograd graph of its inputs."""
        self.history = None if self.history is None else self.history.detach()

    def replace_history(self, history: Tensor) -> None:
        """Go on from other inputs, `(B, T, D)`, as many as now."""
        self.history, self._room = history, None

    def select(self, index: Tensor) -> None:
        """Keep, reorder or repeat rows of the batch, as in a beam search: rows in their new order, `(new B,)`."""
        if self.history is not None:
            self.history, self._room = self.history.index_select(0, index.to(self.history.device)), None

    def keep_last(self, count: int) -> None:
        """Keep the last `count` inputs, where those before are zeros, such as the leading zeros of `join`."""
        if self.history is not None and count < self.length:
            self.history, self._room = self.history[:, self.length - count :], None

    @classmethod
    def join(cls, streams: "Sequence[StreamingConvolution]") -> "StreamingConvolution":
        """One stream with the rows of all `streams`, which have the same taps; the inverse is `select`.

        Shorter streams are padded with leading zeros, which do not change a convolution.
        """
        histories = [stream.history for stream in streams if stream.history is not None]
        length = max(history.shape[1] for history in histories)
        padded = [F.pad(history, (0, 0, length - history.shape[1], 0)) for history in histories]
        joined = cls.from_history(torch.cat(padded), streams[0].longest)
        joined._weights = streams[0]._weights
        return joined


def _sum_of_products(history: Tensor, weights: Tensor) -> Tensor:
    """`Σ_t history[:, t] weights[t]`, `(B, D)`, of `(B, T, D)` and `(T, D)`."""
    if is_exporting():
        return (history * weights).sum(1)
    size = max(1, _BLOCK // max(1, history.shape[0] * history.shape[2]))
    pairs = zip(history.split(size, dim=1), weights.split(size), strict=True)
    total, *others = [(inputs * taps).sum(1) for inputs, taps in pairs]
    for other in others:
        total = total + other
    return total


def _is_writable(tensor: Tensor) -> bool:
    # Inference tensors cannot be modified outside inference mode.
    return not tensor.is_inference() or torch.is_inference_mode_enabled()
