"""Costs of the long convolution by Triton kernels: those of the kernels, which tests count, and of what torch does.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `n` points of a row, `s` bytes of a number of the inputs.
"""

import torch

from hf_ssm.ops.gpu.costs import Cost
from hf_ssm.ops.long_conv.fft import fft_length
from hf_ssm.ops.long_conv.triton_layout import _crop, crop_cost, pad_cost
from hf_ssm.ops.long_conv.triton_spectra import product_cost, transform_cost
from hf_ssm.ops.long_conv.triton_toeplitz import _convolve_blocks, blocks_cost, takes_blocks, taps_gradient_cost

__all__ = ["backward_cost", "forward_cost"]


def _rows(length: int, taps: int, size: int, blocks: bool | None) -> tuple[bool, int, int]:
    """Whether products of blocks are taken, the points of a row, and the bytes of its numbers."""
    if blocks is None:
        blocks = takes_blocks(length, taps, 0, torch.bfloat16 if size == 2 else torch.float32)
    return blocks, -(-length // 32) * 32 if blocks else fft_length(length, taps, 0), size if blocks else 4


def _tile() -> tuple[int, int, int]:
    constants = _convolve_blocks.configs[0].kwargs
    return constants["BLOCK"], constants["STEP"], constants["COLUMNS"]


def forward_cost(
    batch: int, length: int, channels: int, taps: int, size: int, blocks: bool | None = None
) -> tuple[Cost, Cost]:
    """Costs of the kernels and of torch in a causal forward of one block of rows and channels.

    With `N = B L D`, with `n = 2 L`, the kernels around transforms read about `(s + 12) N` bytes and
    write `(s + 16) N`; the transforms read and write `24 N`, and `40 N` beyond 2^13 points. The kernels of products of
    blocks read and write `(2 s + 4) N` bytes. The taps are not in these numbers.

    Args:
        batch: B.
        length: L.
        channels: D.
        taps: K.
        size: s: 2 stands for bfloat16, 4 for float32.
        blocks: Whether products of blocks are taken; default: where the operator does so.
    """
    blocks, points, row_size = _rows(length, taps, size, blocks)
    kernels = pad_cost(batch, length, channels, points, size, row_size)
    tile = _crop.configs[0].kwargs["BLOCK_L"]
    kernels += crop_cost(batch, length, channels, points, size, tile)
    if blocks:
        return kernels + blocks_cost(batch, channels, points, taps, size, *_tile()), Cost()
    # The taps are padded, and transformed as one more row of the batch.
    padding = Cost(read=4 * channels * taps, written=4 * channels * (points + taps))
    transforms = transform_cost((batch + 1) * channels, points) + transform_cost(batch * channels, points, inverse=True)
    return kernels + product_cost(batch, channels, points), padding + transforms


def backward_cost(
    batch: int, length: int, channels: int, taps: int, size: int, blocks: bool | None = None
) -> tuple[Cost, Cost]:
    """Costs of the kernels and of torch in a backward with the gradients of all arguments; arguments as in the forward.

    With `N = B L D`, with `n = 2 L`, the kernels around transforms read about `(2 s + 20) N` bytes
    and write `(s + 24) N`, those of products of blocks `(5 s + 4) N` and `(3 s + 4) N`. Three transforms are those of a
    row and channel (gradients, inputs, gradients of the inputs), two those of a channel.
    """
    blocks, points, row_size = _rows(length, taps, size, blocks)
    kernels = pad_cost(batch, length, channels, points, size, row_size)
    kernels += pad_cost(batch, length, channels, points, size, row_size)
    tile = _crop.configs[0].kwargs["BLOCK_L"]
    kernels += crop_cost(batch, length, channels, points, size, tile)
    if blocks:
        sizes = (batch, channels, points)
        kernels += blocks_cost(*sizes, taps, size, *_tile())
        return kernels + taps_gradient_cost(*sizes, taps, length, size, *_tile()), Cost()
    others = Cost(read=4 * channels * taps, written=4 * channels * (points + taps))
    others += transform_cost((2 * batch + 1) * channels, points)
    others += transform_cost((batch + 1) * channels, points, inverse=True)
    return kernels + product_cost(batch, channels, points, backward=True), others
