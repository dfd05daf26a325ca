"""Backward kernel of the selective scan; dimensions and tiles as in `numba_tiles.py`.

With `e_t = exp(d_t A)`, the gradient `g_t = C_t ∂y_t + e_{t+1} g_{t+1}` of the state `x_t`, and `w_t = g_t e_t x_{t-1}`
(for complex states, with all factors but g conjugated):

    ∂A = Σ_t d_t w_t    ∂d_t = Σ_n A w_t + u_t Σ_n B_t g_t    ∂u_t = d_t Σ_n B_t g_t + D ∂y_t
    ∂B_t = Σ_D d_t u_t g_t    ∂C_t = Σ_D ∂y_t x_t

Tiles are visited from the last to the first; the states of a tile are recomputed from those before it.
"""

import math
from typing import NamedTuple

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
    add,
    constant,
    cos_turns,
    exp2,
    fma,
    load,
    load_some,
    mul,
    pointer,
    prefetch,
    shifted,
    sigmoid,
    sin_turns,
    softplus,
    splat,
    store,
    store_some,
    sub,
    total,
)
from hf_ssm.ops.selective_scan.numba_tiles import GROUP, TILE, parameter, prefetch_inputs, raw_step, read_weights

__all__ = ["GradientArguments", "backward", "backward_scratch"]

_LOG_2 = math.log(2)
_ROW = TILE * LANES
# Offsets in the scratch memory: step sizes, input, step times input, slope of the softplus, sigmoid of the gate,
# outputs before the gate, gradients of outputs, steps and steps times input; then GROUP rows of decays and of states.
_STEP, _U, _INPUT, _SLOPE, _SIGMOID, _Y, _GRAD_Y, _GRAD_STEP, _GRAD_INPUT, _DECAY = (i * _ROW for i in range(10))
_BEFORE = _DECAY + GROUP * _ROW
_WEIGHTS = _BEFORE + GROUP * _ROW


class GradientArguments(NamedTuple):
    """Addresses of gradients, contiguous except for `y`; 0 for those that are not needed.

    `state` `(B, K, R, 16)` is initially the gradient of the last state and finally that of the initial state; `A`
    `(B, K, R, 16)`, `D` and `bias` `(B, K, 16)` are initially zero. With `G` tasks per sequence, `B` and `C` are
    `(G, B, L, N)`, of complex numbers if A is, and `delta` of a shared step is `(G, B, L)`.
    """

    y: int
    y_batch: int
    y_row: int
    state: int
    u: int
    delta: int
    z: int
    A: int
    B: int
    C: int
    D: int
    bias: int


def backward_scratch(rows: int) -> int:
    """Size of the scratch memory of a task, initially zero, in numbers."""
    return _WEIGHTS + 2 * TILE * rows + 2 * TILE * rows * LANES + _ROW


@kernel
def _advance(d, x, dy, a, h, b, c, y, work, kept, sums, at):
    """Advance one state; keep its decay and previous value, and add its contribution to the output and to ∂C."""
    decay = exp2(mul(d, a))
    store(work, _DECAY + kept, decay)
    store(work, _BEFORE + kept, h)
    h = fma(decay, h, mul(x, splat(b)))
    store(sums, at, fma(dy, h, load(sums, at)))
    return h, fma(h, splat(c), y)


@kernel
def _propagate_back(d, x, dy, a, g, b, c, grad_a, grad_step, grad_input, work, kept, sums, at):
    """Propagate the gradient of one state back, and add to the gradients of A, the step, the input and B."""
    g = fma(dy, splat(c), g)
    store(sums, at, fma(g, x, load(sums, at)))
    grad_input = fma(g, splat(b), grad_input)
    g = mul(g, load(work, _DECAY + kept))
    w = mul(g, load(work, _BEFORE + kept))
    return g, fma(w, d, grad_a), fma(w, a, grad_step), grad_input


