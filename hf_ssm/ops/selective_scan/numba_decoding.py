"""Compiled kernels of one position: the step of the selective scan, and that of all blocks of a Mamba model.

Dimensions: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.
In kernels tensors are contiguous and given by the address of their first element (0: none); `like` is 0 in the type of
all numbers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.context import is_plain_call
from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.decoding import (
    LOG2_E,
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
    exp2,
    fma,
    load_some,
    mul,
    pointer,
    sigmoid,
    softplus,
    splat,
    store_some,
    sub,
    total,
)
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, check_block_weights

__all__ = ["BlocksStep", "scan_step_numba", "supports_scan_step"]


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
        z = pointer(gate, like)
        for k in range(0, channels, LANES):
            v = load_some(z, k, channels - k)
            store_some(out, k, mul(load_some(out, k, channels - k), mul(v, sigmoid(v))), channels - k)


@kernel
def _block_step(like, log2_e, item, batch, hidden, new_hidden, memory, scratch, weights, norm, flags, sizes):
    """`_blocks_step` of one block; `memory` and `weights` are its addresses."""
    past, state, new_past, new_state = memory
    norm_weight, norm_bias, in_weight, in_bias = weights[0], weights[1], weights[2], weights[3]
    conv_weight, conv_bias, x_weight = weights[4], weights[5], weights[6]
    dt_weight, dt_bias, A, skip = weights[7], weights[8], weights[9], weights[10]
    out_weight, out_bias = weights[11], weights[12]
    kind, epsilon = norm
    norm_first, residual, logarithmic = flags
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
        read = source
        if norm_first and kind != NO_NORM:
            apply_norm(like, source, kind, epsilon, norm_weight, norm_bias, scratch, size)
            read = scratch
        apply_linear(like, read, in_weight, in_bias, projected, 2 * channels, size)
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
        apply_linear(like, scanned, out_weight, out_bias, target, size, channels)
        if residual:
            add_rows(like, source, target, target, size)
        if not norm_first and kind != NO_NORM:
            apply_norm(like, target, kind, epsilon, norm_weight, norm_bias, target, size)


@kernel
def _blocks_step(
    like,
    log2_e,
    item,
    weights,
    final_weight,
    final_bias,
    kind,
    epsilon,
    norm_first,
    residual,
    logarithmic,
    size,
    channels,
    states,
    rank,
    taps,
    batch,
    pasts,
    memories,
    new_pasts,
    new_memories,
    hidden,
    new_hidden,
    scratch,
):
    """One position of a batch through Mamba blocks without MLP.

    Args:
        log2_e: log2(e) in the type of `like`.
        item: Size of a number in bytes.
        weights: Array of addresses, one row per block: the tensors of `BlockWeights`; 0 for `None`.
        final_weight, final_bias: Of the norm after the last block, with `norm_first`.
        kind, epsilon: Kind of all norms, and the number they add to the variance.
        norm_first: Norms before the mixers instead of after the sums.
        residual: Whether the input of a block is added to its output.
        logarithmic: A is given as the logarithm of its negative.
        size, channels, states, rank, taps: H, D, N, R, K.
        batch: B.
        pasts, new_pasts: States of the convolutions before (read) and after (written),
            `(number of blocks, B, K - 1, D)`.
        memories, new_memories: States of the scans, `(number of blocks, B, D, N)`.
        hidden: `(B, H)`.
        new_hidden: Written: the output of each block, `(number of blocks, B, H)`, the last after the final norm.
        scratch: `H + 5 D + R + 2 N` numbers.
    """
    norm, flags, sizes = (kind, epsilon), (norm_first, residual, logarithmic), (size, channels, states, rank, taps)
    source, target = hidden, new_hidden
    past_bytes, memory_bytes = batch * (taps - 1) * channels * item, batch * channels * states * item
    for i in range(len(weights)):
        a, b = i * past_bytes, i * memory_bytes
        memory = pasts + a, memories + b, new_pasts + a, new_memories + b
        _block_step(like, log2_e, item, batch, source, target, memory, scratch, weights[i], norm, flags, sizes)
        source, target = target, target + batch * size * item
    if norm_first and kind != NO_NORM:
        for row in range(batch):
            at = source + row * size * item
            apply_norm(like, at, kind, epsilon, final_weight, final_bias, at, size)


class BlocksStep(CompiledBlocks):
    """See `find_blocks_step`."""

    run = staticmethod(_blocks_step)

    def __init__(
        self,
        weights: Sequence[BlockWeights],
        options: BlockOptions,
        final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
    ):
        addresses = self.keep(*weights, final_norm)
        w = weights[0]
        self.dtype = w.A.dtype
        (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
        size, taps = len(w.out_weight), w.conv_weight.shape[-1]
        check_block_weights(weights)
        self.count, self.shapes = len(weights), (size, (taps - 1, channels), (channels, states))
        self.scratch_size = size + 5 * channels + rank + 2 * states
        self.arguments = (
            *(ZERO[self.dtype], LOG2_E[self.dtype], w.A.element_size()),
            *(np.array(addresses[:-2]).reshape(len(weights), -1), *addresses[-2:]),
            *(NORMS.index(options.norm), *options[1:]),
            *(size, channels, states, rank, taps),
        )


def supports_scan_step(
    u: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, D: Tensor | None, z: Tensor | None
) -> bool:
    return not any(t.is_complex() for t in (A, B, C, state)) and is_plain_call(u, d, A, B, C, state, D, z)


def scan_step_numba(
    u: Tensor, d: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, D: Tensor | None, z: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The step of real states with step sizes `d` `(B, D)` or `(B, 1)` as they enter the recurrence, in one dtype."""
    u, d, A, B, C, state = (t.contiguous() for t in (u, d.expand_as(u), A, B, C, state))
    D, z = (None if t is None else t.contiguous() for t in (D, z))
    y, new = torch.empty_like(u), torch.empty_like(state)
    for row in range(len(u)):
        per_row = [address(t) + row * t.stride(0) * t.element_size() for t in (u, d, B, C, state, new, y)]
        x, step, b, c, before, after, out = per_row
        gate = 0 if z is None else z[row].data_ptr()
        _scan_step(
            *(ZERO[u.dtype], LOG2_E[u.dtype], x, step, A.data_ptr(), False, b, c, address(D), gate),
            *(before, after, out, *A.shape),
        )
    return y, new
