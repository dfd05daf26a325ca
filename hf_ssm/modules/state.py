"""What a layer remembers of the tokens it has read, so that it can go on without reading them again.

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
    """The memory of one layer; its mixer fills it.

    Attributes:
        tensors: Recurrent states by name, each with the batch as first dimension.
        streams: Running long convolutions by name.
        constants: What depends on the weights alone and is costly to make; never with gradients.
        last_only: Whether of each piece that is read the output at its last position alone is wanted: the layer then
            gives that one. Unlike the memory itself, this is neither copied nor taken along with rows.
    """

    last_only = False

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.streams: dict[str, StreamingConvolution] = {}
        self.constants: dict[str, Any] = {}

    def get(self, name: str) -> Tensor | None:
        """A recurrent state, `None` at the start."""
        value = self.tensors.get(name)
        if value is not None and value.is_inference() and not torch.is_inference_mode_enabled():
            # What was made in inference mode cannot enter a graph.
            return value.clone()
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> "LayerState":
        """A memory that goes on by itself; gradients do not flow back through it."""
        copied = type(self)()
        copied.tensors = {name: value.detach().clone() for name, value in self.tensors.items()}
        copied.streams = copy.deepcopy(self.streams, memo)
        copied.constants = dict(self.constants)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Without the constants, which are made again when they are needed."""
        return {**self.__dict__, "constants": {}}

    def reset(self) -> None:
        """Forget everything."""
        self.tensors.clear()
        self.streams.clear()
        self.constants.clear()

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may come more than once."""
        self.tensors = {name: value.index_select(0, rows.to(value.device)) for name, value in self.tensors.items()}
        for stream in self.streams.values():
            stream.select(rows)

    def rows(self, rows: Tensor) -> "LayerState":
        """A memory of these rows alone, which goes on by itself."""
        part = type(self)()
        part.tensors = {name: value.index_select(0, rows.to(value.device)) for name, value in self.tensors.items()}
        # Unlike a copy, a join of one keeps the graph of the gradients.
        part.streams = {name: type(stream).join([stream]) for name, stream in self.streams.items()}
        for stream in part.streams.values():
            stream.select(rows)
        part.constants = self.constants
        return part

    def assemble(self, parts: Sequence["LayerState"]) -> None:
        """Become the parts, one below the other."""
        self.tensors = {name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors}
        self.streams = {
            name: type(stream).join([part.streams[name] for part in parts]) for name, stream in parts[0].streams.items()
        }
        self.constants = parts[0].constants
