"""Exchanges between the processes that share rows, through which gradients flow.

Each process may compute a loss of its own; the gradient that comes back is that of the sum of all losses, as in
`utils/processes.py`. All processes have to call the same functions in the same order, in the backward pass too: so each
result depends on what every process has given.

Legend: `R` processes, `B` batch, `L` positions of the whole rows, `l` positions of this process.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["exchange_channels", "gather", "gather_positions", "return_channels"]


def gather(value: Tensor, group: Any) -> list[Tensor]:
    """`value`, of the same shape in all processes, of each one, in the order of their ranks in the group."""
    if value.is_complex():
        return [torch.view_as_complex(part) for part in gather(torch.view_as_real(value), group)]
    gathered: Tensor = _Gather.apply(value, group)
    return list(gathered.unbind())


def gather_positions(values: Tensor, lengths: Sequence[int], order: Sequence[int], group: Any) -> Tensor:
    """The whole rows, `(B, L, ...)`.

    Args:
        values: The positions of this process, `(B, l, ...)`.
        lengths: Positions of each process, in the order of the positions.
        order: Rank in the group of each process, likewise.
        group: The process group.
    """
    longest = max(lengths)
    padded = values.new_zeros(values.shape[0], longest - values.shape[1], *values.shape[2:])
    gathered = gather(torch.cat([values, padded], dim=1), group)
    return torch.cat([gathered[rank][:, :length] for rank, length in zip(order, lengths, strict=True)], dim=1)


def exchange_channels(
    values: Tensor, widths: Sequence[int], lengths: Sequence[int], order: Sequence[int], group: Any
) -> Tensor:
    """From some positions of all channels, `(B, l, D)`, to all positions of some channels, `(B, L, d)`.

    Args:
        values: The positions of this process.
        widths: Channels of each process, by rank in the group.
        lengths, order, group: As in `gather_positions`.
    """
    rank, batch = dist.get_rank(group), values.shape[0]
    parts = values.split(list(widths), dim=-1)
    length_of = dict(zip(order, lengths, strict=True))
    receive = [batch * length_of[other] * widths[rank] for other in range(len(order))]
    sent = torch.cat([part.flatten() for part in parts])
    received = _Exchange.apply(sent, receive, [part.numel() for part in parts], group).split(receive)
    return torch.cat([received[other].view(batch, length_of[other], widths[rank]) for other in order], dim=1)


def return_channels(
    values: Tensor, widths: Sequence[int], lengths: Sequence[int], order: Sequence[int], group: Any
) -> Tensor:
    """The inverse of `exchange_channels`: from `(B, L, d)` to `(B, l, D)`; same arguments."""
    rank, batch = dist.get_rank(group), values.shape[0]
    mine = lengths[list(order).index(rank)]
    pieces = dict(zip(order, values.split(list(lengths), dim=1), strict=True))
    sent = torch.cat([pieces[other].flatten() for other in range(len(order))])
    receive = [batch * mine * width for width in widths]
    received = _Exchange.apply(sent, receive, [pieces[other].numel() for other in range(len(order))], group)
    return torch.cat([part.view(batch, mine, -1) for part in received.split(receive)], dim=-1)


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
