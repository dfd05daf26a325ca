"""Rows whose positions several processes share, and what the operations exchange that mix positions.

Each process may compute a loss of its own; the gradient that an exchange returns is that of the sum of all losses, as
in `utils/processes.py`. All processes have to call the same exchanges in the same order, in the backward pass too: so
each result depends on what every process has given.

Legend: `R` processes, `B` batch, `L` positions of the whole rows, `l` positions of this process, `D` channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hf_ssm.ops.sharing import alone
from hf_ssm.utils.processes import Processes

__all__ = ["SharedLayout"]


@dataclass(frozen=True)
class SharedLayout:
    """The layout of rows `(B, L, ...)` of which each process of a group holds some positions.

    Args:
        group: The process group.
        order: Rank in the group of each process, in the order of the positions.
        lengths: Positions of each process, in this order.
        mask: `(B, L)` of the whole rows, true at tokens; `None` where all positions are tokens.
    """

    group: Any
    order: tuple[int, ...]
    lengths: tuple[int, ...]
    mask: Tensor | None = None

    @property
    def place(self) -> int:
        """Number of this process in the order of the positions."""
        return self.order.index(dist.get_rank(self.group))

    @property
    def length(self) -> int:
        """L."""
        return sum(self.lengths)

    def reversed(self) -> "SharedLayout":
        """The layout of rows in reverse order: the first process is the last one."""
        mask = None if self.mask is None else self.mask.flip(1)
        return SharedLayout(self.group, self.order[::-1], self.lengths[::-1], mask)

    def cut(self, values: Tensor) -> Tensor:
        """The positions of this process, of whole rows `(B, L, ...)`."""
        return values.split(self.lengths, dim=1)[self.place]

    def whole(self, values: Tensor) -> Tensor:
        """The whole rows, `(B, L, ...)`, from the positions of this process."""
        parts = self._gathered(_padded(values, max(self.lengths) - values.shape[1], at_end=True))
        return torch.cat([part[:, :length] for part, length in zip(parts, self.lengths, strict=True)], dim=1)

    def of_first(self, values: Tensor) -> Tensor:
        """The values of the first process, of the same shape in all processes, such as a random mask; no gradient."""
        values = values.clone()
        Processes(self.group).take_from_first_(values)
        return values

    def extended(self, values: Tensor, before: int, after: int, fill: float = 0.0) -> Tensor:
        """The positions of this process and so many on each side, `fill` outside the rows: for convolutions.

        Each process sends `B (before + after) D` numbers, whatever L.
        """
        parts, border = [values], values.new_full((), fill)
        if before:
            parts.insert(0, self._neighbours(values[:, -before:], before, border, at_end=True))
        if after:
            parts.append(self._neighbours(values[:, :after], after, border, at_end=False))
        return torch.cat(parts, dim=1)

    def _neighbours(self, edge: Tensor, count: int, fill: Tensor, *, at_end: bool) -> Tensor:
        """The positions before (`at_end` of the other processes) or behind those of this process."""
        kept = [min(count, length) for length in self.lengths]
        edges = self._gathered(_padded(edge, count - edge.shape[1], at_end=not at_end))
        edges = [e[:, count - n :] if at_end else e[:, :n] for e, n in zip(edges, kept, strict=True)]
        outside = fill.expand(edge.shape[0], count, *edge.shape[2:])
        start = sum(kept[: self.place]) if at_end else sum(kept[: self.place + 1])
        return torch.cat([outside, *edges] if at_end else [*edges, outside], dim=1)[:, start : start + count]

    def scan(self, run: Callable[[Tensor | None], tuple[Tensor, Tensor]], decay: Tensor) -> tuple[Tensor, Tensor]:
        """A scan of the positions of this process, from the state that the others leave.

        Each process scans twice, and sends one state and its decay, whatever L.

        Args:
            run: Called with the state before the positions, `None` for zero; returns output and last state.
            decay: What the positions multiply a state by, broadcastable to the state.
        """
        with alone():
            _, end = run(None)
            return run(self.state_before(decay, end))

    def state_before(self, decay: Tensor, end: Tensor) -> Tensor:
        """The state before the positions of this process, from its `decay` and the state it leaves from zero."""
        state, states = torch.zeros_like(end), []
        for factor, rest in zip(self._gathered(decay), self._gathered(end), strict=True):
            states.append(state)
            state = factor * state + rest
        # An entry of all states: so the backward pass calls the exchange in each process.
        return torch.stack(states)[self.place]

    def by_channel(self, function: Callable[[Tensor, slice], Tensor], values: Tensor) -> Tensor:
        """`function(values, channels)` of all positions and D / R channels, `(B, L, d)`, for long convolutions.

        Each process sends `2 B L D / R` numbers (an all-to-all in each direction).
        """
        rank, batch = dist.get_rank(self.group), values.shape[0]
        widths = [len(part) for part in torch.arange(values.shape[-1]).tensor_split(len(self.order))]
        start, length_of = sum(widths[:rank]), dict(zip(self.order, self.lengths, strict=True))
        received = self._exchanged(
            values.split(widths, dim=-1), [(batch, length_of[r], widths[rank]) for r in range(len(widths))]
        )
        whole = torch.cat([received[r] for r in self.order], dim=1)
        with alone():
            output = function(whole, slice(start, start + widths[rank]))
        pieces = dict(zip(self.order, output.split(self.lengths, dim=1), strict=True))
        shapes = [(batch, length_of[rank], width) for width in widths]
        return torch.cat(self._exchanged([pieces[r] for r in range(len(widths))], shapes), dim=-1)

    def _gathered(self, value: Tensor) -> list[Tensor]:
        """`value`, of the same shape in all processes, of each one in the order of the positions."""
        if value.is_complex():
            return [torch.view_as_complex(part) for part in self._gathered(torch.view_as_real(value))]
        gathered: Tensor = _Gather.apply(value, self.group)
        return [gathered[rank] for rank in self.order]

    def _exchanged(self, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Send `parts[r]` to process r; returns the parts from all processes, in these shapes, by rank."""
        receive = [torch.Size(shape).numel() for shape in shapes]
        sent = torch.cat([part.flatten() for part in parts])
        received: Tensor = _Exchange.apply(sent, receive, [part.numel() for part in parts], self.group)
        return [part.view(shape) for part, shape in zip(received.split(receive), shapes, strict=True)]


def _padded(values: Tensor, count: int, *, at_end: bool) -> Tensor:
    """Values with `count` further positions of zeros."""
    zeros = values.new_zeros(values.shape[0], count, *values.shape[2:])
    return torch.cat([values, zeros] if at_end else [zeros, values], dim=1)


class _Exchange(torch.autograd.Function):
    """An all-to-all of flat tensors: `send[r]` numbers to process r, `receive[r]` from it."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, receive: list[int], send: list[int], group: Any) -> Tensor:
        ctx.arguments = send, receive, group
        received = sent.new_empty(sum(receive))
        dist.all_to_all_single(received, sent.contiguous(), receive, send, group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Exchange.apply(grad, *ctx.arguments), None, None, None


class _Gather(torch.autograd.Function):
    """The values of all processes, `(R, ...)`; each gets the sum of the gradients for its own value."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Any) -> Tensor:
        ctx.group = group
        gathered = [
            torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))
        ]
        dist.all_gather(gathered, value.contiguous(), group=group)
        return torch.stack(gathered)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        counts = [grad[0].numel()] * len(grad)
        returned: Tensor = _Exchange.apply(grad.flatten(), counts, counts, ctx.group)
        return returned.view(grad.shape).sum(0), None
