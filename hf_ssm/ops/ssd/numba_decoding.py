"""Compiled kernel of one position of all blocks of a Mamba-2 model.

Dimensions: `B` batch, `E` hidden size, `H` heads, `P` channels of a head, `D` = H P channels, `G` groups of heads, `N`
states per channel, `C` = D + 2 G N channels of the short convolution, `K` taps. In kernels tensors are contiguous and
given by the address of their first element (0: none); `like` is 0 in the type of all numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
    add,
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
from hf_ssm.ops.selective_scan.numba_decoding import add_vectors, apply_linear, apply_norm, convolve_step
from hf_ssm.ops.ssd.decoding import SSDBlockOptions, SSDBlockWeights

__all__ = ["SSDBlocksStep"]

_NORMS = ("none", "layer", "rms")
_NO_NORM = 0
_NUMBERS: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


@kernel
def _decays(like, log2_e, dt, dt_bias, A_log, low, high, steps, decays, heads):
    """Step sizes and exp(d A) of the heads.

    Args:
        dt, dt_bias, A_log: `(H,)`, read.
        steps, decays: Written, `(H,)`.
    """
    raw, bias, rate = pointer(dt, like), pointer(dt_bias, like), pointer(A_log, like)
    step, decay = pointer(steps, like), pointer(decays, like)
    to_base_2 = splat(log2_e)
    for h in range(0, heads, LANES):
        lanes = heads - h
        store_some(step, h, softplus(add(load_some(raw, h, lanes), load_some(bias, h, lanes))), lanes)
    for h in range(heads):
        step[h] = min(max(step[h], low), high)
    for h in range(0, heads, LANES):
        lanes = heads - h
        size = mul(exp2(mul(load_some(rate, h, lanes), to_base_2)), to_base_2)
        store_some(decay, h, exp2(mul(load_some(step, h, lanes), sub(splat(like), size))), lanes)


@kernel
def _ssd_state_step(like, steps, decays, x, B, C, skip, per_channel, state, new_state, y, heads, size, groups, states):
    """One position of the scan of one sequence, vectorised over states.

    Args:
        steps, decays: `(H,)`.
        x: `(D,)`.
        B, C: `(G, N)`.
        skip: `(D,)` if `per_channel`, else `(H,)`.
        state, new_state: `(H, P, N)`, read and written.
        y: Written, `(D,)`.
        size: P.
    """
    step, decay, u, b, c = (
        pointer(steps, like),
        pointer(decays, like),
        pointer(x, like),
        pointer(B, like),
        pointer(C, like),
    )
    before, after, out, D = pointer(state, like), pointer(new_state, like), pointer(y, like), pointer(skip, like)
    for h in range(heads):
        first = h // (heads // groups) * states
        kept = splat(decay[h])
        for k in range(h * size, (h + 1) * size):
            amount = splat(step[h] * u[k])
            summed = splat(like)
            for n in range(0, states, LANES):
                lanes, at = states - n, k * states + n
                value = mul(kept, load_some(before, at, lanes))
                value = fma(amount, load_some(b, first + n, lanes), value)
                store_some(after, at, value, lanes)
                summed = fma(value, load_some(c, first + n, lanes), summed)
            out[k] = total(summed) + (D[k] if per_channel else D[h]) * u[k]


@kernel
def _gated_norm(like, y, gate, weight, epsilon, channels, groups):
    """RMS norm of y times SiLU(gate), for each group of channels, in place."""
    out, z, w = pointer(y, like), pointer(gate, like), pointer(weight, like)
    size = channels // groups
    for first in range(0, channels, size):
        squares = splat(like)
        for k in range(0, size, LANES):
            lanes, at = size - k, first + k
            v = load_some(z, at, lanes)
            value = mul(load_some(out, at, lanes), mul(v, sigmoid(v)))
            store_some(out, at, value, lanes)
            squares = fma(value, value, squares)
        scale = 1 / math.sqrt(total(squares) / size + epsilon)
        for k in range(first, first + size):
            out[k] = out[k] * scale * w[k]


@kernel
def _ssd_blocks_step(
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
    groups,
    low,
    high,
    width,
    heads,
    size,
    states,
    taps,
    per_channel,
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
        log2_e: log2(e) in the type of `like`.
        item: Size of a number in bytes.
        weights: Array of addresses, one row per block: the tensors of `SSDBlockWeights`; 0 for `None`.
        final_weight, final_bias: Of the norm after the last block, with `norm_first`.
        kind, epsilon, norm_first, residual, groups, low, high: `SSDBlockOptions`.
        width, heads, size, states, taps: E, H, P, N, K.
        per_channel: Whether the feed-through has a number for each channel.
        batch: B.
        pasts, new_pasts: States of the convolutions before (read) and after (written),
            `(number of blocks, B, K - 1, C)`.
        memories, new_memories: States of the scans, `(number of blocks, B, H, P, N)`.
        hidden: `(B, E)`.
        new_hidden: Written: the output of each block, `(number of blocks, B, E)`, the last after the final norm.
        scratch: `E + 2 D + 2 C + 3 H` numbers.
    """
    channels = heads * size
    mixed = channels + 2 * groups * states
    gate = scratch + width * item
    inputs = gate + channels * item
    dt = inputs + mixed * item
    convolved = dt + heads * item
    scanned = convolved + mixed * item
    steps = scanned + channels * item
    decays = steps + heads * item
    B = convolved + channels * item
    C = B + groups * states * item
    source, target = hidden, new_hidden
    for i in range(len(weights)):
        norm_weight, norm_bias, in_weight, in_bias = weights[i, 0], weights[i, 1], weights[i, 2], weights[i, 3]
        conv_weight, conv_bias, dt_bias, A_log = weights[i, 4], weights[i, 5], weights[i, 6], weights[i, 7]
        skip, gated_weight, out_weight, out_bias = weights[i, 8], weights[i, 9], weights[i, 10], weights[i, 11]
        for row in range(batch):
            of_row = i * batch + row
            past_at, state_at = of_row * (taps - 1) * mixed * item, of_row * channels * states * item
            held, kept = memories + state_at, new_memories + state_at
            origin, result = source + row * width * item, target + row * width * item
            read = origin
            if norm_first and kind != _NO_NORM:
                apply_norm(like, origin, kind, epsilon, norm_weight, norm_bias, scratch, width)
                read = scratch
            apply_linear(like, read, in_weight, in_bias, gate, channels + mixed + heads, width)
            before, after = pasts + past_at, new_pasts + past_at
            convolve_step(like, inputs, before, conv_weight, conv_bias, after, convolved, mixed, taps)
            _decays(like, log2_e, dt, dt_bias, A_log, low, high, steps, decays, heads)
            _ssd_state_step(
                like,
                steps,
                decays,
                convolved,
                B,
                C,
                skip,
                per_channel,
                held,
                kept,
                scanned,
                heads,
                size,
                groups,
                states,
            )
            _gated_norm(like, scanned, gate, gated_weight, epsilon, channels, groups)
            apply_linear(like, scanned, out_weight, out_bias, result, width, channels)
            if residual:
                add_vectors(like, origin, result, result, width)
            if not norm_first and kind != _NO_NORM:
                apply_norm(like, result, kind, epsilon, norm_weight, norm_bias, result, width)
        source, target = target, target + batch * width * item
    if norm_first and kind != _NO_NORM:
        for row in range(batch):
            at = source + row * width * item
            apply_norm(like, at, kind, epsilon, final_weight, final_bias, at, width)


