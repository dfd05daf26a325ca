"""Mask and further inputs of the rows that layers read, beside the hidden states themselves.

Legend: `B` batch, `L` length, `D` channels.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

__all__ = ["Reading", "Rows", "is_shared", "zero_padding"]


def zero_padding(hidden_states: Tensor, mask: Tensor | None) -> Tensor:
    """`hidden_states` `(B, L, D)` with zeros where `mask` `(B, L)` is false."""
    return hidden_states if mask is None else hidden_states * mask.unsqueeze(-1).to(hidden_states.dtype)


def is_shared(sharing: Any) -> bool:
    """Whether several processes hold some positions of the same rows each: the `sharing` of a backbone."""
    return sharing is not None


class Rows(NamedTuple):
    """Mask and further inputs of the rows of hidden states; `models/base/door.py` arranges them.

    A named tuple, so accelerate moves its tensors between devices with the other arguments of a layer. Hidden states
    are an argument of their own, because activation checkpointing and the hooks of other libraries look for a tensor
    there.

    Attributes:
        mask: `(B, L)`, bool, true at tokens; `None` where all positions are tokens.
        extra: Further inputs of the mixers of a family at each position, `(B, L)` each, by name (S5: `time_deltas`).
        observer: Called by each operator with what it mixes; see `modules/observers.py`.
        layout: The `SharedLayout` of rows that several processes share. Only blocks read it: see `ops/sharing.py`.
    """

    mask: Tensor | None = None
    extra: Mapping[str, Tensor] = {}
    observer: Any = None
    layout: Any = None

    def moved(self, move: Callable[[Tensor], Tensor]) -> "Rows":
        """The rows after `move` has rearranged the positions, `(B, L)` to another shape, of mask and extra inputs."""
        mask = None if self.mask is None else move(self.mask)
        return self._replace(mask=mask, extra={name: move(value) for name, value in self.extra.items()})

    def reversed(self) -> "Rows":
        """The rows of hidden states whose positions are reversed."""
        return self.moved(lambda values: values.flip(1))


class Reading(NamedTuple):
    """Whole rows that one call of an operator mixes, and its kernel: the data that its τ is computed from.

    Attributes:
        inputs: `(B, L, D)`, zero at padding, after a zero-phase Sobolev filter.
        mask: `(B, L)`, or `None`.
        group: Which of the convolutions that share a kernel generator (Hyena of order > 2).
        kernel: The kernels of a convolution, `(D, length)` for each direction.
        statistics: Sequences `(B, L, ...)`, real, by name, whose means over the data the kernel depends on: Δ, B and C
            of a selective scan.
    """

    inputs: Tensor
    mask: Tensor | None = None
    group: int = 0
    kernel: Any = None
    statistics: Mapping[str, Tensor] = {}
