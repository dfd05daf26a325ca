"""Compiled kernels of one position: the step of the state space duality, and that of all blocks of a Mamba-2 model.

Dimensions as in `decoding.py`. Tensors are contiguous and given by the address of their first element (0: none); `like`
is 0 in the type of all numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.context import is_plain_call
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.decoding import (
    NO_NORM,
    NORMS,
    ZERO,
    CompiledBlocks,
    add_rows,
    address,
    apply_linear,
    apply_norm,
    convolve,
)
from hf_ssm.ops.cpu.vector import (
    LANES,
    add,
    constant,
    fma,
    load_some,
    maximum,
    minimum,
    mul,
    pointer,
    sigmoid,
    softplus,
    splat,
    store_some,
    total,
)
from hf_ssm.ops.ssd.decoding import SSDBlockOptions, SSDBlockWeights, check_ssd_block_weights
from hf_ssm.ops.threads import run_tasks

__all__ = ["SSDBlocksStep", "ssd_step_numba", "supports_ssd_step"]

# Numbers of a state from which on a batch is divided among threads: starting a task takes as long as some thousands.
_NUMBERS_OF_A_TASK = 2**17


@kernel
def _heads_step(like, x, d, A, logarithmic, B, C, skip, skips, state, new_state, y, heads, size, groups, states):
    """One position of all heads of one sequence, vectorised over states.

    Args:
        x: `(D,)`.
        d: Step sizes `(H,)`.
        A: `(H,)`; if `logarithmic`, the logarithm of its negative.
        B, C: `(G, N)`.
        skip: `(H,)`, `(D,)` or 0.
        skips: Number of entries of `skip`.
        state: `(H, P, N)`.
        new_state: Written, `(H, P, N)`.
        y: Written, `(D,)`.
    """
    inputs, steps, rates = pointer(x, like), pointer(d, like), pointer(A, like)
    b, c, out = pointer(B, like), pointer(C, like), pointer(y, like)
    before, after = pointer(state, like), pointer(new_state, like)
    of_group = heads // groups
    for h in range(heads):
        rate = -math.exp(rates[h]) if logarithmic else rates[h]
        decay, weights = constant(math.exp(steps[h] * rate), like), h // of_group * states
        for k in range(h * size, (h + 1) * size):
            amount, summed = splat(steps[h] * inputs[k]), splat(like)
            for n in range(0, states, LANES):
                lanes, at = states - n, k * states + n
                s = fma(amount, load_some(b, weights + n, lanes), mul(decay, load_some(before, at, lanes)))
                store_some(after, at, s, lanes)
                summed = fma(s, load_some(c, weights + n, lanes), summed)
            value = total(summed)
            if skip != 0:
                value += pointer(skip, like)[h if skips == heads else k] * inputs[k]
            out[k] = value


@kernel
def _rows_step(like, item, x, d, A, B, C, skip, skips, state, new_state, y, start, end, heads, size, groups, states):
    """One position of the sequences `start` to `end - 1`."""
    for row in range(start, end):
        wide, weights = row * heads * size * item, row * groups * states * item
        deep = wide * states
        _heads_step(
            like,
            x + wide,
            d + row * heads * item,
            A,
            False,
            B + weights,
            C + weights,
            skip,
            skips,
            state + deep,
            new_state + deep,
            y + wide,
            heads,
            size,
            groups,
            states,
        )


@kernel
def _gate(like, y, gate, channels):
    """`y = y SiLU(gate)`."""
    out, z = pointer(y, like), pointer(gate, like)
    for i in range(0, channels, LANES):
        lanes = channels - i
        v = load_some(z, i, lanes)
        store_some(out, i, mul(load_some(out, i, lanes), mul(v, sigmoid(v))), lanes)


@kernel
def _norm_groups(like, y, weight, groups, epsilon, channels):
    """RMS norm of each group of channels, times the weight."""
    out, w = pointer(y, like), pointer(weight, like)
    size = channels // groups
    for first in range(0, channels, size):
        summed = splat(like)
        for i in range(0, size, LANES):
            v = load_some(out, first + i, size - i)
            summed = fma(v, v, summed)
        scale = constant(1 / math.sqrt(total(summed) / size + epsilon), like)
        for i in range(0, size, LANES):
            at, lanes = first + i, size - i
            v = mul(mul(load_some(out, at, lanes), scale), load_some(w, at, lanes))
            store_some(out, at, v, lanes)


@kernel
def _block_step(like, item, batch, hidden, new_hidden, memory, scratch, weights, norm, flags, gated, limit, sizes):
    """`_blocks_step` of one block; `memory` and `weights` are its addresses."""
    past, state, new_past, new_state = memory
    norm_weight, norm_bias, in_weight, in_bias = weights[0], weights[1], weights[2], weights[3]
    conv_weight, conv_bias, dt_bias, A_log = weights[4], weights[5], weights[6], weights[7]
    skip, gate_weight, out_weight, out_bias = weights[8], weights[9], weights[10], weights[11]
    kind, epsilon = norm
    norm_first, residual = flags
    gate_epsilon, norm_before_gate = gated
    width, channels, heads, groups, states, taps, skips = sizes
    low, high = splat(limit[0]), splat(limit[1])
    mixed = channels + 2 * groups * states
    gate = scratch + width * item
    inputs = gate + channels * item
    step = inputs + mixed * item
    convolved = step + heads * item
    scanned = convolved + mixed * item
    B = convolved + channels * item
    C = B + groups * states * item
    d, bias = pointer(step, like), pointer(dt_bias, like)
    size = channels // heads
    for row in range(batch):
        source, target = hidden + row * width * item, new_hidden + row * width * item
        read = source
        if norm_first and kind != NO_NORM:
            apply_norm(like, source, kind, epsilon, norm_weight, norm_bias, scratch, width)
            read = scratch
        apply_linear(like, read, in_weight, in_bias, gate, channels + mixed + heads, width)
        at = row * (taps - 1) * mixed * item
        convolve(like, inputs, past + at, conv_weight, conv_bias, new_past + at, convolved, mixed, taps)
        for k in range(0, heads, LANES):
            lanes = heads - k
            v = softplus(add(load_some(d, k, lanes), load_some(bias, k, lanes)))
            store_some(d, k, minimum(high, maximum(low, v)), lanes)
        at = row * channels * states * item
        held = state + at, new_state + at
        _heads_step(like, convolved, step, A_log, True, B, C, skip, skips, *held, scanned, heads, size, groups, states)
        if not norm_before_gate:
            _gate(like, scanned, gate, channels)
        if gate_weight != 0:
            _norm_groups(like, scanned, gate_weight, groups, gate_epsilon, channels)
        if norm_before_gate:
            _gate(like, scanned, gate, channels)
        apply_linear(like, scanned, out_weight, out_bias, target, width, channels)
        if residual:
            add_rows(like, source, target, target, width)
        if not norm_first and kind != NO_NORM:
            apply_norm(like, target, kind, epsilon, norm_weight, norm_bias, target, width)


@kernel
def _blocks_step(
    like,
    item,
    weights,
    final_weight,
    final_bias,
    norm,
    flags,
    gated,
    limit,
    sizes,
    batch,
    pasts,
    memories,
    new_pasts,
    new_memories,
    hidden,
    new_hidden,
    scratch,
):
    """One position of a batch through Mamba-2 blocks without MLP.

    Args:
        item: Size of a number in bytes.
        weights: Array of addresses, one row per block: the tensors of `SSDBlockWeights`; 0 for `None`.
        final_weight, final_bias: Of the norm after the last block, if norms are first.
        norm: Kind of all norms, and the number they add to the variance.
        flags: Whether norms are before the mixers instead of after the sums, and whether inputs are added to outputs.
        gated: What the gated norm adds to the mean square, and whether the gate follows it.
        limit: Least and greatest step size.
        sizes: S, D, H, G, N, K, and the number of entries of the skip.
        batch: B.
        pasts, new_pasts: States of the convolutions before (read) and after (written),
            `(number of blocks, B, K - 1, M)`.
        memories, new_memories: States of the scans, `(number of blocks, B, H, P, N)`.
        hidden: `(B, S)`.
        new_hidden: Written: the output of each block, `(number of blocks, B, S)`, the last after the final norm.
        scratch: `S + 2 D + 2 M + H` numbers.
    """
    width, channels, _, groups, states, taps, _ = sizes
    past_bytes = batch * (taps - 1) * (channels + 2 * groups * states) * item
    memory_bytes = batch * channels * states * item
    source, target = hidden, new_hidden
    for i in range(len(weights)):
        a, b = i * past_bytes, i * memory_bytes
        memory = pasts + a, memories + b, new_pasts + a, new_memories + b
        _block_step(like, item, batch, source, target, memory, scratch, weights[i], norm, flags, gated, limit, sizes)
        source, target = target, target + batch * width * item
    kind, epsilon = norm
    if flags[0] and kind != NO_NORM:
        for row in range(batch):
            at = source + row * width * item
            apply_norm(like, at, kind, epsilon, final_weight, final_bias, at, width)


class SSDBlocksStep(CompiledBlocks):
    """See `find_ssd_blocks_step`."""

    run = staticmethod(_blocks_step)

    def __init__(
        self,
        weights: Sequence[SSDBlockWeights],
        options: SSDBlockOptions,
        final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
    ):
        addresses = self.keep(*weights, final_norm)
        w = weights[0]
        like = ZERO[w.A_log.dtype]
        kind: Any = type(like)
        (width, channels), (mixed, _, taps), heads = w.out_weight.shape, w.conv_weight.shape, len(w.A_log)
        states = (mixed - channels) // (2 * options.groups)
        check_ssd_block_weights(weights)
        self.count, self.shapes = len(weights), (width, (taps - 1, mixed), (heads, channels // heads, states))
        self.scratch_size = width + 2 * channels + 2 * mixed + heads
        self.arguments = (
            *(like, w.A_log.element_size()),
            *(np.array(addresses[:-2]).reshape(len(weights), -1), *addresses[-2:]),
            (NORMS.index(options.norm), options.epsilon),
            (options.norm_first, options.residual),
            (options.gate_epsilon, options.norm_before_gate),
            tuple(kind(number) for number in options.dt_limit),
            (width, channels, heads, options.groups, states, taps, len(w.skip)),
        )


def supports_ssd_step(x: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor) -> bool:
    return is_plain_call(x, d, A, B, C, D, state)


def ssd_step_numba(
    x: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The step with step sizes `d` `(B, H)` as they enter the recurrence, in one dtype."""
    x, d, A, B, C, state = (t.contiguous() for t in (x, d, A, B, C, state))
    D = None if D is None else D.contiguous()
    (batch, heads, size), (groups, states) = x.shape, B.shape[1:]
    y, new = torch.empty_like(x), torch.empty_like(state)
    skips = 0 if D is None else D.numel()
    addresses = *(address(t) for t in (x, d, A, B, C, D)), skips, *(address(t) for t in (state, new, y))
    rows = max(1, -(-_NUMBERS_OF_A_TASK // (heads * size * states)))

    def task(number: int) -> None:
        start = number * rows
        parts = start, min(start + rows, batch)
        _rows_step(ZERO[x.dtype], x.element_size(), *addresses, *parts, heads, size, groups, states)

    run_tasks(task, -(-batch // rows))
    return y, new