class SSDBlocksStep:
    """See `find_ssd_blocks_step`."""

    def __init__(
        self,
        weights: Sequence[SSDBlockWeights],
        options: SSDBlockOptions,
        final_norm: tuple[Tensor | None, Tensor | None] = (None, None),
    ):
        self.tensors = [None if t is None else t.detach() for block in (*weights, final_norm) for t in block]
        addresses = [0 if t is None else t.data_ptr() for t in self.tensors]
        w, number = weights[0], _NUMBERS[weights[0].A_log.dtype]
        (heads,), (width, channels), taps = w.A_log.shape, w.out_weight.shape, w.conv_weight.shape[-1]
        mixed = len(w.conv_weight)
        states = (mixed - channels) // (2 * options.groups)
        for block in weights:
            _check_shapes(block, width, channels, mixed, heads, taps)
        self.count, self.width = len(weights), width
        self.shapes = (taps - 1, mixed), (heads, channels // heads, states)
        self.scratch_size = width + 2 * channels + 2 * mixed + 3 * heads
        norm, epsilon, norm_first, residual, groups, low, high = options
        self.arguments = (
            *(number(0), number(math.log2(math.e)), w.A_log.element_size()),
            *(np.array(addresses[:-2]).reshape(len(weights), -1), *addresses[-2:]),
            *(_NORMS.index(norm), epsilon, norm_first, residual, groups, number(low), number(high)),
            *(width, heads, channels // heads, states, taps, len(w.skip) != heads),
        )

    def __call__(self, hidden: Tensor, pasts: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch = len(hidden)
        if hidden.shape[-1] != self.width or hidden.numel() != batch * self.width:
            raise ValueError(f"hidden must have {self.width} numbers for each row, got {tuple(hidden.shape)}")
        for name, memory, shape in zip(("pasts", "states"), (pasts, states), self.shapes, strict=True):
            if memory.shape != (self.count, batch, *shape):
                expected = (self.count, batch, *shape)
                raise ValueError(f"{name} must have shape {expected}, got {tuple(memory.shape)}")
        hidden, pasts, states = hidden.contiguous(), pasts.contiguous(), states.contiguous()
        new_pasts, new_states = torch.empty_like(pasts), torch.empty_like(states)
        outputs = hidden.new_empty(self.count, *hidden.shape)
        scratch = hidden.new_empty(self.scratch_size)
        memories = pasts.data_ptr(), states.data_ptr(), new_pasts.data_ptr(), new_states.data_ptr()
        _ssd_blocks_step(*self.arguments, batch, *memories, hidden.data_ptr(), outputs.data_ptr(), scratch.data_ptr())
        return outputs, new_pasts, new_states


def _check_shapes(w: SSDBlockWeights, width: int, channels: int, mixed: int, heads: int, taps: int) -> None:
    rows = channels + mixed + heads
    skip = (len(w.skip),) if len(w.skip) in (heads, channels) else (heads,)
    expected = (
        *((width,), (width,), (rows, width), (rows,), (mixed, 1, taps), (mixed,), (heads,), (heads,)),
        *(skip, (channels,), (width, channels), (width,)),
    )
    for name, tensor, shape in zip(w._fields, w, expected, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
