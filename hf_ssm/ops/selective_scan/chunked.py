"""The selective scan in PyTorch: chunk by chunk, on any device, with states that the backward recomputes.

Dimensions: `B` batch, `L` length, `D` channels, `T` positions of one chunk, `K` chunks, `R` real rows of states: the
states of a channel, or for complex states the real parts above the imaginary parts ("paired").

The recurrence is real throughout, so that every sum is a real matrix product, and only products with the decay treat
pairs differently. Channels are innermost, which makes the inner loops of torch long and contiguous.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.context import gradients, in_function_transform, is_exporting, no_autocast
from hf_ssm.ops.linear_scan import plain_scan
from hf_ssm.ops.selective_scan.arguments import (
    LOG2_E,
    ScanTensors,
    complex_or_real_exp,
    skip_and_gate,
    step_sizes,
    sum_over_states,
)

__all__ = ["ChunkedScan", "chunked_scan"]

# Chunks of √L positions minimise the memory kept for the backward. Longer chunks than this exceed the cache, and at
# this length the kept states are few compared to the input.
_MAX_CHUNK = 64
# Numbers per position (batch rows x R x D) that one CPU thread processes at a time, for the cache.
_NUMBERS_PER_THREAD = 16384


def _real_planes(t: Tensor, paired: bool) -> tuple[Tensor, ...]:
    return t.chunk(2, dim=-2) if paired else (t,)


def _planes_by_position(t: Tensor, paired: bool) -> list[tuple[Tensor, ...]]:
    """The planes of each position of `t` `(T, B, R, D)`."""
    return list(zip(*(plane.unbind(0) for plane in _real_planes(t, paired)), strict=True))


def _add_product_(out: tuple[Tensor, ...], a: tuple[Tensor, ...], x: tuple[Tensor, ...], sign: int = 1) -> None:
    """`out += a x` on planes; with `sign` -1, `out += conj(a) x`."""
    out[0].addcmul_(a[0], x[0])
    if len(out) == 2:
        out[0].addcmul_(a[1], x[1], value=-sign)
        out[1].addcmul_(a[0], x[1]).addcmul_(a[1], x[0], value=sign)


def _multiply_(out: Tensor, a: Tensor, paired: bool, sign: int = 1) -> None:
    """`out *= a`; with `sign` -1, `out *= conj(a)`."""
    if not paired:
        out.mul_(a)
        return
    (real, imag), (a_real, a_imag) = _real_planes(out, True), _real_planes(a, True)
    before = real.clone()
    real.mul_(a_real).addcmul_(imag, a_imag, value=-sign)
    imag.mul_(a_real).addcmul_(before, a_imag, value=sign)


def _binary_exponent(A: Tensor, paired: bool) -> Tensor:
    """`A` `(R, D)` with its real part in units of log 2, as `_run_chunk` takes it."""
    real, *imag = _real_planes(A, paired)
    return torch.cat([real * LOG2_E, *imag])


def _run_chunk(
    d: Tensor,
    x: Tensor,
    A2: Tensor,
    B: Tensor,
    decays: Tensor,
    states: Tensor,
    paired: bool,
) -> None:
    """Fill `decays` `(T, B, R, D)` with `exp(d A)`, and `states` `(T + 1, B, R, D)` after its first position."""
    torch.mul(d.unsqueeze(2), A2, out=decays)
    size, *phases = _real_planes(decays, paired)
    size.exp2_()
    for phase in phases:
        cosine = torch.cos(phase)
        phase.sin_().mul_(size)
        size.mul_(cosine)
    torch.mul(x.unsqueeze(2), B.unsqueeze(3), out=states[1:])
    at = _planes_by_position(states, paired)
    for decay, before, now in zip(_planes_by_position(decays, paired), at[:-1], at[1:], strict=True):
        _add_product_(now, decay, before)


def _run_chunk_back(cotangents: Tensor, decays: Tensor, carry: Tensor, paired: bool) -> None:
    """`g_t += conj(decay_{t+1}) g_{t+1}`, the last with `carry` `(B, R, D)`, which becomes that of the chunk before."""
    cotangents[-1].add_(carry)
    g, decay = _planes_by_position(cotangents, paired), _planes_by_position(decays, paired)
    for t in range(len(g) - 2, -1, -1):
        _add_product_(g[t], decay[t + 1], g[t + 1], sign=-1)
    carry.copy_(cotangents[0])
    _multiply_(carry, decays[0], paired, sign=-1)


def _threads() -> int:
    # torch.compile cannot trace the number of threads.
    return 1 if torch.compiler.is_compiling() else torch.get_num_threads()


def _scan_row_blocks(state: Tensor) -> list[slice]:
    """Slices of the batch to process one after the other: the whole batch on an accelerator."""
    rows = state.shape[0]
    if state.device.type == "cpu":
        rows = max(1, _NUMBERS_PER_THREAD * _threads() // max(1, state[:1].numel()))
    return [slice(start, start + rows) for start in range(0, state.shape[0], max(1, rows))]


def _scan_chunks(length: int) -> list[slice]:
    size = min(math.isqrt(length - 1) + 1, _MAX_CHUNK)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _scan_chunk(tensor: Tensor, rows: slice, chunk: slice) -> Tensor:
    """`(B, L, ...)` -> one chunk of one block, time first: a view `(T, B, ...)`."""
    return tensor[rows, chunk].transpose(0, 1)


class ChunkedScan(torch.autograd.Function):
    """The recurrence on real rows; keeps the states at the start of each chunk and recomputes all others.

    Maps `d` `(B, L, D)` or `(B, L, 1)`, `x = d u` `(B, L, D)`, `A` `(R, D)`, `B` and `C` `(B, L, R)`, and `state`
    `(B, R, D)` to `y` `(B, L, D)` and the last state. With `keep` false nothing is stored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        d: Tensor,
        x: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        state: Tensor,
        paired: bool,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        chunks, A2 = _scan_chunks(x.shape[1]), _binary_exponent(A, paired)
        keep = keep and any(ctx.needs_input_grad)
        y, last = torch.empty_like(x), state.clone()
        kept = state.new_empty(len(chunks) if keep else 0, *state.shape)
        for rows in _scan_row_blocks(state):
            size = chunks[0].stop
            decays, states = (state.new_empty(t, *state[rows].shape) for t in (size, size + 1))
            for k, chunk in enumerate(chunks):
                d_c, x_c, B_c, C_c = (_scan_chunk(t, rows, chunk) for t in (d, x, B, C))
                e, s = decays[: len(x_c)], states[: len(x_c) + 1]
                s[0] = last[rows]
                if keep:
                    kept[k, rows] = s[0]
                _run_chunk(d_c, x_c, A2, B_c, e, s, paired)
                _scan_chunk(y, rows, chunk).copy_((C_c.unsqueeze(2) @ s[1:]).squeeze(2))
                last[rows] = s[-1]
        if keep:
            ctx.save_for_backward(d, x, A, B, C, state, kept)
            ctx.paired = paired
        return y, last

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(grad_y.device):
            if torch.is_grad_enabled():
                *tensors, _ = ctx.saved_tensors
                plain = partial(_plain_scan, paired=ctx.paired)
                return (*gradients(plain, tensors, [grad_y, grad_last]), None, None)
            return (*_scan_gradients(ctx, grad_y.contiguous(), grad_last), None, None)


