"""Rows whose positions are shared by several processes, and how operations that mix positions read them.

Legend: `R` processes, `B` batch, `L` positions of the whole rows, `l` positions of this process, `D` channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hf_ssm.modules.rows import ByChannel, Halo, SegmentScan
from hf_ssm.parallel.collectives import exchange_channels, gather, gather_positions, return_channels
from hf_ssm.utils.processes import Processes

__all__ = ["SharedLayout"]


@dataclass(frozen=True)
class SharedLayout:
    """The layout of rows `(B, L, ...)` of which each process of a group holds the positions `start` to `stop`.

    It is `Rows.layout`. A function that mixes
    positions is computed in the way that its `split` names:

    - `SegmentScan`: each process scans its own positions twice, from the zero state and then from the state that the
      others leave, and sends one state (and the product of its decays): `R B S` numbers for each, whatever L.
    - `Halo`: each process receives the positions next to its own ones: `R B (before + after) D` numbers, whatever L.
    - `ByChannel`: each process receives all positions of D / R channels, and returns the results: `2 B L D / R` numbers
      (an all-to-all in each direction).
    - otherwise every process receives the whole rows, `B L D` numbers, and computes all of the function.

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
    is_shared = True

    @property
    def place(self) -> int:
        """Number of this process in the order of the positions."""
        return self.order.index(dist.get_rank(self.group))

    @property
    def length(self) -> int:
        """L."""
        return sum(self.lengths)

    @property
    def start(self) -> int:
        """First position of this process."""
        return sum(self.lengths[: self.place])

    @property
    def stop(self) -> int:
        """Position after the last one of this process."""
        return self.start + self.lengths[self.place]

    @property
    def longest(self) -> int:
        """Length of the whole rows."""
        return self.length

    def flip(self, values: Tensor) -> Tensor:
        """The positions of this process in reverse order."""
        return values.flip(1)

    def reversed(self) -> "SharedLayout":
        """The layout of rows in reverse order: the first process is the last one."""
        mask = None if self.mask is None else self.mask.flip(1)
        return SharedLayout(self.group, self.order[::-1], self.lengths[::-1], mask)

    def cut(self, values: Tensor) -> Tensor:
        """The positions of this process, of whole rows `(B, L, ...)`."""
        return values[:, self.start : self.stop]

    def whole(self, values: Tensor) -> Tensor:
        """The whole rows, `(B, L, ...)`, from the positions of this process."""
        return gather_positions(values, self.lengths, self.order, self.group)

    def map(
        self,
        function: Callable[..., Tensor],
        *tensors: Tensor | None,
        split: Halo | ByChannel | SegmentScan | None = None,
    ) -> Tensor:
        """The positions of this process of what `function` makes of the whole rows; see `Rows.map`."""
        if isinstance(split, Halo):
            return self._with_halo(function, tensors, split)
        if isinstance(split, SegmentScan):
            return self._scanned(split, tensors)
        first = tensors[0]
        if isinstance(split, ByChannel) and first is not None and first.shape[-1] >= len(self.order):
            return self._by_channel(split.function, first)
        with _same_random_numbers(self.group, next(tensor.device for tensor in tensors if tensor is not None)):
            return self.cut(self._of_whole(function, [None if t is None else self.whole(t) for t in tensors]))

    def _of_whole(self, function: Callable[..., Tensor], tensors: Sequence[Tensor | None]) -> Tensor:
        return function(*tensors, self.mask)

    def _by_channel(self, function: Callable[[Tensor, slice], Tensor], inputs: Tensor) -> Tensor:
        count, rank = len(self.order), dist.get_rank(self.group)
        widths = [len(part) for part in torch.arange(inputs.shape[-1]).tensor_split(count)]
        channels = slice(sum(widths[:rank]), sum(widths[: rank + 1]))
        places = widths, self.lengths, self.order, self.group
        whole = exchange_channels(inputs, *places)
        return return_channels(self._of_whole(lambda batch, _: function(batch, channels), [whole]), *places)

    def _with_halo(self, function: Callable[..., Tensor], tensors: Sequence[Tensor | None], halo: Halo) -> Tensor:
        start, stop = max(0, self.start - halo.before), min(self.length, self.stop + halo.after)
        extended = [None if tensor is None else self._extended(tensor, halo, start, stop) for tensor in tensors]
        output = function(*extended, None if self.mask is None else self.mask[:, start:stop])
        return output[:, self.start - start : self.stop - start]

    def _extended(self, values: Tensor, halo: Halo, start: int, stop: int) -> Tensor:
        """The positions from `start` to `stop`, of which this process receives those that it does not hold."""
        parts = [values]
        if halo.before:
            ends, counts = self._edges(values[:, -halo.before :], halo.before, at_end=True)
            last = sum(counts[: self.place])
            parts.insert(0, ends[:, last - (self.start - start) : last])
        if halo.after:
            firsts, counts = self._edges(values[:, : halo.after], halo.after, at_end=False)
            first = sum(counts[: self.place + 1])
            parts.append(firsts[:, first : first + stop - self.stop])
        return torch.cat(parts, dim=1)

    def _edges(self, edge: Tensor, most: int, *, at_end: bool) -> tuple[Tensor, list[int]]:
        """The last (first) positions of each process, at most so many, one after the other; and their numbers."""
        padding = edge.new_zeros(edge.shape[0], most - edge.shape[1], *edge.shape[2:])
        gathered = gather(torch.cat([padding, edge] if at_end else [edge, padding], dim=1), self.group)
        counts = [min(most, length) for length in self.lengths]
        edges = (gathered[rank] for rank in self.order)
        kept = [e[:, most - n :] if at_end else e[:, :n] for e, n in zip(edges, counts, strict=True)]
        return torch.cat(kept, dim=1), counts

    # Scans

    def _scanned(self, scan: SegmentScan, tensors: Sequence[Tensor | None]) -> Tensor:
        if scan.reverse:
            turned = SegmentScan(
                lambda *segment: _first_flipped(scan.run(*_flipped(segment[:-1]), segment[-1])),
                lambda *segment: scan.product(*_flipped(segment)),
                apply=scan.apply,
            )
            return self.reversed()._scanned(turned, _flipped(tensors)).flip(1)
        _, rest = scan.run(*tensors, None)
        return scan.run(*tensors, self._state_before(scan, tensors, rest))[0]

    def _state_before(self, scan: SegmentScan, tensors: Sequence[Tensor | None], rest: Tensor) -> Tensor:
        """The state that the processes before this one leave, `(B, ...)`."""
        maps = zip(gather(scan.product(*tensors), self.group), gather(rest, self.group), strict=True)
        products, rests = zip(*maps, strict=True)
        in_order = [products[rank] for rank in self.order], [rests[rank] for rank in self.order]
        # An entry of all states: so the backward pass calls the exchange in each process.
        return _states_before(*in_order, scan.apply)[self.place]


def _states_before(
    products: Sequence[Tensor],
    rests: Sequence[Tensor],
    apply: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The state before the positions of each process, `(R, B, ...)`, where the state before the first one is zero.

    Args:
        products: What the positions of each process multiply a state by.
        rests: The state that they leave from the zero state, `(B, ...)`.
        apply: `apply(product, state)`.
    """
    state = torch.zeros_like(rests[0])
    before = []
    for product, rest in zip(products, rests, strict=True):
        before.append(state)
        state = apply(product, state) + rest
    return torch.stack(before)


def _flipped(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if tensor is None else tensor.flip(1) for tensor in tensors]


def _first_flipped(results: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return results[0].flip(1), results[1]


@contextmanager
def _same_random_numbers(group: Any, device: torch.device) -> Iterator[None]:
    """All processes draw on a device what the first one draws: tied dropout has one mask for all positions."""
    seed = torch.randint(2**62, ())
    Processes(group).take_from_first_(seed)
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        torch.manual_seed(int(seed))
        yield