@kernel
def _run_real(A, start, grad_state, grad_A, work, B, C, grad_B, grad_C, rows, steps):
    """Four states of a block along a tile, forward and backward."""
    a0, a1, a2, a3 = load(A, 0), load(A, LANES), load(A, 2 * LANES), load(A, 3 * LANES)
    h0, h1, h2, h3 = load(start, 0), load(start, LANES), load(start, 2 * LANES), load(start, 3 * LANES)
    for t in range(steps):
        row, at, kept, sums = t * rows, t * LANES, t * GROUP * LANES, t * rows * LANES
        d, x, dy, y = load(work, _STEP + at), load(work, _INPUT + at), load(work, _GRAD_Y + at), load(work, _Y + at)
        h0, y = _advance(d, x, dy, a0, h0, B[row], C[row], y, work, kept, grad_C, sums)
        h1, y = _advance(d, x, dy, a1, h1, B[row + 1], C[row + 1], y, work, kept + LANES, grad_C, sums + LANES)
        h2, y = _advance(d, x, dy, a2, h2, B[row + 2], C[row + 2], y, work, kept + 2 * LANES, grad_C, sums + 2 * LANES)
        h3, y = _advance(d, x, dy, a3, h3, B[row + 3], C[row + 3], y, work, kept + 3 * LANES, grad_C, sums + 3 * LANES)
        store(work, _Y + at, y)
    g0, g1 = load(grad_state, 0), load(grad_state, LANES)
    g2, g3 = load(grad_state, 2 * LANES), load(grad_state, 3 * LANES)
    s0, s1, s2, s3 = load(grad_A, 0), load(grad_A, LANES), load(grad_A, 2 * LANES), load(grad_A, 3 * LANES)
    for t in range(steps - 1, -1, -1):
        row, at, kept, sums = t * rows, t * LANES, t * GROUP * LANES, t * rows * LANES
        d, x, dy = load(work, _STEP + at), load(work, _INPUT + at), load(work, _GRAD_Y + at)
        p, q = load(work, _GRAD_STEP + at), load(work, _GRAD_INPUT + at)
        g0, s0, p, q = _propagate_back(d, x, dy, a0, g0, B[row], C[row], s0, p, q, work, kept, grad_B, sums)
        row, kept, sums = row + 1, kept + LANES, sums + LANES
        g1, s1, p, q = _propagate_back(d, x, dy, a1, g1, B[row], C[row], s1, p, q, work, kept, grad_B, sums)
        row, kept, sums = row + 1, kept + LANES, sums + LANES
        g2, s2, p, q = _propagate_back(d, x, dy, a2, g2, B[row], C[row], s2, p, q, work, kept, grad_B, sums)
        row, kept, sums = row + 1, kept + LANES, sums + LANES
        g3, s3, p, q = _propagate_back(d, x, dy, a3, g3, B[row], C[row], s3, p, q, work, kept, grad_B, sums)
        store(work, _GRAD_STEP + at, p)
        store(work, _GRAD_INPUT + at, q)
    store(grad_state, 0, g0)
    store(grad_state, LANES, g1)
    store(grad_state, 2 * LANES, g2)
    store(grad_state, 3 * LANES, g3)
    store(grad_A, 0, s0)
    store(grad_A, LANES, s1)
    store(grad_A, 2 * LANES, s2)
    store(grad_A, 3 * LANES, s3)


