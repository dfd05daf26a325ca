"""What a layer remembers of the tokens it has read, for incremental execution.

Legend: `B` batch.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.long_conv.streaming import StreamingConvolution

__all__ = ["LayerState"]


class LayerState:
    """The state of one layer; its mixer fills it.

    Attributes:
        tensors: Recurrent states by name, each with the batch as first dimension.
        streams: Running long convolutions by name.
        constants: Costly values that depend on the weights only; never with gradients.
        last_position_only: Whether the layer returns the output of the last position of each piece only. It is neither
            copied nor passed on by `rows`.
    """

    last_position_only = False

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.streams: dict[str, StreamingConvolution] = {}
        self.constants: dict[str, Any] = {}

    def get(self, name: str) -> Tensor | None:
        """A recurrent state, `None` before the first token."""
        value = self.tensors.get(name)
        if value is not None and value.is_inference() and not torch.is_inference_mode_enabled():
            # Tensors made in inference mode cannot enter a graph.
            return value.clone()
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> "LayerState":
        """An independent copy, without gradients."""
        copied = type(self)()
        copied.tensors = {name: value.detach().clone() for name, value in self.tensors.items()}
        copied.streams = copy.deepcopy(self.streams, memo)
        copied.constants = dict(self.constants)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Without the constants, which are computed again when they are needed."""
        return {**self.__dict__, "constants": {}}

    def reset(self) -> None:
        """Remove everything."""
        self.tensors.clear()
        self.streams.clear()
        self.constants.clear()

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may appear more than once."""
        self.tensors = {name: value.index_select(0, rows.to(value.device)) for name, value in self.tensors.items()}
        for stream in self.streams.values():
            stream.select(rows)

    def keep_last(self, count: int) -> None:
        """Drop inputs more than `count` positions back, which are zeros in every row."""
        for stream in self.streams.values():
            stream.keep_last(count)

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
        self.tensors = {name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors}
        self.streams = {
            name: type(stream).join([part.streams[name] for part in parts]) for name, stream in parts[0].streams.items()
        }
        self.constants = parts[0].constants
