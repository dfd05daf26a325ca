"""Forward kernel of the selective scan; dimensions and tiles as in `numba_tiles.py`."""

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import (
    LANES,
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
)
from hf_ssm.ops.selective_scan.numba_tiles import (
    GROUP,
    TILE,
    copy,
    parameter,
    prefetch_inputs,
    raw_step,
    read_weights,
)

__all__ = ["forward_rows", "forward_scratch"]

_ROW = TILE * LANES
# Offsets in the scratch memory: step sizes, step sizes times input, outputs; then the weights.
_STEP, _INPUT, _Y, _WEIGHTS = (i * _ROW for i in range(4))


def forward_scratch(rows: int) -> int:
    """Size of the scratch memory of a task, initially zero, in numbers."""
    return _WEIGHTS + 2 * TILE * rows


@kernel
def _run_real(A, state, work, B, C, rows, steps):
    """Advance four states of a block along a tile and add their contribution to the outputs."""
    a0, a1, a2, a3 = load(A, 0), load(A, LANES), load(A, 2 * LANES), load(A, 3 * LANES)
    h0, h1, h2, h3 = load(state, 0), load(state, LANES), load(state, 2 * LANES), load(state, 3 * LANES)
    for t in range(steps):
        row, at = t * rows, t * LANES
        d, x, y = load(work, _STEP + at), load(work, _INPUT + at), load(work, _Y + at)
        h0 = fma(exp2(mul(d, a0)), h0, mul(x, splat(B[row])))
        y = fma(h0, splat(C[row]), y)
        h1 = fma(exp2(mul(d, a1)), h1, mul(x, splat(B[row + 1])))
        y = fma(h1, splat(C[row + 1]), y)
        h2 = fma(exp2(mul(d, a2)), h2, mul(x, splat(B[row + 2])))
        y = fma(h2, splat(C[row + 2]), y)
        h3 = fma(exp2(mul(d, a3)), h3, mul(x, splat(B[row + 3])))
        y = fma(h3, splat(C[row + 3]), y)
        store(work, _Y + at, y)
    store(state, 0, h0)
    store(state, LANES, h1)
    store(state, 2 * LANES, h2)
    store(state, 3 * LANES, h3)


@kernel
def _run_complex(A, state, work, B, C, rows, steps, like):
    """Advance a complex state of a block along a tile and add its contribution to the outputs."""
    imaginary, half = rows // 2 * LANES, rows // 2
    size, turns = load(A, 0), load(A, imaginary)
    hr, hi = load(state, 0), load(state, imaginary)
    two = constant(2.0, like)
    for t in range(steps):
        row, at = t * rows, t * LANES
        d, x, y = load(work, _STEP + at), load(work, _INPUT + at), load(work, _Y + at)
        e, phase = exp2(mul(d, size)), mul(d, turns)
        er, ei = mul(e, cos_turns(phase)), mul(e, sin_turns(phase))
        before = hr
        hr = sub(fma(er, hr, mul(x, splat(B[row]))), mul(ei, hi))
        hi = fma(ei, before, fma(er, hi, mul(x, splat(B[row + half]))))
        product = sub(mul(hr, splat(C[row])), mul(hi, splat(C[row + half])))
        store(work, _Y + at, fma(two, product, y))
    store(state, 0, hr)
    store(state, imaginary, hi)


@kernel
def _read_inputs(scan, sources, y, first, ahead, steps, block, next_block, like, work):
    """Step sizes, step sizes times input, and skip of a block along a tile; `ahead` is where the next one begins."""
    u, delta, _ = sources
    channel = block * LANES
    lanes = min(LANES, scan.channels - channel)
    bias, D = parameter(scan.bias, like, block), parameter(scan.D, like, block)
    for t in range(steps):
        place, at = first + t, t * LANES
        prefetch_inputs(scan, sources, ahead + t, next_block * LANES)
        prefetch(y, place * scan.y_row + channel)
        x = load_some(u, place * scan.u_row + channel, lanes)
        d = raw_step(scan.shared_step, delta, place * scan.delta_row, channel, lanes, bias)
        if scan.softplus:
            d = softplus(d)
        store(work, _STEP + at, d)
        store(work, _INPUT + at, mul(d, x))
        store(work, _Y + at, mul(D, x) if scan.D != 0 else constant(0.0, like))