@kernel
def _run_complex(A, start, grad_state, grad_A, work, B, C, grad_B, grad_C, rows, steps, like):
    """A complex state of a block along a tile, forward and backward, with factors of 2 for the sum `2 Re`."""
    half, two = rows // 2, constant(2.0, like)
    imaginary = half * LANES
    size, turns, phase = load(A, 0), load(A, imaginary), load(A, 2 * imaginary)
    hr, hi = load(start, 0), load(start, imaginary)
    for t in range(steps):
        row, at, kept, sums = t * rows, t * LANES, t * GROUP * LANES, t * rows * LANES
        d, x, y = load(work, _STEP + at), load(work, _INPUT + at), load(work, _Y + at)
        dy = mul(two, load(work, _GRAD_Y + at))
        e, angle = exp2(mul(d, size)), mul(d, turns)
        er, ei = mul(e, cos_turns(angle)), mul(e, sin_turns(angle))
        store(work, _DECAY + kept, er)
        store(work, _DECAY + kept + LANES, ei)
        store(work, _BEFORE + kept, hr)
        store(work, _BEFORE + kept + LANES, hi)
        before = hr
        hr = sub(fma(er, hr, mul(x, splat(B[row]))), mul(ei, hi))
        hi = fma(ei, before, fma(er, hi, mul(x, splat(B[row + half]))))
        product = sub(mul(hr, splat(C[row])), mul(hi, splat(C[row + half])))
        store(work, _Y + at, fma(two, product, y))
        store(grad_C, sums, fma(dy, hr, load(grad_C, sums)))
        store(grad_C, sums + imaginary, sub(load(grad_C, sums + imaginary), mul(dy, hi)))
    gr, gi = load(grad_state, 0), load(grad_state, imaginary)
    sr, si = load(grad_A, 0), load(grad_A, imaginary)
    for t in range(steps - 1, -1, -1):
        row, at, kept, sums = t * rows, t * LANES, t * GROUP * LANES, t * rows * LANES
        d, x, dy = load(work, _STEP + at), load(work, _INPUT + at), mul(two, load(work, _GRAD_Y + at))
        gr = fma(dy, splat(C[row]), gr)
        gi = sub(gi, mul(dy, splat(C[row + half])))
        store(grad_B, sums, fma(gr, x, load(grad_B, sums)))
        store(grad_B, sums + imaginary, fma(gi, x, load(grad_B, sums + imaginary)))
        q = fma(gr, splat(B[row]), fma(gi, splat(B[row + half]), load(work, _GRAD_INPUT + at)))
        store(work, _GRAD_INPUT + at, q)
        er, ei = load(work, _DECAY + kept), load(work, _DECAY + kept + LANES)
        # g conj(e), and that times conj(h).
        gr, gi = fma(gr, er, mul(gi, ei)), sub(mul(gi, er), mul(gr, ei))
        hr, hi = load(work, _BEFORE + kept), load(work, _BEFORE + kept + LANES)
        wr, wi = fma(gr, hr, mul(gi, hi)), sub(mul(gi, hr), mul(gr, hi))
        store(work, _GRAD_STEP + at, fma(wr, size, fma(wi, phase, load(work, _GRAD_STEP + at))))
        sr, si = fma(wr, d, sr), fma(wi, d, si)
    store(grad_state, 0, gr)
    store(grad_state, imaginary, gi)
    store(grad_A, 0, sr)
    store(grad_A, imaginary, si)


@kernel
def _run_block(A, start, grad_state, grad_A, work, scan, steps, like, paired):
    """All states of a block along a tile."""
    rows = scan.rows
    B, C = shifted(work, _WEIGHTS), shifted(work, _WEIGHTS + TILE * rows)
    grad_B, grad_C = shifted(C, TILE * rows), shifted(C, TILE * rows * (1 + LANES))
    if paired is None:
        for n in range(0, rows, GROUP):
            at = n * LANES
            vectors = shifted(A, at), shifted(start, at), shifted(grad_state, at), shifted(grad_A, at), work
            sums = shifted(B, n), shifted(C, n), shifted(grad_B, at), shifted(grad_C, at)
            _run_real(*vectors, *sums, rows, steps)
    else:
        for n in range(scan.states):
            at = n * LANES
            vectors = shifted(A, at), shifted(start, at), shifted(grad_state, at), shifted(grad_A, at), work
            sums = shifted(B, n), shifted(C, n), shifted(grad_B, at), shifted(grad_C, at)
            _run_complex(*vectors, *sums, rows, steps, like)


