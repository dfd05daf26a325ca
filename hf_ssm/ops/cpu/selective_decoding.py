"""Compiled kernels of one position: the step of the selective scan, and that of all blocks of a Mamba model.

Dimensions: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.
In kernels tensors are contiguous and given by the address of their first element (0: none); `like` is 0 in the type of
all numbers.
"""

from collections.abc import Sequence

import numpy as np

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.decoding import (
    LOG2_E,
    CompiledBlocks,
    apply_final_norm,
    apply_gate,
    apply_linear,
    convolve,
    project_in,
    project_out,
    resolve,
)
from hf_ssm.ops.cpu.vector import LANES, exp2, fma, load_some, mul, pointer, softplus, splat, store_some, sub, total
from hf_ssm.ops.decoding import NO_FINAL_NORM, FinalNorm
from hf_ssm.ops.selective_decoding import BlockOptions, BlockWeights, block_shapes

__all__ = ["BlocksStep"]


@kernel
def _scan_step(like, log2_e, u, d, A, logarithmic, B, C, skip, gate, state, new_state, y, channels, states):
    """One position of the scan of one sequence, vectorised over states.

    Args:
        log2_e: log2(e) in the type of `like`.
        u: `(D,)`.
        d: Step sizes, `(D,)`.
        A: `(D, N)`; if `logarithmic`, the logarithm of its negative.
        B, C: `(N,)`.
        skip: `(D,)` or 0.
        gate: `(D,)` or 0; its SiLU multiplies the output.
        state: `(D, N)`.
        new_state: Written, `(D, N)`.
        y: Written, `(D,)`.
    """
    step, x, a, b, c = pointer(d, like), pointer(u, like), pointer(A, like), pointer(B, like), pointer(C, like)
    before, after, out = pointer(state, like), pointer(new_state, like), pointer(y, like)
    to_base_2 = splat(log2_e)
    for k in range(channels):
        size = splat(step[k])
        amount = splat(step[k] * x[k])
        summed = splat(like)
        for n in range(0, states, LANES):
            lanes, at = states - n, k * states + n
            rate = mul(load_some(a, at, lanes), to_base_2)
            if logarithmic:
                rate = mul(sub(splat(like), exp2(rate)), to_base_2)
            h = mul(exp2(mul(size, rate)), load_some(before, at, lanes))
            h = fma(amount, load_some(b, n, lanes), h)
            store_some(after, at, h, lanes)
            summed = fma(h, load_some(c, n, lanes), summed)
        value = total(summed)
        if skip != 0:
            value += pointer(skip, like)[k] * x[k]
        out[k] = value
    if gate != 0:
        apply_gate(like, y, gate, channels)


@kernel
def _block_step(
    like, item, weights, norm, flags, log2_e, logarithmic, sizes, batch, memory, hidden, new_hidden, scratch
):
    """`_blocks_step` of one block; `weights` and `memory` are its resolved weights and its addresses."""
    past, state, new_past, new_state = memory
    conv_weight, conv_bias, x_weight, dt_weight, dt_bias, A, skip = weights[4:11]
    size, channels, states, rank, taps = sizes
    projected = scratch + size * item
    gate = projected + channels * item
    convolved = gate + channels * item
    step = convolved + channels * item
    scanned = step + channels * item
    selected = scanned + channels * item
    B = selected + rank * item
    C = B + states * item
    d = pointer(step, like)
    for row in range(batch):
        source, target = hidden + row * size * item, new_hidden + row * size * item
        project_in(like, source, norm, flags, weights, scratch, projected, 2 * channels, size)
        at = row * (taps - 1) * channels * item
        before, after = past + at, new_past + at
        convolve(like, projected, before, conv_weight, conv_bias, after, convolved, channels, taps)
        apply_linear(like, convolved, x_weight, 0, selected, rank + 2 * states, channels)
        apply_linear(like, selected, dt_weight, dt_bias, step, channels, rank)
        for k in range(0, channels, LANES):
            store_some(d, k, softplus(load_some(d, k, channels - k)), channels - k)
        at = row * channels * states * item
        held = state + at, new_state + at
        _scan_step(like, log2_e, convolved, step, A, logarithmic, B, C, skip, gate, *held, scanned, channels, states)
        project_out(like, scanned, source, norm, flags, weights, target, size, channels)


@kernel
def _blocks_step(like, item, weights, counts, final, norm, flags, log2_e, logarithmic, sizes, batch, memories, places):
    """One position of a batch through Mamba blocks without MLP; see `CompiledBlocks`.

    Args:
        log2_e: log2(e) in the type of `like`.
        logarithmic: A is given as the logarithm of its negative.
        sizes: H, D, N, R, K.
        scratch: `H + 5 D + R + 2 N` numbers.
    """
    pasts, states_before, new_pasts, new_states = memories
    size, channels, states, _, taps = sizes
    source, target, scratch, room = places
    own = np.empty(len(counts), np.int64)
    past_bytes, state_bytes = batch * (taps - 1) * channels * item, batch * channels * states * item
    for i in range(len(weights)):
        a, b = i * past_bytes, i * state_bytes
        memory = pasts + a, states_before + b, new_pasts + a, new_states + b
        resolve(like, item, weights[i], counts, own, room)
        _block_step(like, item, own, norm, flags, log2_e, logarithmic, sizes, batch, memory, source, target, scratch)
        source, target = target, target + batch * size * item
    apply_final_norm(like, item, source, norm, flags, final, batch, size, room)


class BlocksStep(CompiledBlocks):
    """See `find_step`."""

    def __init__(self, weights: Sequence[BlockWeights], options: BlockOptions, final_norm: FinalNorm = NO_FINAL_NORM):
        w = weights[0]
        (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
        sizes = w.out_weight.shape[0], channels, states, rank, w.conv_weight.shape[-1]
        scratch_size = sizes[0] + 5 * channels + rank + 2 * states
        numbers = LOG2_E[w.A.dtype], options.logarithmic, sizes
        super().__init__(_blocks_step, weights, options, final_norm, block_shapes(w), w.A.dtype, scratch_size, numbers)
