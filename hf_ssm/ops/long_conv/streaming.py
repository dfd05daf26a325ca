"""Causal long convolution of a sequence that arrives in chunks.

Dimensions: `B` batch, `L` length of a chunk, `D` channels, `K` taps, `W` outputs of a window.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.long_conv import long_conv, next_fast_len

__all__ = ["StreamingConvolution"]

Taps = Callable[[int], torch.Tensor]

# Positions of a block, a power of two. Inputs contribute to the outputs of their own block one by one, and to those of
# later blocks by transforms; at 64 both cost about the same on a CPU.
_STREAM_BLOCK = 64
# For more tokens than this, one transform is faster than a loop over them.
_DIRECT_TOKENS = 16
# A longer chunk takes one transform of the whole sequence if it is at least this fraction (the inverse) of it.
_LONG_CHUNK_SHARE = 8


class StreamingConvolution:
    """The exact convolution `y[t] = Σ_{j<=t} k[t-j] u[j]`, continued by chunks of any length.

    Outputs are accumulated in windows, each half as long to as long as the sequence before it. A window opens with one
    transform for all inputs before it. Inside it, an input is added immediately to the outputs of its own block of 64;
    at the end of the block with local number `2^p q`, q odd, the last `2^p` blocks are added to the next `2^p` by one
    transform, so that each input contributes to each later output once. `L` tokens cost `O(L log² L)` per channel for
    any chunks, without recomputing the prefix; a chunk that is long enough takes one transform of the whole instead.

    With gradients (enabled, and required by a chunk or the taps) each chunk costs a convolution of the whole sequence,
    in functional form, differentiable. No gradient flows back beyond a chunk without gradients.

    The taps and their spectra are kept: call `reset` when the kernel changes. A copy or a pickle is independent, and
    holds values without their autograd graph.

    Args:
        longest: Largest number of positions, such as the `max_position_embeddings` of an implicit filter; default no
            limit.

    Attributes:
        length: Number of inputs seen, including leading zeros of `join`.

    Source: Fischer & Stockmeyer 1974, "Fast on-line integer multiplication"; van der Hoeven 2002, "Relax, but don't be
    too lazy", for power series.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.reset()

    def reset(self) -> None:
        """Clear all inputs and the taps."""
        self.length = 0
        # The dtype of the computation.
        self._dtype = torch.float32
        # (B, capacity, D); the first `length` positions are inputs.
        self._history: torch.Tensor | None = None
        # (D, K); the first 64 of them or fewer, as (64, D); spectra of the first n taps, by n.
        self._taps: torch.Tensor | None = None
        self._near: torch.Tensor | None = None
        self._spectra: dict[int, torch.Tensor] = {}
        # (B, W, D), partial sums of the outputs from position `_opened` on.
        self._pending: torch.Tensor | None = None
        self._opened = 0

    def __getstate__(self) -> dict[str, Any]:
        # Only leaves of an autograd graph can be copied.
        return {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in self.__dict__.items()}

    def extend(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        """Append a chunk of the input and return the outputs at its positions.

        Args:
            u: The chunk, `(B, L, D)`.
            taps: Function that returns the first `n` taps `(D, n)`, whose values do not depend on `n`. Each call asks
                for at least twice as many taps as the one before (with gradients: one call per chunk).

        Returns:
            `(B, L, D)` in the dtype of `u`. Half precision is computed in float32; float64, of the input or of the
            taps, stays float64.

        Raises:
            ValueError: Shapes do not fit, the chunk is empty, or there are more positions than `longest`.
        """
        self._check_chunk(u)
        before = self.length
        try:
            outputs: torch.Tensor = self._extend_exported(u, taps) if is_exporting() else self._extend(u, taps)
        except BaseException:
            # Undo the chunk; the history beyond its length is scratch memory.
            self.length, self._pending = before, None
            raise
        return outputs.to(u.dtype)

    def _extend(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        self._widen(u.dtype)
        length = u.shape[1]
        if torch.is_grad_enabled() and self._wants_gradient(u, taps):
            return self._extend_with_graph(u, taps)
        if length > (_DIRECT_TOKENS if self.length else 1) and length * _LONG_CHUNK_SHARE >= self.length:
            return self._extend_at_once(u, taps)
        return self._extend_in_windows(u, taps)

    @property
    def history(self) -> torch.Tensor | None:
        """All inputs seen, `(B, length, D)`, the same tensor until the next chunk; `None` before the first chunk."""
        if self._history is not None and self._history.shape[1] != self.length:
            # torch.export tells the inputs of a program apart by identity.
            self._history = self._history[:, : self.length].clone()
        return self._history

    @classmethod
    def from_history(cls, history: torch.Tensor, longest: int | None = None) -> "StreamingConvolution":
        """The stream that has seen these inputs, `(B, L, D)`; they are not copied."""
        stream = cls(longest)
        stream._history, stream.length, stream._dtype = history, history.shape[1], history.dtype
        return stream

    def detach_(self) -> None:
        """Cut the stream off the autograd graph of its inputs."""
        self.__dict__.update(self.__getstate__())

    def select(self, index: torch.Tensor) -> None:
        """Keep, reorder or repeat rows of the batch, as in a beam search; copies all inputs seen.

        Args:
            index: Rows in their new order, `(new B,)`, int64.
        """
        if self._history is None:
            return
        # Not on a GPU, where the comparison would wait for the device.
        if index.device.type == "cpu" and torch.equal(index, torch.arange(len(self._history))):
            return
        index = index.to(self._history.device)
        self._history = self._history[:, : self.length].index_select(0, index)
        if self._pending is not None:
            self._pending = self._pending.index_select(0, index)

    def keep_last(self, count: int) -> None:
        """Keep the last `count` inputs, where those before are zeros, such as the leading zeros of `join`."""
        if self._history is not None and count < self.length:
            self._history = self._history[:, self.length - count : self.length]
            self.length, self._pending = count, None

    @classmethod
    def join(cls, streams: "Sequence[StreamingConvolution]") -> "StreamingConvolution":
        """One stream with the rows of all `streams`, which have the same taps; the inverse is `select`.

        Shorter streams are padded with leading zeros, which do not change a convolution; `length` is the largest.

        Raises:
            ValueError: No streams, one that has seen no input, or different numbers of channels.
        """
        histories = [s._history[:, : s.length] for s in streams if s._history is not None]
        if not histories or len(histories) < len(streams):
            lengths = [s.length for s in streams]
            raise ValueError(f"streams must be one or more streams that have read an input, got lengths {lengths}")
        channels = [history.shape[2] for history in histories]
        if len(set(channels)) > 1:
            raise ValueError(f"streams must have the same number of channels, got {channels}")
        joined = cls(streams[0].longest)
        for stream in streams:
            joined._widen(stream._dtype)
        joined.length = max(stream.length for stream in streams)
        padded = [F.pad(h.to(joined._dtype), (0, 0, joined.length - h.shape[1], 0)) for h in histories]
        joined._history = torch.cat(padded)
        source = max(streams, key=lambda stream: 0 if stream._taps is None else stream._taps.shape[1])
        if source._dtype == joined._dtype:
            joined._taps, joined._near, joined._spectra = source._taps, source._near, source._spectra
        return joined

    def __copy__(self) -> "StreamingConvolution":
        # Taps and spectra are never modified in place, and therefore shared.
        copied = StreamingConvolution(self.longest)
        copied.__dict__.update(self.__getstate__())
        copied._spectra = dict(self._spectra)
        for name in ("_history", "_pending"):
            if getattr(copied, name) is not None:
                setattr(copied, name, getattr(copied, name).clone())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "StreamingConvolution":
        return copy.copy(self)

    def _check_chunk(self, u: torch.Tensor) -> None:
        if u.dim() != 3 or 0 in u.shape[:2]:
            raise ValueError(f"u must have shape (batch >= 1, length >= 1, channels), got {tuple(u.shape)}")
        if self._history is not None and u.shape[::2] != self._history.shape[::2]:
            batch, channels = self._history.shape[::2]
            raise ValueError(
                f"u must continue {batch} sequences of {channels} channels, got {tuple(u.shape)}; use select or reset "
                "for other sequences"
            )
        length = self.length + u.shape[1]
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"the sequence would have {length} positions, but the implicit filter has taps for {self.longest} "
                "(`max_position_embeddings`): shorten the sequence, or train a model with a larger value"
            )

    def _widen(self, dtype: torch.dtype) -> None:
        """Use `dtype` from now on if it is more precise."""
        dtype = torch.promote_types(dtype, self._dtype)
        if dtype == self._dtype:
            return
        self._dtype = dtype
        if self._history is not None:
            self._history = self._history.to(dtype)
        # The taps are requested again in the new precision.
        self._taps = self._near = self._pending = None
        self._spectra = {}

    def _wants_gradient(self, u: torch.Tensor, taps: Taps) -> bool:
        if u.requires_grad or (self._history is not None and self._history.requires_grad):
            return True
        return taps(1).requires_grad

    def _extend_with_graph(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        first = self.length
        kernel = taps(first + u.shape[1])
        self._widen(kernel.dtype)
        seen = [] if self._history is None else [self._history[:, :first]]
        # Without spare capacity: the next chunk without gradients allocates, and does not write to the graph.
        self._history = torch.cat([*seen, u.to(self._dtype)], dim=1)
        self.length, self._pending = first + u.shape[1], None
        return long_conv(self._history, kernel)[:, first:]

    def _extend_exported(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        """The state of an exported program is all inputs."""
        first = self.length
        kernel = taps(first + u.shape[1])
        dtype = torch.promote_types(self._dtype, u.dtype)
        seen = [] if self._history is None else [self._history]
        self._history = torch.cat([*seen, u.to(dtype)], dim=1)
        self.length = first + u.shape[1]
        if type(u.shape[1]) is int and u.shape[1] == 1:
            return (self._history * kernel.flip(-1).T).sum(1, keepdim=True)
        return long_conv(self._history, kernel)[:, first:]

    def _extend_at_once(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        first = self.length
        kernel = self.first_taps(first + u.shape[1], taps, u)
        u = self._append(u)
        self._pending = None
        # The first chunk is bit-identical to the convolution without stream.
        return self._convolve_history(kernel, first) if first else long_conv(u, kernel)

    def _extend_in_windows(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        outputs, done = [], 0
        while done < u.shape[1]:
            pending, local = self._window(u, taps)
            room = min(_STREAM_BLOCK - local % _STREAM_BLOCK, pending.shape[1] - local)
            block = u.narrow(1, done, min(room, u.shape[1] - done))
            outputs.append(self._extend_in_block(block, pending, local, room))
            done += block.shape[1]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _extend_in_block(self, u: torch.Tensor, pending: torch.Tensor, local: int, room: int) -> torch.Tensor:
        """Outputs at the positions of `u`, the next inputs of a block with `room` positions left."""
        count = u.shape[1]
        u = self._append(u)
        if count > _DIRECT_TOKENS:
            pending.narrow(1, local, room).add_(self._convolve(u, _STREAM_BLOCK).narrow(1, 0, room))
        else:
            assert self._near is not None
            for i in range(count):
                taps = self._near.narrow(0, 0, room - i)
                pending.narrow(1, local + i, room - i).addcmul_(u.narrow(1, i, 1), taps)
        outputs = pending.narrow(1, local, count).clone()
        local += count
        if local % _STREAM_BLOCK == 0 and local < pending.shape[1]:
            self._contribute(pending, local)
        return outputs

    def _contribute(self, pending: torch.Tensor, local: int) -> None:
        """Add the inputs of the last blocks to the next outputs, after `local` inputs of the window."""
        assert self._history is not None
        size = local & -local
        # A window limited by `longest` may be shorter.
        count = min(size, pending.shape[1] - local)
        added = self._convolve(self._history.narrow(1, self.length - size, size), 2 * size)
        pending.narrow(1, local, count).add_(added.narrow(1, size, count))

    def _window(self, u: torch.Tensor, taps: Taps) -> tuple[torch.Tensor, int]:
        """The partial outputs of the open window, or of a new one, and its number of inputs."""
        if self._pending is None or self.length == self._opened + self._pending.shape[1]:
            self._pending, self._opened = self._open(u, taps), self.length
        elif not _is_writable(self._pending):
            self._pending = self._pending.clone()
        return self._pending, self.length - self._opened

    def _open(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        width = max(_STREAM_BLOCK, 1 << self.length.bit_length() >> 1)
        if self.longest is not None:
            width = min(width, self.longest - self.length)
        kernel = self.first_taps(self.length + width, taps, u)
        if self._near is None:
            self._near = kernel[:, :_STREAM_BLOCK].T.contiguous()
        if self._history is None:
            return torch.zeros(u.shape[0], width, u.shape[2], dtype=self._dtype, device=u.device)
        return self._convolve_history(kernel, self.length).contiguous()

    def first_taps(self, count: int, taps: Taps, u: torch.Tensor) -> torch.Tensor:
        """The first `count` taps `(D, count)`; requests at least twice as many as before where too few are known."""
        held = 0 if self._taps is None else self._taps.shape[1]
        if self._taps is None or held < count:
            wanted = max(count, 2 * held)
            wanted = wanted if self.longest is None else min(wanted, self.longest)
            asked = taps(wanted)
            if asked.shape != (u.shape[2], wanted):
                raise ValueError(f"taps({wanted}) must have shape {(u.shape[2], wanted)}, got {tuple(asked.shape)}")
            self._widen(asked.dtype)
            # A copy, since these may be parameters that are modified in place.
            self._taps = asked.detach().to(self._dtype, copy=True, memory_format=torch.contiguous_format)
        return self._taps[:, :count]

    def _append(self, u: torch.Tensor) -> torch.Tensor:
        """Append `u`, `(B, L, D)`, to the history, and return the stored values."""
        first, self.length = self.length, self.length + u.shape[1]
        history = self._history
        if history is None or history.shape[1] < self.length or not _is_writable(history):
            capacity = max(self.length, 2 * first, _STREAM_BLOCK)
            grown = torch.empty(u.shape[0], capacity, u.shape[2], dtype=self._dtype, device=u.device)
            if history is not None:
                grown[:, :first] = history[:, :first]
            history = self._history = grown
        return history.narrow(1, first, u.shape[1]).copy_(u)

    def _convolve(self, u: torch.Tensor, count: int) -> torch.Tensor:
        """Circular convolution with the first `count` taps on `max(count, 2 · 64)` points.

        No position wraps around for at most 64 inputs and taps; otherwise those from the number of inputs on are
        correct.
        """
        assert self._taps is not None
        n_fft = max(count, 2 * _STREAM_BLOCK)
        if count not in self._spectra:
            self._spectra[count] = torch.fft.rfft(self._taps[:, :count], n=n_fft)
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=n_fft) * self._spectra[count]
        return torch.fft.irfft(spectrum, n=n_fft).transpose(1, 2)

    def _convolve_history(self, kernel: torch.Tensor, first: int) -> torch.Tensor:
        """Outputs from position `first` to that of the last tap due to the inputs seen, `(B, K - first, D)`."""
        assert self._history is not None
        u = self._history[:, : self.length].transpose(1, 2)
        count = kernel.shape[1]
        # Enough points that what wraps around ends before `first`.
        n_fft = next_fast_len(max(count, self.length + count - 1 - first))
        spectrum = torch.fft.rfft(u, n=n_fft) * torch.fft.rfft(kernel, n=n_fft)
        return torch.fft.irfft(spectrum, n=n_fft)[..., first:count].transpose(1, 2)


def _is_writable(tensor: torch.Tensor) -> bool:
    # Inference tensors cannot be modified outside inference mode.
    return not tensor.is_inference() or torch.is_inference_mode_enabled()
