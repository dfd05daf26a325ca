"""Costs of the long convolution by Triton kernels: those of the kernels, which tests count, and of what torch does.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps, `n` points of a row, `s` bytes of a number of the inputs.
"""

import torch

from costs.rates import Cost
from hf_ssm.ops.long_conv.fft import fft_length
from hf_ssm.ops.long_conv.triton_layout import _crop
from hf_ssm.ops.long_conv.triton_toeplitz import _ALIGNMENT, _convolve_blocks, takes_blocks


def pad_cost(batch: int, length: int, channels: int, points: int, size: int, row_size: int) -> Cost:
    """Cost of `padded_rows`: `s B L D` bytes are read, and `B D n` numbers of `row_size` bytes written."""
    return Cost(read=size * batch * length * channels, written=row_size * batch * channels * points)


def crop_cost(batch: int, length: int, channels: int, points: int, size: int, tile: int) -> Cost:
    """Cost of `crop_`: all points of tiles with inputs are read, and `s B L D` bytes are written.

    Of tiles of `T` points, `4 B D min(n, T ceil(L / T))` bytes of rows are read.
    """
    rows = batch * channels * min(points, -(-length // tile) * tile)
    return Cost(read=4 * rows, written=size * batch * length * channels)


def product_cost(batch: int, channels: int, points: int, backward: bool = False) -> Cost:
    """Cost of the products: with `N = 8 D F` bytes of a spectrum, `(B + 1) N` are read and `B N` written.

    In the backward with all gradients `(2 B + 1) N` are read and `(B + 1) N` written.
    """
    size = 8 * channels * (points // 2 + 1)
    if backward:
        return Cost(read=(2 * batch + 1) * size, written=(batch + 1) * size)
    return Cost(read=(batch + 1) * size, written=batch * size)


def transform_cost(rows: int, points: int, inverse: bool = False) -> Cost:
    """Assumed cost of the vendor's real transforms of `rows` rows, which no test counts.

    A transform reads and writes its `4 n` bytes once up to 2^13 points (of which a block of threads keeps the points in
    its shared memory), and twice beyond. The inverse first copies the spectra, as torch does.
    """
    passes = (1 if points <= 1 << 13 else 2) + inverse
    return Cost(read=4 * passes * rows * points, written=4 * passes * rows * points)


def blocks_cost(
    batch: int, channels: int, points: int, taps: int, size: int, block: int, step: int, columns: int
) -> Cost:
    """Cost of the convolution of rows with causal taps.

    For each program of `N` blocks of `T` points and each of its distances, `T S` taps and `S N` numbers of the rows are
    read, all but once from a cache, and `2 T S N` operations are products: about `B D K²` of them for as many taps as
    positions, and `2 B D L K` for far fewer taps. Of bfloat16 rows they are twice as many.

    Args:
        batch: B.
        channels: D.
        points: n, a multiple of `step`.
        taps: K, at most n.
        size: Bytes of a number of a row.
        block: T.
        step: S, a divisor of `block`.
        columns: N.
    """
    blocks = -(-points // block)
    signals = weights = products = local = 0
    for begin in range(0, batch * blocks, columns):
        own = [(n % batch, n // batch * block) for n in range(begin, min(begin + columns, batch * blocks))]
        stop = min((taps + step - 2) // step, (own[-1][1] + step - 1) // step)
        distances = range(1 - block // step, stop + 1)
        reads = [(row, at - s * step) for s in distances for row, at in own if 0 <= at - s * step < points]
        signals += step * len(reads)
        known = sum(0 <= s * step + a - c < taps for s in distances for a in range(block) for c in range(step))
        weights += known
        local += size * step * (len(reads) - len(set(reads))) + 4 * (known - min(taps, stop * step + block))
        products += 2 * block * step * columns * len(distances)
    requested = channels * (size * signals + 4 * weights)
    read, written = channels * (size * batch * points + 4 * taps), 4 * channels * batch * points
    exact, half = (products, 0) if size == 4 else (0, 2 * products)
    return Cost(read, requested - read, written, 0, channels * exact, channels * half, channels * local)


def taps_gradient_cost(
    batch: int, channels: int, points: int, taps: int, length: int, size: int, block: int, step: int, columns: int
) -> Cost:
    """Cost of the gradient of causal taps in one part, from rows of `length` inputs; sizes as in `blocks_cost`.

    For each row, program of `N` blocks of lags and distance, `T S` inputs and `S N` gradients are read.
    """
    blocks = -(-(-(-taps // _ALIGNMENT) * _ALIGNMENT) // block)
    signals = weights = products = local = 0
    for begin in range(0, blocks, columns):
        own = [n * block for n in range(begin, min(begin + columns, blocks))]
        stop = min((length + block - 2) // step, (points - 1 - own[0]) // step)
        reads = [at + s * step for s in range(stop + 1) for at in own if at + s * step < points]
        signals += step * len(reads)
        known = sum(0 <= s * step - a + c < length for s in range(stop + 1) for a in range(block) for c in range(step))
        weights += known
        local += step * (len(reads) - len(set(reads))) + known - min(length, (stop + 1) * step)
        products += 2 * block * step * columns * (stop + 1)
    rows = batch * channels
    read, written = rows * size * (points + length), 4 * channels * blocks * block
    exact, half = (products, 0) if size == 4 else (0, products)
    requested = rows * size * (signals + weights)
    return Cost(read, requested - read, written, 0, rows * exact, rows * half, rows * size * local)


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
