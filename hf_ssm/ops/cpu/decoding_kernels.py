"""Compiled kernels of one position: the step of the selective scan, and that of the blocks of a Mamba model.

Legend: `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps. Tensors are
contiguous and given by the address of their first element (0: there is none); `like` is 0 in the type of all numbers.
"""

import math

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
    add,
    exp2,
    fma,
    load,
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

__all__ = ["LAYER_NORM", "NO_NORM", "RMS_NORM", "blocks_step", "scan_step"]

NO_NORM, LAYER_NORM, RMS_NORM = 0, 1, 2


@kernel
def _apply_linear(like, x, weight, bias, y, rows, columns):
    """`y = W x + b` with W `(rows, columns)`, read from its first number to its last; four sums do not wait on another.

    That takes half the time of torch's product of matrix and vector, and as long as reading the weights does.
    """
    v, w, out = pointer(x, like), pointer(weight, like), pointer(y, like)
    in_fours = columns // (4 * LANES) * (4 * LANES)
    for row in range(rows):
        at = row * columns
        s0, s1, s2, s3 = splat(like), splat(like), splat(like), splat(like)
        for c in range(0, in_fours, 4 * LANES):
            s0 = fma(load(w, at + c), load(v, c), s0)
            s1 = fma(load(w, at + c + LANES), load(v, c + LANES), s1)
            s2 = fma(load(w, at + c + 2 * LANES), load(v, c + 2 * LANES), s2)
            s3 = fma(load(w, at + c + 3 * LANES), load(v, c + 3 * LANES), s3)
        for c in range(in_fours, columns, LANES):
            s0 = fma(load_some(w, at + c, columns - c), load_some(v, c, columns - c), s0)
        out[row] = total(add(add(s0, s1), add(s2, s3)))
    if bias != 0:
        _add(like, y, bias, y, rows)


@kernel
def _add(like, a, b, y, count):
    """`y = a + b`."""
    left, right, out = pointer(a, like), pointer(b, like), pointer(y, like)
    for i in range(0, count, LANES):
        store_some(out, i, add(load_some(left, i, count - i), load_some(right, i, count - i)), count - i)


@kernel
def _apply_norm(like, x, kind, epsilon, weight, bias, y, count):
    """Layer norm, RMS norm or none, `y` may be `x`."""
    v, out = pointer(x, like), pointer(y, like)
    mean = like
    if kind == LAYER_NORM:
        summed = splat(like)
        for i in range(0, count, LANES):
            summed = add(summed, load_some(v, i, count - i))
        mean = total(summed) / count
    square = like
    if kind != NO_NORM:
        for i in range(count):
            square += (v[i] - mean) * (v[i] - mean)
    scale = 1 / math.sqrt(square / count + epsilon) if kind != NO_NORM else 1.0
    for i in range(count):
        value = (v[i] - mean) * scale
        if weight != 0:
            value *= pointer(weight, like)[i]
        if bias != 0:
            value += pointer(bias, like)[i]
        out[i] = value


@kernel
def _convolve(like, u, past, weight, bias, new_past, y, channels, taps):
    """The short convolution with SiLU.

    Args:
        u, y: `(D,)`, read and written.
        past, new_past: Memory before and after, `(K - 1, D)`, read and written.
        weight, bias: `(D, K)`; `(D,)` or 0.
    """
    x, before, w = pointer(u, like), pointer(past, like), pointer(weight, like)
    after, out = pointer(new_past, like), pointer(y, like)
    for d in range(channels):
        value = w[d * taps + taps - 1] * x[d]
        if bias != 0:
            value += pointer(bias, like)[d]
        for i in range(taps - 1):
            value += w[d * taps + i] * before[i * channels + d]
        out[d] = value
    for i in range((taps - 2) * channels):
        after[i] = before[i + channels]
    if taps > 1:
        for d in range(channels):
            after[(taps - 2) * channels + d] = x[d]
    for d in range(0, channels, LANES):
        s = load_some(out, d, channels - d)
        store_some(out, d, mul(s, sigmoid(s)), channels - d)


@kernel
def scan_step(like, log2_e, u, d, A, logarithmic, B, C, skip, gate, state, new_state, y, channels, states):
    """One position of the scan of one sequence, states side by side.

    Args:
        log2_e: log2(e), of the type of `like`.
        u: `(D,)`.
        d: Step sizes, `(D,)`.
        A: `(D, N)`, or where `logarithmic` its negative logarithm: A = -exp of it.
        B, C: `(N,)`.
        skip: `(D,)` or 0.
        gate: `(D,)` or 0; SiLU of it multiplies the output.
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
    """`blocks_step` of one block, `memory` and `weights` being its addresses."""
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
            _apply_norm(like, source, kind, epsilon, norm_weight, norm_bias, scratch, size)
            read = scratch
        _apply_linear(like, read, in_weight, in_bias, projected, 2 * channels, size)
        at = row * (taps - 1) * channels * item
        before, after = past + at, new_past + at
        _convolve(like, projected, before, conv_weight, conv_bias, after, convolved, channels, taps)
        _apply_linear(like, convolved, x_weight, 0, selected, rank + 2 * states, channels)
        _apply_linear(like, selected, dt_weight, dt_bias, step, channels, rank)
        for k in range(0, channels, LANES):
            store_some(d, k, softplus(load_some(d, k, channels - k)), channels - k)
        at = row * channels * states * item
        held = state + at, new_state + at
        scan_step(like, log2_e, convolved, step, A, logarithmic, B, C, skip, gate, *held, scanned, channels, states)
        _apply_linear(like, scanned, out_weight, out_bias, target, size, channels)
        if residual:
            _add(like, source, target, target, size)
        if not norm_first and kind != NO_NORM:
            _apply_norm(like, target, kind, epsilon, norm_weight, norm_bias, target, size)


@kernel
def blocks_step(
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
        log2_e: log2(e), of the type of `like`.
        item: Bytes of a number.
        weights: Array of addresses, a row for each block: the tensors of `BlockWeights`; some may be 0.
        final_weight, final_bias: Of the norm behind the last block, where the norms stand first.
        kind, epsilon: Of all norms, and what they add to the variance.
        norm_first: Whether norms stand before the mixers, or after the sums.
        residual: Whether there are sums.
        logarithmic: Whether A is given as the logarithm of its negative.
        size, channels, states, rank, taps: H, D, N, R, K.
        batch: B.
        pasts, new_pasts: Memory of the convolutions before and after, `(number of blocks, B, K - 1, D)`, read and
            written.
        memories, new_memories: That of the scans, `(number of blocks, B, D, N)`.
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
            _apply_norm(like, at, kind, epsilon, final_weight, final_bias, at, size)