@kernel
def _read_inputs(scan, grads, sources, targets, grad_y, first, ahead, steps, block, next_block, like, work):
    """Inputs of `_run_block` along a tile; `ahead` is where the next tile or block begins."""
    u, delta, z = sources
    channel = block * LANES
    lanes = min(LANES, scan.channels - channel)
    bias, D = parameter(scan.bias, like, block), parameter(scan.D, like, block)
    zero, one = constant(0.0, like), constant(1.0, like)
    for t in range(steps):
        place, at = first + t, t * LANES
        prefetch_inputs(scan, sources, ahead + t, next_block * LANES)
        prefetch(grad_y, (ahead + t) * grads.y_row + next_block * LANES)
        for target in targets:
            prefetch(target, place * scan.channels + channel)
        x = load_some(u, place * scan.u_row + channel, lanes)
        d, slope = raw_step(scan.shared_step, delta, place * scan.delta_row, channel, lanes, bias), one
        if scan.softplus:
            slope = sigmoid(d)
            d = softplus(d)
        dy = load_some(grad_y, place * grads.y_row + channel, lanes)
        if scan.z != 0:
            gate = load_some(z, place * scan.z_row + channel, lanes)
            s = sigmoid(gate)
            store(work, _SIGMOID + at, s)
            dy = mul(dy, mul(gate, s))
        store(work, _STEP + at, d)
        store(work, _SLOPE + at, slope)
        store(work, _U + at, x)
        store(work, _INPUT + at, mul(d, x))
        store(work, _Y + at, mul(D, x) if scan.D != 0 else zero)
        store(work, _GRAD_Y + at, dy)
        store(work, _GRAD_STEP + at, zero)
        store(work, _GRAD_INPUT + at, zero)


@kernel
def _write_gate(z, grad_y, grad_z, scan, grads, first, steps, block, work):
    """Write the gradient of the gate of a block along a tile."""
    channel = block * LANES
    lanes = min(LANES, scan.channels - channel)
    for t in range(steps):
        place, at = first + t, t * LANES
        gate = load_some(z, place * scan.z_row + channel, lanes)
        dy = load_some(grad_y, place * grads.y_row + channel, lanes)
        s = load(work, _SIGMOID + at)
        silu = mul(gate, s)
        # s (1 + z (1 - s))
        slope = sub(add(s, silu), mul(silu, s))
        value = mul(mul(dy, load(work, _Y + at)), slope)
        store_some(grad_z, place * scan.channels + channel, value, lanes)


@kernel
def _write_inputs(grad_u, grad_delta, grad_D, grad_bias, scan, grads, first, steps, block, like, work, shared):
    """Write the gradients of u and delta of a block along a tile, and add to those of D and the bias."""
    channel = block * LANES
    lanes = min(LANES, scan.channels - channel)
    D, log_2 = parameter(scan.D, like, block), constant(_LOG_2, like)
    sum_D, sum_bias = load(grad_D, channel), load(grad_bias, channel)
    for t in range(steps):
        at, row = t * LANES, (first + t) * scan.channels + channel
        q, x, dy = load(work, _GRAD_INPUT + at), load(work, _U + at), load(work, _GRAD_Y + at)
        raw = mul(fma(load(work, _GRAD_STEP + at), log_2, mul(q, x)), load(work, _SLOPE + at))
        sum_D, sum_bias = fma(dy, x, sum_D), add(raw, sum_bias)
        if grads.delta != 0:
            if scan.shared_step:
                store(shared, at, add(load(shared, at), raw))
            else:
                store_some(grad_delta, row, raw, lanes)
        if grads.u != 0:
            value = mul(q, load(work, _STEP + at))
            if scan.D != 0:
                value = fma(dy, D, value)
            store_some(grad_u, row, value, lanes)
    store(grad_D, channel, sum_D)
    store(grad_bias, channel, sum_bias)


