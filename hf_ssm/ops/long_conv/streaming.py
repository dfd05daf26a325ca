"""Causal long convolution of a sequence that arrives piece by piece.

Dimensions: `B` batch, `L` length of a piece, `D` channels, `K` taps, `W` outputs of a window.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from hf_ssm.ops.long_conv import long_conv, next_fast_len

__all__ = ["StreamingConvolution"]

Taps = Callable[[int], torch.Tensor]

# Inputs meet the outputs of their own block of this many positions one by one, those of later blocks by transforms. A
# power of two; at 64 both cost about the same on a CPU.
_BLOCK = 64
# For more tokens than these, one transform is quicker than a loop over them.
_FEW = 16
# A longer piece takes one transform of everything seen, if it is at least one part in this many of that.
_SHARE = 8


class StreamingConvolution:
    """The exact convolution `y[t] = Σ_{j<=t} k[t-j] u[j]`, continued by pieces of any length.

    Outputs are prepared in windows, each half as long to as long as what precedes it. A window opens with one transform
    for all inputs that precede it. Inside it, an input is added at once to the outputs of its own block of 64; at the
    end of a block of local number `2^p q`, q odd, the last `2^p` blocks are added to the next `2^p` by one transform.
    So every input meets every later output once. `L` tokens cost `O(L log² L)` per channel, whatever the pieces, and
    the prefix is never run again: a piece that is long enough takes one transform of the whole instead.

    Where gradients are wanted (they are enabled, and a piece or the taps require them) each piece costs a convolution
    of the whole, in functional form, differentiable once. No gradient flows back past a piece without them.

    The taps and their spectra are kept: `reset` when the kernel changes. A copy or a pickle is independent, and holds
    values without the graph of their gradients.

    Args:
        longest: Number of positions for which there are taps, such as the `max_position_embeddings` of an implicit
            filter; default no limit.

    Attributes:
        length: Number of inputs seen, leading zeros of `join` included.

    Source: Fischer & Stockmeyer 1974, "Fast on-line integer multiplication"; van der Hoeven 2002, "Relax, but don't be
    too lazy", for power series.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.reset()

    def reset(self) -> None:
        """Forget everything, the taps too."""
        self.length = 0
        # What is computed in.
        self._dtype = torch.float32
        # (B, capacity, D); the first `length` positions are inputs.
        self._history: torch.Tensor | None = None
        # (D, K); the first 64 of them (or all there are) once more, as (64, D); transforms of the first n, by n.
        self._taps: torch.Tensor | None = None
        self._near: torch.Tensor | None = None
        self._spectra: dict[int, torch.Tensor] = {}
        # (B, W, D), the outputs from position `_opened` on, as far as they are summed.
        self._pending: torch.Tensor | None = None
        self._opened = 0

    def __getstate__(self) -> dict[str, Any]:
        # Only leaves of a graph can be copied.
        return {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in self.__dict__.items()}

    def extend(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        """Take the next piece of the input and return the outputs at its positions.

        Args:
            u: The piece, `(B, L, D)`.
            taps: `taps(n)` are the first `n` taps `(D, n)`, whose values do not depend on `n`. Called rarely, each
                time for at least twice as many as before (with gradients: for every piece), and never kept.

        Returns:
            `(B, L, D)` in the dtype of `u`. Half precision is computed in float32; float64, of the input or of the
            taps, stays float64.

        Raises:
            ValueError: Shapes do not fit, the piece is empty, or there are more positions than `longest`.
        """
        self._check(u)
        self._widen(u.dtype)
        before = self.length
        try:
            outputs = self._extend(u, taps)
        except BaseException:
            # What was taken of the piece is forgotten; the history beyond its length is scratch.
            self.length, self._pending = before, None
            raise
        return outputs.to(u.dtype)

    def _extend(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        length = u.shape[1]
        if torch.is_grad_enabled() and self._wants_gradient(u, taps):
            return self._extend_with_graph(u, taps)
        if length > (_FEW if self.length else 1) and length * _SHARE >= self.length:
            return self._extend_at_once(u, taps)
        return self._extend_in_windows(u, taps)

    def select(self, index: torch.Tensor) -> None:
        """Keep, reorder or repeat rows of the batch, as a beam search does; this copies all inputs seen.

        Args:
            index: The rows to keep in their new order, `(new B,)`, int64.
        """
        if self._history is None:
            return
        index = index.to(self._history.device)
        if torch.equal(index, torch.arange(len(self._history), device=index.device)):
            return
        self._history = self._history[:, : self.length].index_select(0, index)
        if self._pending is not None:
            self._pending = self._pending.index_select(0, index)

    @classmethod
    def join(cls, streams: "Sequence[StreamingConvolution]") -> "StreamingConvolution":
        """One stream with the rows of all `streams`, which share their taps; `select` takes rows out again.

        Shorter ones get zeros in front, which change nothing in a convolution: `length` is the longest.

        Raises:
            ValueError: No streams, one that has seen no input, or different numbers of channels.
        """
        histories = [s._history[:, : s.length] for s in streams if s._history is not None]
        if not histories or len(histories) < len(streams):
            lengths = [s.length for s in streams]
            raise ValueError(f"streams must be one or more that have seen an input, got lengths {lengths}")
        channels = [history.shape[2] for history in histories]
        if len(set(channels)) > 1:
            raise ValueError(f"streams must have the same number of channels, got {channels}")
        joined = cls(streams[0].longest)
        for stream in streams:
            joined._widen(stream._dtype)
        joined.length = max(stream.length for stream in streams)
        padded = [F.pad(h.to(joined._dtype), (0, 0, joined.length - h.shape[1], 0)) for h in histories]
        joined._history = torch.cat(padded)
        known = max(streams, key=lambda stream: 0 if stream._taps is None else stream._taps.shape[1])
        if known._dtype == joined._dtype:
            joined._taps, joined._near, joined._spectra = known._taps, known._near, known._spectra
        return joined

    def __copy__(self) -> "StreamingConvolution":
        # Taps and spectra are never changed in place, so they are shared.
        copied = StreamingConvolution(self.longest)
        copied.__dict__.update(self.__getstate__())
        copied._spectra = dict(self._spectra)
        for name in ("_history", "_pending"):
            if getattr(copied, name) is not None:
                setattr(copied, name, getattr(copied, name).clone())
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "StreamingConvolution":
        return copy.copy(self)

    def _check(self, u: torch.Tensor) -> None:
        if u.dim() != 3 or 0 in u.shape[:2]:
            raise ValueError(f"u must have shape (batch >= 1, length >= 1, channels), got {tuple(u.shape)}")
        if self._history is not None and u.shape[::2] != self._history.shape[::2]:
            batch, channels = self._history.shape[::2]
            raise ValueError(
                f"u must continue {batch} sequences of {channels} channels, got {tuple(u.shape)}; select rows or reset "
                "before other sequences"
            )
        length = self.length + u.shape[1]
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"the sequence would have {length} positions, but there are taps for {self.longest} alone "
                "(`max_position_embeddings` of an implicit filter): end it sooner, or train a model with a larger value"
            )

    def _widen(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` from here on if it is better."""
        dtype = torch.promote_types(dtype, self._dtype)
        if dtype == self._dtype:
            return
        self._dtype = dtype
        if self._history is not None:
            self._history = self._history.to(dtype)
        # Asked for again, the taps are as good as they come.
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
        # Without room to spare: the next in-place piece makes room in new memory and leaves the graph alone.
        self._history = torch.cat([*seen, u.to(self._dtype)], dim=1)
        self.length, self._pending = first + u.shape[1], None
        return long_conv(self._history, kernel)[:, first:]

    def _extend_at_once(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        first = self.length
        kernel = self._first_taps(first + u.shape[1], taps, u)
        u = self._append(u)
        self._pending = None
        # The first piece as without a stream, to the last digit.
        return self._convolve_history(kernel, first) if first else long_conv(u, kernel)

    def _extend_in_windows(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        outputs, done = [], 0
        while done < u.shape[1]:
            pending, local = self._window(u, taps)
            room = min(_BLOCK - local % _BLOCK, pending.shape[1] - local)
            block = u.narrow(1, done, min(room, u.shape[1] - done))
            outputs.append(self._extend_in_block(block, pending, local, room))
            done += block.shape[1]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def _extend_in_block(self, u: torch.Tensor, pending: torch.Tensor, local: int, room: int) -> torch.Tensor:
        """Outputs at the positions of `u`, the next inputs of a block that ends `room` positions ahead."""
        count = u.shape[1]
        u = self._append(u)
        if count > _FEW:
            pending.narrow(1, local, room).add_(self._convolve(u, _BLOCK).narrow(1, 0, room))
        else:
            assert self._near is not None
            for i in range(count):
                taps = self._near.narrow(0, 0, room - i)
                pending.narrow(1, local + i, room - i).addcmul_(u.narrow(1, i, 1), taps)
        outputs = pending.narrow(1, local, count).clone()
        local += count
        if local % _BLOCK == 0 and local < pending.shape[1]:
            self._contribute(pending, local)
        return outputs

    def _contribute(self, pending: torch.Tensor, local: int) -> None:
        """Add the inputs of the last blocks to the outputs of as many ahead; `local` inputs of the window are seen."""
        assert self._history is not None
        size = local & -local
        # A window that `longest` has cut may end sooner.
        count = min(size, pending.shape[1] - local)
        added = self._convolve(self._history.narrow(1, self.length - size, size), 2 * size)
        pending.narrow(1, local, count).add_(added.narrow(1, size, count))

    def _window(self, u: torch.Tensor, taps: Taps) -> tuple[torch.Tensor, int]:
        """The outputs of the open window, or of a new one if there is none to go on with, and its inputs so far."""
        if self._pending is None or self.length == self._opened + self._pending.shape[1]:
            self._pending, self._opened = self._open(u, taps), self.length
        elif not _is_writable(self._pending):
            self._pending = self._pending.clone()
        return self._pending, self.length - self._opened

    def _open(self, u: torch.Tensor, taps: Taps) -> torch.Tensor:
        width = max(_BLOCK, 1 << self.length.bit_length() >> 1)
        if self.longest is not None:
            width = min(width, self.longest - self.length)
        kernel = self._first_taps(self.length + width, taps, u)
        if self._near is None:
            self._near = kernel[:, :_BLOCK].T.contiguous()
        if self._history is None:
            return torch.zeros(u.shape[0], width, u.shape[2], dtype=self._dtype, device=u.device)
        return self._convolve_history(kernel, self.length).contiguous()

    def _first_taps(self, count: int, taps: Taps, u: torch.Tensor) -> torch.Tensor:
        """The first `count` taps `(D, count)`; asks for at least twice as many as before where there are too few."""
        held = 0 if self._taps is None else self._taps.shape[1]
        if self._taps is None or held < count:
            wanted = max(count, 2 * held)
            wanted = wanted if self.longest is None else min(wanted, self.longest)
            asked = taps(wanted)
            if asked.shape != (u.shape[2], wanted):
                raise ValueError(f"taps({wanted}) must have shape {(u.shape[2], wanted)}, got {tuple(asked.shape)}")
            self._widen(asked.dtype)
            # A copy, as these may be parameters that change in place.
            self._taps = asked.detach().to(self._dtype, copy=True, memory_format=torch.contiguous_format)
        return self._taps[:, :count]

    def _append(self, u: torch.Tensor) -> torch.Tensor:
        """Remember `u`, `(B, L, D)`, and return it as it is remembered."""
        first, self.length = self.length, self.length + u.shape[1]
        history = self._history
        if history is None or history.shape[1] < self.length or not _is_writable(history):
            capacity = max(self.length, 2 * first, _BLOCK)
            grown = torch.empty(u.shape[0], capacity, u.shape[2], dtype=self._dtype, device=u.device)
            if history is not None:
                grown[:, :first] = history[:, :first]
            history = self._history = grown
        return history.narrow(1, first, u.shape[1]).copy_(u)

    def _convolve(self, u: torch.Tensor, count: int) -> torch.Tensor:
        """Circular convolution with the first `count` taps on `max(count, 2 · 64)` points.

        Wrapping leaves all positions right where inputs and taps number 64 at most, and those from the number of inputs
        on in any case.
        """
        assert self._taps is not None
        n_fft = max(count, 2 * _BLOCK)
        if count not in self._spectra:
            self._spectra[count] = torch.fft.rfft(self._taps[:, :count], n=n_fft)
        spectrum = torch.fft.rfft(u.transpose(1, 2), n=n_fft) * self._spectra[count]
        return torch.fft.irfft(spectrum, n=n_fft).transpose(1, 2)

    def _convolve_history(self, kernel: torch.Tensor, first: int) -> torch.Tensor:
        """Outputs from position `first` to the last tap's that the inputs seen give, `(B, K - first, D)`."""
        assert self._history is not None
        u = self._history[:, : self.length].transpose(1, 2)
        count = kernel.shape[1]
        # Circular on so many points that what wraps around ends before `first`.
        n_fft = next_fast_len(max(count, self.length + count - 1 - first))
        spectrum = torch.fft.rfft(u, n=n_fft) * torch.fft.rfft(kernel, n=n_fft)
        return torch.fft.irfft(spectrum, n=n_fft)[..., first:count].transpose(1, 2)


def _is_writable(tensor: torch.Tensor) -> bool:
    # Memory from inference mode cannot be written outside it.
    return not tensor.is_inference() or torch.is_inference_mode_enabled()
