"""The selective scan by Triton kernels: bytes and operations.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `K` chunks.
"""

from costs.rates import Cost
from hf_ssm.ops.selective_scan.triton_backward import BLOCK_D
from hf_ssm.ops.selective_scan.triton_forward import SEGMENT


def carry_cost(batch: int, channels: int, states: int, chunks: int) -> Cost:
    """Cost of `carry` for real states without an initial state: `B K N D` states are read and written."""
    size = 4 * batch * chunks * channels
    matrix = 4 * states * channels
    read = size * (states + 1) + matrix
    return Cost(read, (batch - 1) * matrix, size * states, batch * chunks * states * channels)


def forward_cost(
    batch: int, length: int, channels: int, states: int, size: int, chunks: int, segment: int = SEGMENT, block: int = 64
) -> Cost:
    """Cost of a forward with softplus, bias, D and z, real states, from a zero state.

    `4 B L D` numbers of `size` bytes to and from the memory, and `B L N D / segment` float32 states for the backward; B
    and C are read for each block of channels, from a cache. `N + 5` operations of the special function units for each
    output: a decay per state, softplus and SiLU. More than one chunk: two more inputs and `N + 3` operations for each
    output.
    """
    inputs, weights = size * batch * length * channels, size * batch * length * states
    blocks, programs = -(-channels // block), batch * chunks
    matrix, row, state = 4 * states * channels, 4 * channels, 4 * batch * states * channels
    many = chunks > 1
    read = 3 * inputs + 2 * weights + matrix + 2 * row + many * chunks * state
    reread = 2 * (blocks - 1) * weights + (programs - 1) * (matrix + 2 * row)
    written = inputs + -(-length // segment) * state + state
    cost = Cost(read, reread, written, batch * length * channels * (states + 5))
    if not many:
        return cost
    reread = (blocks - 1) * weights + (programs - 1) * (matrix + row)
    ends = Cost(
        2 * inputs + weights + matrix + row,
        reread,
        chunks * (state + batch * row),
        batch * length * channels * (states + 3),
    )
    return cost + ends + carry_cost(batch, channels, states, chunks)


def backward_cost(
    batch: int, length: int, channels: int, states: int, size: int, chunks: int, segment: int = SEGMENT, tile: int = 2
) -> Cost:
    """Cost of a backward with softplus, bias, D and z, real states, no gradient of the last state.

    `7 B L D` numbers of `size` bytes, `B L N D / segment` float32 states and `2 B L N D / BLOCK_D` float32 sums to and
    from the memory; through the caches `B L N D / tile` states are written and read, and inputs read up to three
    times. `3 N + 12` operations of the special function units for each output. More than one chunk: three more inputs
    and `N + 5` operations for each output. For lengths that are multiples of `segment`.
    """
    inputs, weights = size * batch * length * channels, size * batch * length * states
    blocks, programs = -(-channels // BLOCK_D), batch * chunks
    matrix, row, state = 4 * states * channels, 4 * channels, 4 * batch * states * channels
    many, tiles = chunks > 1, segment // tile
    scratch = length // tile * state
    read = 4 * inputs + 2 * weights + matrix + 2 * row + length // segment * state + chunks * (tiles + many) * state
    reread = 3 * inputs + (4 * blocks - 2) * weights + (programs - 1) * (matrix + 2 * row)
    reread += scratch - chunks * tiles * state
    sums = 4 * blocks * batch * length * 2 * states + chunks * (state + 2 * batch * row)
    cost = Cost(read, reread, 3 * inputs + sums + scratch + state, batch * length * channels * (3 * states + 12))
    if not many:
        return cost
    ends = Cost(
        3 * inputs + weights + matrix + row,
        (blocks - 1) * weights + (programs - 1) * (matrix + row),
        chunks * (state + batch * row),
        batch * length * channels * (states + 5),
    )
    return cost + ends + carry_cost(batch, channels, states, chunks)
