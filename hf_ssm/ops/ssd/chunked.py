"""The state space duality in PyTorch, in chunks: quadratic within a chunk, a recurrence of states between chunks.

Dimensions: `B` batch, `L` length, `H` heads, `P` channels of a head, `G` groups of heads, `R = H / G` heads of a group,
`N` states per channel, `K` chunks, `T` positions of a chunk.

Within a chunk, with `u_j = d_j x_j`, the decay `l_ij` from position j to i, `p_i` from the state before the chunk to
position i and `r_j` from position j to its end,

    y_i = Σ_{j<=i} l_ij (C_i · B_j) u_j + p_i S C_i,        S' = p_T S + Σ_j r_j u_j B_jᵀ.

States are stored as `(N, R P)`: the sums over all heads of a group are then one matrix product.

Source: Dao & Gu 2024, Section 6.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_ssm.ops.context import differentiable_gradients, in_function_transform, no_autocast
from hf_ssm.ops.ssd.arguments import in_dtype_of_steps
from hf_ssm.ops.ssd.chunks import (
    Span,
    heads_apart,
    heads_in_rows,
    in_chunks,
    per_row,
    per_state,
    positions_first,
    positions_of,
    segment_decays,
    span_of,
)

__all__ = ["ChunkedSSD", "chunked_ssd"]

# The products with states cost the same for every size; those within chunks grow with it. On a CPU longer chunks than
# this are slower in any case; on an accelerator they take fewer calls.
_CHUNK = 64
# Numbers of a matrix of decays that are computed at once: for the caches of a CPU, and for the memory of a GPU.
_SPAN_ON_CPU, _SPAN = 2**21, 2**26


def _chunk_size(x: Tensor, wanted: int | None) -> int:
    """A power of two: `wanted` or the default rounded up, but no more than hold the whole sequence."""
    size = _CHUNK if wanted is None or (wanted > _CHUNK and x.device.type == "cpu") else wanted
    return 1 << (min(x.shape[1], size) - 1).bit_length()


def _reversed_sums(t: Tensor) -> Tensor:
    """The sums over the later entries of the last dimension."""
    return F.pad(t[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


def _decays(logs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`l` `(..., T, T)`, `p` and `r` `(..., T)` of logarithms `(..., T)`, T a power of two.

    Blocks of 1, 2, 4, ... positions are joined: the decay from a position of a block to one of the next is that to the
    end of the first times that from there. No sums are subtracted, which would lose digits and undefine a reset, and of
    a stable `A` no exponential exceeds 1.
    """
    size = logs.shape[-1]
    matrix = logs.new_zeros(*logs.shape, size)
    matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
    to_end, from_start = torch.ones_like(logs).unsqueeze(-1), torch.exp(logs).unsqueeze(-1)
    block = 1
    while block < size:
        first, second = to_end[..., 0::2, :], from_start[..., 1::2, :]
        squares = matrix.unflatten(-1, (-1, 2 * block)).unflatten(-3, (-1, 2 * block)).diagonal(dim1=-4, dim2=-2)
        product = second.unsqueeze(-1) * first.unsqueeze(-2)
        squares[..., block:, :block, :] = product.movedim(-3, -1)
        block *= 2
        blocks = logs.unflatten(-1, (-1, block))
        from_start, to_end = torch.exp(blocks.cumsum(-1)), torch.exp(_reversed_sums(blocks))
    return matrix, from_start.squeeze(-2), to_end.squeeze(-2)