def _scan_gradients(ctx: Any, grad_y: Tensor, grad_last: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of the tensors of `ChunkedScan`; `e`, `s` and `g` are decays, states and cotangents of a chunk."""
    d, x, A, B, C, _, kept = ctx.saved_tensors
    chunks, paired, A2 = _scan_chunks(x.shape[1]), ctx.paired, _binary_exponent(A, ctx.paired)
    wanted = zip((d, x, A, B, C), ctx.needs_input_grad, strict=False)
    grad_d, grad_x, grad_A, grad_B, grad_C = (torch.zeros_like(t) if need else None for t, need in wanted)
    carry = grad_last.clone(memory_format=torch.contiguous_format)
    for rows in _scan_row_blocks(carry):
        size = chunks[0].stop
        decays, states, cotangents = (x.new_empty(t, *carry[rows].shape) for t in (size, size + 1, size))
        for k in reversed(range(len(chunks))):
            d_c, x_c, B_c, C_c, g_c = (_scan_chunk(t, rows, chunks[k]) for t in (d, x, B, C, grad_y))
            e, s, g = decays[: len(x_c)], states[: len(x_c) + 1], cotangents[: len(x_c)]
            s[0] = kept[k, rows]
            _run_chunk(d_c, x_c, A2, B_c, e, s, paired)
            torch.mul(g_c.unsqueeze(2), C_c.unsqueeze(3), out=g)
            _run_chunk_back(g, e, carry[rows], paired)
            if grad_C is not None:
                _scan_chunk(grad_C, rows, chunks[k]).copy_((g_c.unsqueeze(2) @ s[1:].transpose(2, 3)).squeeze(2))
            if grad_B is not None:
                _scan_chunk(grad_B, rows, chunks[k]).copy_((x_c.unsqueeze(2) @ g.transpose(2, 3)).squeeze(2))
            if grad_x is not None:
                _scan_chunk(grad_x, rows, chunks[k]).copy_((B_c.unsqueeze(2) @ g).squeeze(2))
            # From here on g is the cotangent of the exponent d A, and e is scratch memory.
            _multiply_(e, s[:-1], paired)
            _multiply_(g, e, paired, sign=-1)
            if grad_d is not None:
                over_rows = torch.mul(g, A, out=e).sum(2)
                _scan_chunk(grad_d, rows, chunks[k]).copy_(over_rows.sum_to_size(d_c.shape))
            if grad_A is not None:
                grad_A += g.mul_(d_c.unsqueeze(2)).sum((0, 1))
    return grad_d, grad_x, grad_A, grad_B, grad_C, carry


def _plain_scan(
    d: Tensor,
    x: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    *,
    paired: bool,
) -> tuple[Tensor, Tensor]:
    """`ChunkedScan` position by position, by operations that are differentiable any number of times, in any mode."""
    rows = []
    for t in range(x.shape[1]):
        exponent = d[:, t].unsqueeze(1) * A
        if paired:
            (growth, phase), (real, imag) = exponent.chunk(2, dim=1), state.chunk(2, dim=1)
            size, cosine, sine = growth.exp(), phase.cos(), phase.sin()
            state = torch.cat([size * (cosine * real - sine * imag), size * (cosine * imag + sine * real)], dim=1)
        else:
            state = exponent.exp() * state
        state = state + x[:, t].unsqueeze(1) * B[:, t].unsqueeze(2)
        rows.append((C[:, t].unsqueeze(2) * state).sum(1))
    return torch.stack(rows, dim=1), state


def _selective_states(d: Tensor, x: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over states `(B, L, D)` and the last state `(B, D, N)` of a program of any length, by a linear scan."""
    states = plain_scan(complex_or_real_exp(d.unsqueeze(-1), A), x.unsqueeze(-1) * B.unsqueeze(2), state)
    return sum_over_states(C.unsqueeze(2), states), states[:, -1]


def _to_real_rows(t: Tensor) -> Tensor:
    """`(..., N)` -> `(..., R)`, real."""
    return torch.cat([t.real, t.imag], dim=-1) if t.is_complex() else t


def chunked_scan(args: ScanTensors, delta_softplus: bool, needs_last: bool) -> tuple[Tensor, Tensor]:
    """The output and the last state."""
    u, delta, A, B, C, D, z, delta_bias, state = args.cast(args.dtype)
    state = A.new_zeros(u.shape[0], *A.shape) if state is None else state
    d = step_sizes(delta, delta_bias, delta_softplus)
    if is_exporting():
        with no_autocast(u.device):
            y, last = _selective_states(d, d * u, A, B, C, state)
        return skip_and_gate(y, u, D, z).to(args.u.dtype), last
    paired = A.is_complex()
    # 2 Re c x is the real product of the rows of 2 conj(c) with the rows of x.
    weights = _to_real_rows(A).t(), _to_real_rows(B), _to_real_rows(2 * C.conj() if paired else C)
    with no_autocast(u.device):
        inputs = [t.contiguous() for t in (d, d * u, *weights, _to_real_rows(state).transpose(1, 2))]
        if in_function_transform():
            y, last = _plain_scan(*inputs, paired=paired)
        else:
            y, last = ChunkedScan.apply(*inputs, paired, torch.is_grad_enabled())
    last = last.transpose(1, 2)
    last = torch.complex(*last.chunk(2, dim=-1)) if paired else last
    return skip_and_gate(y, u, D, z).to(args.u.dtype), last.contiguous()
