"""Compiled kernels of one position: the step of the state space duality, and that of all blocks of a Mamba-2 model.

Dimensions as in `decoding.py`. Tensors are contiguous and given by the address of their first element (0: none); `like`
is 0 in the type of all numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.decoding import (
    ZERO,
    CompiledBlocks,
    apply_final_norm,
    apply_gate,
    convolve,
    project_in,
    project_out,
    resolve,
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
    softplus,
    splat,
    store_some,
    total,
)
from hf_ssm.ops.decoding import NO_FINAL_NORM, FinalNorm
from hf_ssm.ops.ssd_decoding import SSDBlockOptions, SSDBlockWeights, ssd_block_shapes

__all__ = ["SSDBlocksStep"]


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
def _block_step(like, item, weights, norm, flags, gated, limit, sizes, batch, memory, hidden, new_hidden, scratch):
    """`_blocks_step` of one block; `weights` and `memory` are its resolved weights and its addresses."""
    past, state, new_past, new_state = memory
    conv_weight, conv_bias, dt_bias, A_log, skip, gate_weight = weights[4:10]
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
        project_in(like, source, norm, flags, weights, scratch, gate, channels + mixed + heads, width)
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
            apply_gate(like, scanned, gate, channels)
        if gate_weight != 0:
            _norm_groups(like, scanned, gate_weight, groups, gate_epsilon, channels)
        if norm_before_gate:
            apply_gate(like, scanned, gate, channels)
        project_out(like, scanned, source, norm, flags, weights, target, width, channels)


@kernel
def _blocks_step(like, item, weights, counts, final, norm, flags, gated, limit, sizes, batch, memories, places):
    """One position of a batch through Mamba-2 blocks without MLP; see `CompiledBlocks`.

    Args:
        gated: What the gated norm adds to the mean square, and whether the gate follows it.
        limit: Least and greatest step size.
        sizes: S, D, H, G, N, K, and the number of entries of the skip.
        scratch: `S + 2 D + 2 M + H` numbers.
    """
    pasts, states_before, new_pasts, new_states = memories
    width, channels, _, groups, states, taps, _ = sizes
    past_bytes = batch * (taps - 1) * (channels + 2 * groups * states) * item
    state_bytes = batch * channels * states * item
    source, target, scratch, room = places
    own = np.empty(len(counts), np.int64)
    for i in range(len(weights)):
        a, b = i * past_bytes, i * state_bytes
        memory = pasts + a, states_before + b, new_pasts + a, new_states + b
        resolve(like, item, weights[i], counts, own, room)
        _block_step(like, item, own, norm, flags, gated, limit, sizes, batch, memory, source, target, scratch)
        source, target = target, target + batch * width * item
    apply_final_norm(like, item, source, norm, flags, final, batch, width, room)


class SSDBlocksStep(CompiledBlocks):
    """See `find_step`."""

    def __init__(
        self, weights: Sequence[SSDBlockWeights], options: SSDBlockOptions, final_norm: FinalNorm = NO_FINAL_NORM
    ):
        w, shapes = weights[0], ssd_block_shapes(weights[0], options)
        kind: Any = type(ZERO[w.A_log.dtype])
        (width, channels), (mixed, _, taps), heads = w.out_weight.shape, w.conv_weight.shape, len(w.A_log)
        gated, limit = (options.gate_epsilon, options.norm_before_gate), tuple(map(kind, options.dt_limit))
        sizes = width, channels, heads, options.groups, shapes.state[2], taps, len(w.skip)
        scratch_size = width + 2 * channels + 2 * mixed + heads
        numbers = gated, limit, sizes
        super().__init__(_blocks_step, weights, options, final_norm, shapes, w.A_log.dtype, scratch_size, numbers)
