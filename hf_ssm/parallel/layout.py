"""Rows whose positions are shared by several processes, and how operations that mix positions read them.

Legend: `R` processes, `B` batch, `L` positions of the whole rows, `l` positions of this process, `D` channels, `n`
documents of which this process holds positions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hf_ssm.modules.rows import ByChannel, Halo, SegmentScan
from hf_ssm.ops.documents import Documents
from hf_ssm.parallel.collectives import exchange_channels, gather, gather_positions, return_channels
from hf_ssm.utils.processes import Processes

__all__ = ["SharedLayout"]


@dataclass(frozen=True)
class SharedLayout:
    """The layout of rows `(B, L, ...)` of which each process of a group holds the positions `start` to `stop`.

    It is used like the layout of packed documents (`ops/documents.py`), as `Rows.layout`. A function that mixes
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
        documents: The documents of packed rows, or `None`.
    """

    group: Any
    order: tuple[int, ...]
    lengths: tuple[int, ...]
    mask: Tensor | None = None
    documents: Documents | None = None
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
        """Length of the rows, or of the longest document."""
        return self.length if self.documents is None else self.documents.longest

    def flip(self, values: Tensor) -> Tensor:
        """The positions of this process in reverse order."""
        return values.flip(1)

    def reversed(self) -> "SharedLayout":
        """The layout of rows in reverse order: the first process is the last one."""
        documents = None if self.documents is None else _reversed_documents(self.documents)
        mask = None if self.mask is None else self.mask.flip(1)
        return SharedLayout(self.group, self.order[::-1], self.lengths[::-1], mask, documents)

    def cut(self, values: Tensor) -> Tensor:
        """The positions of this process, of whole rows `(B, L, ...)`."""
        return values[:, self.start : self.stop]

    arrange = cut

    def whole(self, values: Tensor) -> Tensor:
        """The whole rows, `(B, L, ...)`, from the positions of this process."""
        return gather_positions(values, self.lengths, self.order, self.group)

    restore = whole

    def masked_batches(self, values: Tensor) -> list[tuple[Tensor, Tensor | None]]:
        """The whole rows and their mask, or those of each bucket of documents; for statistics of all positions."""
        whole = self.whole(values)
        if self.documents is None:
            return [(whole, self.mask)]
        return self.documents.masked_batches(self.documents.arrange(whole))

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
        if self.documents is None:
            return function(*tensors, self.mask)
        return _by_document(self.documents, function, tensors)

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
        if self.documents is None:
            output = function(*extended, None if self.mask is None else self.mask[:, start:stop])
        else:
            output = _by_document(_Pieces(self.documents, start, stop).documents, function, extended)
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
        if self.documents is not None:
            return self._scanned_documents(scan, self.documents, tensors)
        _, rest = scan.run(*tensors, None)
        return scan.run(*tensors, self._state_before(scan, tensors, rest))[0]

    def _state_before(
        self, scan: SegmentScan, tensors: Sequence[Tensor | None], rest: Tensor, keeps: Sequence[Tensor] | None = None
    ) -> Tensor:
        """The state that the processes before this one leave, `(B, ...)`."""
        maps = zip(gather(scan.product(*tensors), self.group), gather(rest, self.group), strict=True)
        products, rests = zip(*maps, strict=True)
        in_order = [products[rank] for rank in self.order], [rests[rank] for rank in self.order]
        # An entry of all states: so the backward pass calls the exchange in each process.
        return _states_before(*in_order, scan.apply, keeps)[self.place]

    def _scanned_documents(self, scan: SegmentScan, documents: Documents, tensors: Sequence[Tensor | None]) -> Tensor:
        pieces = _Pieces(documents, self.start, self.stop)
        held = pieces.documents
        # A row leaves the state of its last piece, if the document continues in the next process.
        leaving = pieces.leaves.nonzero().squeeze(1).tolist()
        ends = []
        for piece in leaving or [0]:
            row, first = int(held.rows[piece]), int(held.starts[piece])
            places = slice(row, row + 1), slice(first, first + int(held.lengths[piece]))
            ends.append(scan.run(*(None if t is None else t[places] for t in tensors), None)[1])
        device = ends[0].device
        rest = ends[0].new_zeros(held.shape[0], *ends[0].shape[1:])
        # The states of all processes are part of the graph, also one that no other process reads.
        rows, states = held.rows[leaving or [0]].to(device), torch.cat(ends)
        rest = rest.index_add(0, rows, states if leaving else torch.where(torch.zeros_like(states).bool(), states, 0))
        firsts = [sum(self.lengths[:place]) for place in range(len(self.lengths))]
        keeps = [
            _Pieces(documents, first, first + length).keeps.to(device)
            for first, length in zip(firsts, self.lengths, strict=True)
        ]
        before = self._state_before(scan, tensors, rest, keeps)[held.rows.to(device)]
        enters = pieces.enters.to(device).view(-1, *[1] * (before.dim() - 1))
        before = torch.where(enters, before, 0)[held.order.to(device)]
        states = iter(before.split([count for count, _ in held.buckets]))
        return _by_document(held, lambda *batch: scan.run(*batch[:-1], next(states))[0], tensors)


def _states_before(
    products: Sequence[Tensor],
    rests: Sequence[Tensor],
    apply: Callable[[Tensor, Tensor], Tensor],
    keeps: Sequence[Tensor] | None,
) -> Tensor:
    """The state before the positions of each process, `(R, B, ...)`, where the state before the first one is zero.

    Args:
        products: What the positions of each process multiply a state by.
        rests: The state that they leave from the zero state, `(B, ...)`.
        apply: `apply(product, state)`.
        keeps: Whether the state before the positions reaches their end, `(B,)` each: false where a document ends or
            begins among them. `None`: it does.
    """
    state = torch.zeros_like(rests[0])
    before = []
    for index, (product, rest) in enumerate(zip(products, rests, strict=True)):
        before.append(state)
        state = apply(product, state)
        if keeps is not None:
            state = torch.where(keeps[index].view(-1, *[1] * (state.dim() - 1)), state, 0)
        state = state + rest
    return torch.stack(before)


class _Pieces:
    """The parts of documents at some positions of packed rows, as documents of their own.

    Args:
        documents: The documents of whole rows.
        start, stop: The positions.

    Attributes:
        documents: The parts; at least one, in the place of none the first position of the first row.
        enters: Whether a document begins before the positions, `(n,)`, on the CPU.
        leaves: Whether it ends after them, likewise.
        keeps: Whether one document of a row does both, `(B,)`, likewise.
    """

    def __init__(self, documents: Documents, start: int, stop: int):
        firsts, ends = documents.starts, documents.starts + documents.lengths
        there = (firsts < stop) & (ends > start)
        rows, firsts, ends = documents.rows[there], firsts[there], ends[there]
        self.enters, self.leaves = firsts < start, ends > stop
        self.keeps = torch.zeros(documents.shape[0], dtype=torch.bool)
        self.keeps[rows[self.enters & self.leaves]] = True
        firsts, ends = firsts.clamp(min=start) - start, ends.clamp(max=stop) - start
        if not len(rows):
            rows, firsts, ends = torch.tensor([0]), torch.tensor([0]), torch.tensor([1])
            self.enters = self.leaves = torch.tensor([False])
        shape = documents.shape[0], stop - start
        self.documents = Documents(rows, firsts, ends - firsts, shape)


def _by_document(documents: Documents, function: Callable[..., Tensor], tensors: Sequence[Tensor | None]) -> Tensor:
    """A function of packed rows, `(B, L, ...)`, computed for each document by itself; it reads zeros at padding."""

    def arranged(tensor: Tensor) -> Tensor:
        values, mask = documents.arrange(tensor), documents.mask
        return values if mask is None else values * mask.view(1, -1, *[1] * (values.dim() - 2)).to(values)

    whole = documents.map(function, *(None if tensor is None else arranged(tensor) for tensor in tensors))
    return documents.restore(whole)


def _reversed_documents(documents: Documents) -> Documents:
    """The documents of rows in reverse order."""
    length = documents.shape[1]
    starts = length - documents.starts - documents.lengths
    order = (documents.rows * length + starts).argsort()
    return Documents(documents.rows[order], starts[order], documents.lengths[order], documents.shape)


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
