"""What layers know of the rows that they read, beside the hidden states themselves.

Legend: `B` batch, `L` length, `D` channels.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["ByChannel", "Halo", "Reading", "Rows", "SegmentScan", "is_shared", "zero_padding"]


def zero_padding(hidden_states: Tensor, mask: Tensor | None) -> Tensor:
    """`hidden_states` `(B, L, D)` with zeros where `mask` `(B, L)` is false."""
    return hidden_states if mask is None else hidden_states * mask.unsqueeze(-1).to(hidden_states.dtype)


def is_shared(holder: Any) -> bool:
    """Whether several processes hold some positions of the same rows each, for a layout or the `sharing` of a model."""
    return holder is not None and holder.is_shared


class Halo(NamedTuple):
    """How a function of rows may be computed for some positions: from so many further positions on each side."""

    before: int
    after: int = 0


class ByChannel(NamedTuple):
    """How a function of rows may be computed for some channels: `function(inputs, channels)`, both `(B, L, ...)`."""

    function: Callable[[Tensor, slice], Tensor]


class SegmentScan(NamedTuple):
    """How a function of rows may be computed for a segment of the positions, from a state to a state.

    The state after a segment is affine in the state before it, `after = product ⊙ before + rest`: the same map for the
    positions of a process and for a piece of a long sequence.

    Attributes:
        run: Called with the tensors of a segment and the state before it, `(B, ...)` or `None`; returns the output and
            the state after it.
        product: Called with the tensors of a segment; returns what the state before it is multiplied by, broadcastable
            to the state.
        reverse: Whether the scan begins at the last position.
        apply: `apply(product, state)`; default: the product of numbers.
    """

    run: Callable[..., tuple[Tensor, Tensor]]
    product: Callable[..., Tensor]
    reverse: bool = False
    apply: Callable[[Tensor, Tensor], Tensor] = torch.mul


class Rows(NamedTuple):
    """The rows of hidden states that travel through the layers; `models/base/door.py` arranges them.

    A named tuple, so that accelerate moves its tensors between devices with the other arguments of a layer. Hidden
    states are an argument of their own, because activation checkpointing and the hooks of other libraries look for a
    tensor there.

    Attributes:
        mask: `(B, L)`, bool, true at tokens; `None` where all positions are tokens.
        layout: Where the hidden states are some positions of rows that several processes share:
            `parallel.layout.SharedLayout`.
        extra: What the mixers of a family read for each position, `(B, L)` each, by name (S5: `time_deltas`).
        observer: Called by each operator with what it reads, before it mixes positions; see `modules/observers.py`.
    """

    mask: Tensor | None = None
    layout: Any = None
    extra: Mapping[str, Tensor] = {}
    observer: Any = None

    def map(
        self,
        function: Callable[..., Tensor],
        *tensors: Tensor | None,
        split: Any = None,
    ) -> Tensor:
        """`function(*tensors, mask)` for operations that mix positions: on whole rows, or by processes that share them.

        Args:
            function: Maps a batch to `(B, L, ...)`.
            tensors: `(B, L, ...)`, or `None`.
            split: How processes that share the rows compute the function together: a `Halo`, `ByChannel` or
                `SegmentScan`; default: each process computes it for all positions.
        """
        return (
            function(*tensors, self.mask) if self.layout is None else self.layout.map(function, *tensors, split=split)
        )

    def longest(self, hidden_states: Tensor) -> int:
        """Length of the whole rows."""
        return hidden_states.shape[1] if self.layout is None else self.layout.longest

    def flip(self, hidden_states: Tensor) -> Tensor:
        """Reverse the positions of each row."""
        return torch.flip(hidden_states, dims=(1,)) if self.layout is None else self.layout.flip(hidden_states)

    def reversed(self) -> "Rows":
        """The rows of flipped hidden states."""
        mask = None if self.mask is None else self.flip(self.mask)
        return self._replace(mask=mask, layout=None if self.layout is None else self.layout.reversed())

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Rows":
        """The rows after `move` has rearranged the positions, `(B, L)` to another shape, of mask and extra inputs."""
        mask = None if self.mask is None else move(self.mask)
        return self._replace(mask=mask, extra={name: move(value) for name, value in self.extra.items()})


class Reading(NamedTuple):
    """What one call of an operator mixes: the data that its τ is computed from.

    Attributes:
        inputs: `(B, L, D)`, zero at padding, after a zero-phase Sobolev filter.
        mask, layout: Those of the rows.
        group: Which of the convolutions that share a kernel generator (Hyena of order > 2).
        kernel: The kernels of a convolution, `(D, length)` for each direction; of a scan its state matrix.
        statistics: Sequences `(B, L, ...)`, real, by name, whose means over the data the kernel depends on: Δ, B and C
            of a selective scan.
    """

    inputs: Tensor
    mask: Tensor | None = None
    layout: Any = None
    group: int = 0
    kernel: Any = None
    statistics: Mapping[str, Tensor] = {}

    def whole(self, values: Tensor) -> tuple[Tensor, Tensor | None]:
        """Values `(B, L, ...)` at all positions of the rows, of which processes may share them, and the mask."""
        return (values, self.mask) if self.layout is None else (self.layout.whole(values), self.layout.mask)
