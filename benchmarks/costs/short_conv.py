"""The short convolution by Triton kernels: bytes and operations.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps.
"""

from costs.rates import Cost


def forward_cost(batch: int, length: int, channels: int, taps: int, size: int, tile: int) -> Cost:
    """Cost of a causal forward with SiLU and bias, by programs of `tile` positions.

    `2 B L D` numbers of `size` bytes to and from the memory; each input is read once for each tap, all but once from a
    cache: from the L2 cache for the `K - 1` positions before a tile. Two operations of the special function units
    (exponential, reciprocal) for each output.
    """
    outputs, tiles = batch * length * channels, -(-length // tile)
    reads = batch * channels * sum(max(0, length - i) for i in range(taps))
    before, weights = batch * channels * (tiles - 1) * (taps - 1), (taps + 1) * channels
    again = size * (reads - outputs + (batch * tiles - 1) * weights)
    return Cost(size * (outputs + weights), again, size * outputs, 2 * outputs, local=size * (reads - outputs - before))


def backward_cost(batch: int, length: int, channels: int, taps: int, size: int, tile: int) -> Cost:
    """Cost of a causal backward with SiLU and bias, by programs of `tile` positions.

    `3 B L D` numbers to and from the memory, `(3 K - 3) B L D` from a cache, and `(K + 1) D` float32 sums of each tile.
    Each input of SiLU is computed again for each tap: `2 K` operations of the special function units.
    """
    inputs, tiles, reach = batch * length * channels, -(-length // tile), range(1, taps)
    reads = batch * channels * (3 * taps * length - length - 3 * sum(reach))
    around, weights = 3 * batch * channels * (tiles - 1) * (taps - 1), (taps + 1) * channels
    sums = 4 * batch * tiles * (taps + 1) * channels
    again = size * (reads - 2 * inputs + (batch * tiles - 1) * weights)
    return Cost(
        *(size * (2 * inputs + weights), again, size * inputs + sums, 2 * taps * inputs),
        local=size * (reads - 2 * inputs - around),
    )