@kernel
def _write_outputs(scan, z, y, first, steps, block, work):
    """Write the gated outputs of a block along a tile."""
    channel = block * LANES
    lanes = min(LANES, scan.channels - channel)
    for t in range(steps):
        place, value = first + t, load(work, _Y + t * LANES)
        if scan.z != 0:
            gate = load_some(z, place * scan.z_row + channel, lanes)
            value = mul(value, mul(gate, sigmoid(gate)))
        store_some(y, place * scan.y_row + channel, value, lanes)


@kernel
def _run_block(A, state, work, rows, states, steps, like, paired):
    """Advance all states of a block along a tile."""
    B, C = shifted(work, _WEIGHTS), shifted(work, _WEIGHTS + TILE * rows)
    if paired is None:
        for n in range(0, rows, GROUP):
            at = n * LANES
            _run_real(shifted(A, at), shifted(state, at), work, shifted(B, n), shifted(C, n), rows, steps)
    else:
        for n in range(states):
            at = n * LANES
            _run_complex(shifted(A, at), shifted(state, at), work, shifted(B, n), shifted(C, n), rows, steps, like)


@kernel
def _forward(scan, like, paired, b, group, address):
    """Scan some blocks of channels of one sequence.

    Args:
        scan: `ScanArguments`.
        like: A number of the type of the arithmetic.
        paired: `None` for real and True for complex states; compiled for each.
        b: Index of the sequence.
        group: Index of the task of the sequence.
        address: Address of the scratch memory, zeros.
    """
    rows = scan.rows
    first_block, end_block = group * scan.width, min(scan.blocks, (group + 1) * scan.width)
    work, A = pointer(address, like), pointer(scan.A, like)
    A_rows = rows if paired is None else 3 * (rows // 2)
    sources = (
        shifted(pointer(scan.u, like), b * scan.u_batch),
        shifted(pointer(scan.delta, like), b * scan.delta_batch),
        shifted(pointer(scan.z, like), b * scan.z_batch),
    )
    B = shifted(pointer(scan.B, like), b * scan.B_batch)
    C = shifted(pointer(scan.C, like), b * scan.C_batch)
    y = shifted(pointer(scan.y, like), b * scan.y_batch)
    block_size = rows * LANES
    states = shifted(pointer(scan.state, like), b * scan.blocks * block_size)
    starts = shifted(pointer(scan.starts, like), b * scan.tiles * scan.blocks * block_size)
    for first in range(0, scan.length, TILE):
        steps = min(TILE, scan.length - first)
        following = min(first + TILE, scan.length - steps)
        read_weights(B, scan.B_row, first, steps, scan.states, shifted(work, _WEIGHTS), rows, paired)
        read_weights(C, scan.C_row, first, steps, scan.states, shifted(work, _WEIGHTS + TILE * rows), rows, paired)
        for block in range(first_block, end_block):
            state = shifted(states, block * block_size)
            if scan.starts != 0:
                copy(state, shifted(starts, (first // TILE * scan.blocks + block) * block_size), block_size)
            is_last = block + 1 == end_block
            ahead, next_block = (following, first_block) if is_last else (first, block + 1)
            _read_inputs(scan, sources, y, first, ahead, steps, block, next_block, like, work)
            A_block = shifted(A, block * A_rows * LANES)
            _run_block(A_block, state, work, rows, scan.states, steps, like, paired)
            _write_outputs(scan, sources[2], y, first, steps, block, work)


@kernel
def forward_rows(scan, like, paired, start, end, group, address):
    """Scan some blocks of channels of the sequences `start` to `end - 1`.

    Scratch memory left by a sequence is not read by the next one, or still zero. For the arguments see `_forward`.
    """
    for b in range(start, end):
        _forward(scan, like, paired, b, group, address)
