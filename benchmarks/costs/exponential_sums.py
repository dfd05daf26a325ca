"""The kernels of S4D by Triton: bytes and operations.

Dimensions: `D` channels, `L` length, `H` conjugate pairs, `R` rows and `C` columns of a tile, `T` tiles.
"""

import triton

from costs.rates import Cost
from hf_ssm.ops.lti.triton_exponential_sums import COLUMNS, _tiles, tile_rows


def forward_cost(channels: int, pairs: int, length: int, block: int = 16) -> Cost:
    """Cost of the sums; `block` pairs at a time.

    `4 D L` bytes written, `32 D H` read, by each of the `T` tiles. With `H'` pairs, a multiple of the block,
    `T D (R + C) H'` exponentials and `4 T D R C H'` floating point operations in products.
    """
    rows, tiles, padded = tile_rows(length), _tiles(length), -(-pairs // block) * block
    read = 32 * channels * pairs
    return Cost(
        read,
        read * (tiles - 1),
        4 * channels * length,
        tiles * channels * (rows + COLUMNS) * padded,
        4 * tiles * channels * rows * COLUMNS * padded,
    )


def backward_cost(channels: int, pairs: int, length: int, block: int = 16) -> Cost:
    """Cost of the gradients of the weights and of the bases; `block` pairs at a time.

    `4 D L` bytes of the gradient and `16 D H` of the bases read, the former for each block, the latter by each tile;
    `16 T D H` bytes of sums written and read, and `32 D H` of gradients written. Exponentials as in the forward,
    products twice as many.
    """
    forward = forward_cost(channels, pairs, length, block)
    tiles, numbers = _tiles(length), channels * pairs
    return Cost(
        4 * channels * length + 16 * numbers + 16 * tiles * numbers + 16 * numbers,
        16 * numbers * (tiles - 1) + 4 * channels * length * (triton.cdiv(pairs, block) - 1),
        16 * tiles * numbers + 32 * numbers,
        forward.exponentials,
        2 * forward.products,
    )
