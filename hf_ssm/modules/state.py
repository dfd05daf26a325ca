"""What a layer remembers of the tokens it has read, for incremental execution.

Legend: `B` batch.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.long_conv import StreamingConvolution

__all__ = ["LayerState", "as_real", "from_real"]


def from_real(state: Tensor) -> Tensor:
    """The inverse of `as_real`, of a state that was complex."""
    return state if state.is_complex() else torch.complex(*state.chunk(2, dim=-1))


def as_real(state: Tensor) -> Tensor:
    """A recurrent state with the real parts before the imaginary parts along the last dimension."""
    return torch.cat([state.real, state.imag], dim=-1) if state.is_complex() else state


def _of_equal_length(values: Sequence[Tensor]) -> list[Tensor]:
    """`(B, P, ...)` with zeros before the positions of those which have fewer: keys and values of attention."""
    longest = max(value.shape[1] if value.dim() > 1 else 0 for value in values)
    shorter = [longest - value.shape[1] if value.dim() > 1 else 0 for value in values]
    return [
        torch.cat([value.new_zeros(len(value), count, *value.shape[2:]), value], dim=1) if count else value
        for value, count in zip(values, shorter, strict=True)
    ]


def _kept(stays: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """`old` in the rows that stay, behind zeros where `new` has one more position; `new` in the others."""
    if new.shape != old.shape:
        old = torch.cat([old.new_zeros(len(old), new.shape[1] - old.shape[1], *old.shape[2:]), old], dim=1)
    return torch.where(stays.to(new.device).view(-1, *[1] * (new.dim() - 1)), old.to(new.dtype), new)


class LayerState:
    """The state of one layer; its mixer fills it.

    Attributes:
        tensors: Recurrent states by name, each with the batch as first dimension, and keys and values of attention,
            whose second dimension is the positions. In a state that an exported program
            has returned, or that was read from a file, complex states are real, with the real parts before the
            imaginary parts along the last dimension.
        streams: Running long convolutions by name.
        constants: Costly values that depend on the weights only; never with gradients.
        last_position_only: Whether the layer returns the output of the last position of each piece only. It is neither
            copied nor passed on by `rows`.
    """

    # Not in `vars()`, which transformers' exporters take for the state.
    __slots__ = ("__dict__", "constants")
    last_position_only = False

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.streams: dict[str, StreamingConvolution] = {}
        self.constants: dict[str, Any] = {}

    def get(self, name: str, *, is_complex: bool = False) -> Tensor | None:
        """A recurrent state, complex if asked for; `None` before the first token."""
        value = self.tensors.get(name)
        if value is None:
            return None
        if is_complex and not value.is_complex():
            return from_real(value)
        if value.is_inference() and not torch.is_inference_mode_enabled():
            # Tensors made in inference mode cannot enter a graph.
            return value.clone()
        return value

    def put(self, name: str, value: Tensor) -> None:
        """Store a recurrent state; while a program is exported, a complex one as a real one."""
        self.tensors[name] = as_real(value) if is_exporting() else value

    def __deepcopy__(self, memo: dict[int, Any]) -> "LayerState":
        """An independent copy, without gradients."""
        copied = type(self)()
        copied.tensors = {name: value.detach().clone() for name, value in self.tensors.items()}
        copied.streams = copy.deepcopy(self.streams, memo)
        copied.constants = dict(self.constants)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Without the constants, which are computed again when they are needed."""
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.constants = {}

    def reset(self) -> None:
        """Remove everything."""
        self.tensors.clear()
        self.streams.clear()
        self.constants.clear()

    def detach_(self) -> None:
        """Cut the state off the autograd graph of the tokens it was computed from."""
        self.tensors = {name: value.detach() for name, value in self.tensors.items()}
        for stream in self.streams.values():
            stream.detach_()

    def convert_(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> None:
        """Move the state, and convert it to float32 or float64, or to complex numbers of such parts."""
        # Not named `to`, which accelerate calls on all arguments of offloaded modules.

        def converted(value: Tensor) -> Tensor:
            return value.to(device, dtype.to_complex() if dtype is not None and value.is_complex() else dtype)

        before = self.tensors
        self.tensors = {name: converted(value) for name, value in before.items()}
        if any(self.tensors[name].device != value.device for name, value in before.items()):
            self.constants.clear()
        for name, stream in self.streams.items():
            if (history := stream.history) is not None:
                moved = converted(history)
                if moved is not history:
                    self.streams[name] = type(stream)(stream.longest, moved)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may appear more than once."""
        self.tensors = {name: value.index_select(0, rows.to(value.device)) for name, value in self.tensors.items()}
        for stream in self.streams.values():
            stream.select(rows)

    def keep_last(self, count: int) -> None:
        """Drop inputs more than `count` positions back, which are zeros in every row."""
        for stream in self.streams.values():
            stream.keep_last(count)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
        """The present tensors and inputs of streams, which the next positions replace and do not change."""
        return dict(self.tensors), {name: stream.history for name, stream in self.streams.items()}

    def restore(self, snapshot: tuple[dict[str, Tensor], dict[str, Tensor | None]]) -> None:
        """Return to a snapshot."""
        self.tensors = dict(snapshot[0])
        histories = snapshot[1]
        self.streams = {name: stream for name, stream in self.streams.items() if histories.get(name) is not None}
        for name, stream in self.streams.items():
            if (history := histories[name]) is not None:
                stream.history = history

    def keep(self, stays: Tensor, before: tuple[dict[str, Tensor], dict[str, Tensor | None]]) -> None:
        """Return the rows where `stays` `(B,)` is true to a snapshot; in the others, one position was read since."""
        tensors, histories = before
        self.tensors = {name: _kept(stays, tensors[name], value) for name, value in self.tensors.items()}
        for name, stream in self.streams.items():
            if stream.history is not None and (history := histories[name]) is not None:
                stream.history = _kept(stays, history, stream.history)

    def rows(self, rows: Tensor) -> "LayerState":
        """An independent state of these rows, which keeps the graph of gradients."""
        part = type(self)()
        part.tensors = {name: value.index_select(0, rows.to(value.device)) for name, value in self.tensors.items()}
        # Unlike a copy, joining a single stream keeps the graph of gradients.
        part.streams = {name: type(stream).join([stream]) for name, stream in self.streams.items()}
        for stream in part.streams.values():
            stream.select(rows)
        part.constants = self.constants
        return part

    def assemble(self, parts: Sequence["LayerState"]) -> None:
        """Become the concatenation of states along the batch."""
        self.tensors = {}
        for name in parts[0].tensors:
            values = [part.tensors[name] for part in parts]
            # Those that were read from a file are real, and remain so where nothing was read since.
            is_complex = any(value.is_complex() for value in values)
            values = [from_real(value) for value in values] if is_complex else values
            self.tensors[name] = torch.cat(_of_equal_length(values))
        self.streams = {
            name: type(stream).join([part.streams[name] for part in parts]) for name, stream in parts[0].streams.items()
        }
        self.constants = parts[0].constants