def _run_states(span: Span, p: Tensor, r: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The states before the chunks `(B, G, K, N, R P)`, and the one after the last."""
    states = span.B.transpose(-1, -2) @ heads_in_rows(per_row(r) * span.u)
    for k in range(states.shape[2]):
        after = torch.addcmul(states[:, :, k], per_state(p[..., k, -1], span.x.shape[-1]), state)
        states[:, :, k] = state
        state = after
    return states, state


def _run_states_back(span: Span, p: Tensor, grad_y: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the states after the chunks, and of the one before the first."""
    grads = span.C.transpose(-1, -2) @ heads_in_rows(per_row(p) * grad_y)
    for k in reversed(range(grads.shape[2])):
        before = torch.addcmul(grads[:, :, k], per_state(p[..., k, -1], span.x.shape[-1]), carry)
        grads[:, :, k] = carry
        carry = before
    return grads, carry


def _span_output(span: Span, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs `(B, K, T, G, R, P)`, the states before the chunks and the one after the last."""
    decay, p, r = _decays(span.logs)
    states, last = _run_states(span, p, r, state)
    weights = decay.mul_((span.C @ span.B.transpose(-1, -2)).unsqueeze(2))
    inner = positions_first(weights @ heads_apart(span.u))
    outer = positions_of(span.C @ states, span.x.shape[-2])
    return torch.addcmul(inner, per_row(p), outer), states, last


def _span_gradients(
    span: Span, states: Tensor, grad_y: Tensor, carry: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, d (apart from its part in the decay), the logarithms, B, C and the state before the chunks."""
    heads, u = span.x.shape[-2], span.u
    decay, p, r = _decays(span.logs)
    grad_states, carry = _run_states_back(span, p, grad_y, carry)
    # Through the states: s_k is before, g_k after a chunk.
    scaled_y, scaled_u = per_row(p) * grad_y, per_row(r) * u
    grad_B = heads_in_rows(scaled_u) @ grad_states.transpose(-1, -2)
    grad_C = heads_in_rows(scaled_y) @ states.transpose(-1, -2)
    grad_u = per_row(r) * positions_of(span.B @ grad_states, heads)
    into = (scaled_y * positions_of(span.C @ states, heads)).sum(-1)
    out_of = (u * grad_u).sum(-1)
    through = (states * grad_states).unflatten(-1, (heads, -1)).sum((-1, -3)).transpose(-1, -2) * p[..., -1]
    # Within a chunk.
    products = (span.C @ span.B.transpose(-1, -2)).unsqueeze(2)
    grad_weights = (heads_apart(grad_y) @ heads_apart(u).transpose(-1, -2)).mul_(decay)
    grad_products = grad_weights.sum(2)
    grad_B = grad_B + grad_products.transpose(-1, -2) @ span.C
    grad_C = grad_C + grad_products @ span.B
    grad_u = grad_u + positions_first(decay.mul_(products).transpose(-1, -2) @ heads_apart(grad_y))
    # A decay at k is a factor of all paths from j < k to i >= k, through the states too.
    below = torch.ones(p.shape[-1], p.shape[-1], dtype=p.dtype, device=p.device).tril()
    paths = (below.t() @ grad_weights.mul_(products)).tril_(-1).sum(-1)
    into, out_of = (t.movedim((1, 2), (3, 4)) for t in (into, out_of))
    grad_logs = paths + into @ below + F.pad(out_of.cumsum(-1)[..., :-1], (1, 0)) + through.unsqueeze(-1)
    return span.d.unsqueeze(-1) * grad_u, (span.x * grad_u).sum(-1), grad_logs, grad_B, grad_C, carry


def _spans(x: Tensor, size: int) -> list[slice]:
    """Slices of the positions, of whole chunks."""
    most = _SPAN_ON_CPU if x.device.type == "cpu" else _SPAN
    count = max(1, most // max(1, x.shape[0] * x.shape[2] * size * size))
    return [slice(start, start + count * size) for start in range(0, x.shape[1], count * size)]


def _part(t: Tensor | None, at: slice) -> Any:
    return None if t is None else t[:, at]


class ChunkedSSD(torch.autograd.Function):
    """The recurrence without skip; keeps the state before each chunk and recomputes everything else.

    Maps `x` `(B, L, H, P)`, `d` `(B, L, H)`, `A` `(H,)`, `B` and `C` `(B, L, G, N)`, `state` `(B, G, N, R P)` and
    `starts` `(B, L)` or `None` to `y` `(B, L, H, P)` and the last state. With `keep` false nothing is stored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        d: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        state: Tensor,
        starts: Tensor | None,
        size: int,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        keep = keep and any(ctx.needs_input_grad)
        y, last, kept = torch.empty_like(x, memory_format=torch.contiguous_format), state, []
        for at in _spans(x, size):
            span = span_of(x[:, at], d[:, at], A, B[:, at], C[:, at], _part(starts, at), partial(in_chunks, size=size))
            part, states, last = _span_output(span, last)
            y[:, at] = part.flatten(3, 4).flatten(1, 2)[:, : y[:, at].shape[1]]
            if keep:
                kept.append(states)
        if keep:
            ctx.save_for_backward(x, d, A, B, C, state, starts, *kept)
            ctx.size = size
        # An output must not be the input itself.
        return y, last.clone() if last is state else last

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        x, d, A, B, C, state, starts, *kept = ctx.saved_tensors
        with no_autocast(grad_y.device):
            if torch.is_grad_enabled():

                def plain(*tensors: Tensor) -> tuple[Tensor, Tensor]:
                    every: Any = (*tensors, starts, ctx.size)
                    return _plain_ssd(*every)

                grads = differentiable_gradients(plain, (x, d, A, B, C, state), [grad_y, grad_last])
                return (*grads, None, None, None)
            return (*_gradients((x, d, A, B, C), starts, kept, grad_y, grad_last, ctx.size), None, None, None)


def _gradients(
    tensors: Sequence[Tensor],
    starts: Tensor | None,
    kept: Sequence[Tensor],
    grad_y: Tensor,
    grad_last: Tensor,
    size: int,
) -> tuple[Tensor, ...]:
    """Gradients of x, d, A, B, C and the state before the first position."""
    x, d, A, B, C = tensors
    grad_x, grad_d, grad_B, grad_C = (torch.empty_like(t) for t in (x, d, B, C))
    grad_A, carry = torch.zeros_like(A), grad_last
    for at, states in reversed(list(zip(_spans(x, size), kept, strict=True))):
        d_s, length = d[:, at], d[:, at].shape[1]
        span = span_of(x[:, at], d_s, A, B[:, at], C[:, at], _part(starts, at), partial(in_chunks, size=size))
        grad = in_chunks(grad_y[:, at], size).unflatten(3, span.x.shape[3:5])
        part_x, part_d, logs, part_B, part_C, carry = _span_gradients(span, states, grad, carry)
        grad_x[:, at] = part_x.flatten(3, 4).flatten(1, 2)[:, :length]
        grad_B[:, at] = part_B.movedim(1, 3).flatten(1, 2)[:, :length]
        grad_C[:, at] = part_C.movedim(1, 3).flatten(1, 2)[:, :length]
        grad_logs = positions_first(logs).flatten(3, 4).flatten(1, 2)[:, :length]
        grad_d[:, at] = torch.addcmul(part_d.flatten(3, 4).flatten(1, 2)[:, :length], grad_logs, A)
        grad_A += (grad_logs * d_s).sum((0, 1))
    return grad_x, grad_d, grad_A, grad_B, grad_C, carry


def _plain_ssd(
    x: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    starts: Tensor | None,
    size: int,
) -> tuple[Tensor, Tensor]:
    """`ChunkedSSD` by operations that are differentiable any number of times, in any mode."""
    span = span_of(x, d, A, B, C, starts, partial(in_chunks, size=size))
    decay = segment_decays(span.logs)
    p, r = torch.exp(span.logs.cumsum(-1)), decay[..., -1, :]
    added = span.B.transpose(-1, -2) @ heads_in_rows(per_row(r) * span.u)
    states = []
    for k in range(added.shape[2]):
        states.append(state)
        state = per_state(p[..., k, -1], x.shape[-1]) * state + added[:, :, k]
    weights = (span.C @ span.B.transpose(-1, -2)).unsqueeze(2) * decay
    inner = positions_first(weights @ heads_apart(span.u))
    outer = positions_of(span.C @ torch.stack(states, dim=2), span.x.shape[-2])
    y = (inner + per_row(p) * outer).flatten(3, 4).flatten(1, 2)
    return y[:, : x.shape[1]], state


@in_dtype_of_steps
def chunked_ssd(
    x: Tensor,
    d: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor | None,
    starts: Tensor | None,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    """The output and the last state; for the arguments see `loop_ssd`."""
    (batch, _, heads, channels), (groups, states) = x.shape, B.shape[2:]
    size = _chunk_size(x, chunk_size)
    with no_autocast(x.device):
        if state is None:
            rows = x.new_zeros(batch, groups, states, heads // groups * channels)
        else:
            rows = state.unflatten(1, (groups, -1)).movedim(-1, 2).flatten(-2)
        if in_function_transform():
            y, last = _plain_ssd(x, d, A, B, C, rows, starts, size)
        else:
            y, last = ChunkedSSD.apply(x, d, A, B, C, rows, starts, size, torch.is_grad_enabled())
        y = y if D is None else torch.addcmul(y, D.unsqueeze(-1) if D.dim() == 1 else D, x)
    return y, last.unflatten(-1, (-1, channels)).movedim(2, -1).flatten(1, 2).contiguous()
