"""Arguments and tiles of the inputs, for the forward and the backward kernel of the selective scan.

The sequence is divided into tiles of `TILE` positions and the channels into blocks of 16, the lanes of a vector. Within
a tile the blocks are computed one after the other, and within a block a few states at a time, which stay in registers
along the tile. Memory is read and written once, row by row, and intermediate results stay in the first cache.

Dimensions: `B` batch, `L` length, `D` channels, `K` blocks of channels, `N` states, `S` states padded to a multiple
of 4, `R` real rows (`S`, or for complex states `2 S`: all real, then all imaginary parts).
"""

from typing import NamedTuple

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vector import LANES, add, constant, load, load_some, pointer, prefetch, splat, store

__all__ = [
    "GROUP",
    "TILE",
    "ScanArguments",
    "copy",
    "parameter",
    "prefetch_inputs",
    "raw_step",
    "read_weights",
]

TILE = 16
# Real states computed together: enough to fill the pipelines, few enough for the registers.
GROUP = 4


class ScanArguments(NamedTuple):
    """Sizes, strides, and addresses of tensors of one real type or its complex counterpart; 0 for `None`.

    Tensors with a batch and a row stride have a dense last dimension; the others are contiguous.
    """

    batch: int
    length: int
    channels: int
    states: int
    rows: int
    blocks: int
    tiles: int
    # Blocks of a task; the last task of a sequence may have fewer.
    width: int
    softplus: bool
    shared_step: bool
    u: int
    u_batch: int
    u_row: int
    delta: int
    delta_batch: int
    delta_row: int
    z: int
    z_batch: int
    z_row: int
    B: int
    B_batch: int
    B_row: int
    C: int
    C_batch: int
    C_row: int
    # `(K, R, 16)`, for complex states `(K, 3 S, 16)`, from `_exponents`; then twice `(K, 16)`.
    A: int
    D: int
    bias: int
    # The state, updated in place, `(B, K, R, 16)`; the states before each tile, `(B, tiles, K, R, 16)`.
    state: int
    starts: int
    # `(B, L, D)`.
    y: int
    y_batch: int
    y_row: int


@kernel
def read_weights(source, row_stride, first, steps, states, target, rows, paired):
    """Copy the rows of B or C from position `first` on to the dense `target` `(TILE, R)`."""
    for t in range(steps):
        row, at = (first + t) * row_stride, t * rows
        if paired is None:
            for n in range(states):
                target[at + n] = source[row + n]
        else:
            for n in range(states):
                target[at + n] = source[row + 2 * n]
                target[at + rows // 2 + n] = source[row + 2 * n + 1]


@kernel
def copy(source, target, size):
    """Copy `size` numbers, a multiple of 16."""
    for i in range(0, size, LANES):
        store(target, i, load(source, i))


@kernel
def raw_step(shared, delta, row, channel, lanes, bias):
    """The step sizes of a block before the softplus."""
    if shared:
        return add(splat(delta[row]), bias)
    return add(load_some(delta, row + channel, lanes), bias)


@kernel
def parameter(address, like, block):
    """A block of D or of the bias; zeros if there is none."""
    if address == 0:
        return constant(0.0, like)
    return load(pointer(address, like), block * LANES)


@kernel
def prefetch_inputs(scan, sources, place, channel):
    """Prefetch a block of one position: the hardware does not predict rows that are far apart."""
    u, delta, z = sources
    prefetch(u, place * scan.u_row + channel)
    if not scan.shared_step:
        prefetch(delta, place * scan.delta_row + channel)
    if scan.z != 0:
        prefetch(z, place * scan.z_row + channel)