@kernel
def _write_sums(sums, target, first, steps, states, rows, paired):
    """Write the gradients of B or C along a tile, summed over the channels of a task."""
    for t in range(steps):
        for n in range(states):
            at = (t * rows + n) * LANES
            if paired is None:
                target[(first + t) * states + n] = total(load(sums, at))
            else:
                place = 2 * ((first + t) * states + n)
                target[place] = total(load(sums, at))
                target[place + 1] = total(load(sums, at + rows // 2 * LANES))


@kernel
def _clear(target, size, like):
    for i in range(0, size, LANES):
        store(target, i, constant(0.0, like))


@kernel
def backward(scan, grads, like, paired, b, group, address):
    """Compute the gradients of some blocks of channels of one sequence.

    Args:
        scan: `ScanArguments`.
        grads: `GradientArguments`.
        like: A number of the type of the arithmetic.
        paired: `None` for real and True for complex states; compiled for each.
        b: Index of the sequence.
        group: Index of the task of the sequence.
        address: Address of the scratch memory, zeros.
    """
    rows = scan.rows
    first_block, end_block = group * scan.width, min(scan.blocks, (group + 1) * scan.width)
    parts = 1 if paired is None else 2
    work, A = pointer(address, like), pointer(scan.A, like)
    A_rows = rows if paired is None else 3 * (rows // 2)
    sources = (
        shifted(pointer(scan.u, like), b * scan.u_batch),
        shifted(pointer(scan.delta, like), b * scan.delta_batch),
        shifted(pointer(scan.z, like), b * scan.z_batch),
    )
    B = shifted(pointer(scan.B, like), b * scan.B_batch)
    C = shifted(pointer(scan.C, like), b * scan.C_batch)
    B_tile, C_tile = shifted(work, _WEIGHTS), shifted(work, _WEIGHTS + TILE * rows)
    B_sums, C_sums = shifted(C_tile, TILE * rows), shifted(C_tile, TILE * rows * (1 + LANES))
    shared = shifted(C_sums, TILE * rows * LANES)
    block_size, sequence = rows * LANES, scan.length * scan.channels
    starts = shifted(pointer(scan.starts, like), b * scan.tiles * scan.blocks * block_size)
    grad_y = shifted(pointer(grads.y, like), b * grads.y_batch)
    grad_u = shifted(pointer(grads.u, like), b * sequence)
    grad_z = shifted(pointer(grads.z, like), b * sequence)
    steps_before = (group * scan.batch + b) * scan.length if scan.shared_step else b * sequence
    grad_delta = shifted(pointer(grads.delta, like), steps_before)
    targets = grad_u, grad_delta, grad_z
    weights = (group * scan.batch + b) * scan.length * scan.states * parts
    grad_B, grad_C = shifted(pointer(grads.B, like), weights), shifted(pointer(grads.C, like), weights)
    grad_D = shifted(pointer(grads.D, like), b * scan.blocks * LANES)
    grad_bias = shifted(pointer(grads.bias, like), b * scan.blocks * LANES)
    grad_state = shifted(pointer(grads.state, like), b * scan.blocks * block_size)
    grad_A = shifted(pointer(grads.A, like), b * scan.blocks * block_size)
    for tile in range((scan.length - 1) // TILE, -1, -1):
        first = tile * TILE
        steps = min(TILE, scan.length - first)
        following = max(first - TILE, 0)
        read_weights(B, scan.B_row, first, steps, scan.states, B_tile, rows, paired)
        read_weights(C, scan.C_row, first, steps, scan.states, C_tile, rows, paired)
        _clear(B_sums, 2 * TILE * block_size + _ROW, like)
        for block in range(first_block, end_block):
            is_last = block + 1 == end_block
            ahead, next_block = (following, first_block) if is_last else (first, block + 1)
            _read_inputs(scan, grads, sources, targets, grad_y, first, ahead, steps, block, next_block, like, work)
            A_block = shifted(A, block * A_rows * LANES)
            start = shifted(starts, (tile * scan.blocks + block) * block_size)
            at = block * block_size
            _run_block(A_block, start, shifted(grad_state, at), shifted(grad_A, at), work, scan, steps, like, paired)
            if grads.z != 0:
                _write_gate(sources[2], grad_y, grad_z, scan, grads, first, steps, block, work)
            _write_inputs(grad_u, grad_delta, grad_D, grad_bias, scan, grads, first, steps, block, like, work, shared)
        _write_sums(B_sums, grad_B, first, steps, scan.states, rows, paired)
        _write_sums(C_sums, grad_C, first, steps, scan.states, rows, paired)
        if scan.shared_step and grads.delta != 0:
            for t in range(steps):
                grad_delta[first + t] = total(load(shared, t * LANES))
