"""Sums of complex exponentials by Triton kernels: the kernel of a diagonal system, with its own backward.

Dimensions: `L` length, `D` channels, `H` stored conjugate pairs, `R` rows and `C` columns of a tile, `T` tiles.

A program computes the taps `l = l0 + i C + j` of a tile of one channel, `i < R` and `j < C`, as a real matrix product
of the tables `w exp(x (l0 + i C))` and `exp(x j)` with `2 H` inner terms. The tables are computed in registers, a
block of pairs at a time, and never written: a tile of 64 x 64 takes `H / 32` table entries and `2 H` multiplications
for each tap. Tiles are independent of each other, so that one channel of a long kernel already fills a part of a GPU.

The phase of `x` is held as a 64-bit fraction of a turn, whose product with `l` wraps around as angles do: the error is
`l` times 2^-64 turns plus the rounding of the float64 argument, at any length, and no float64 unit is needed in the
tables. Sine and cosine are polynomials in an eighth of a turn, accurate to float32 on every GPU (the instructions for
them have an absolute error of 5e-7 on NVIDIA's).

The backward multiplies a tile of the gradient with the columns, unweighted and weighted by `j`, and sums the products
over the rows: four sums for each tile and pair, `(T, D, 4, H)` in float32, which is `4 H / (R C)` of the memory of the
gradient. A second kernel adds them in float64.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE
from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import config, kernel, product_precision, runs_kernels
from hf_ssm.ops.gpu.language import dot
from hf_ssm.ops.lti.exponential_sums import SumInputs, empty_sums, plain_sums
from hf_ssm.ops.operators import differentiable_operator, empty_gradients

__all__ = ["exponential_sums_triton", "supports_exponential_sums", "tile_rows"]

COLUMNS = 64
"""Columns of a tile."""

_LOG2_E = tl.constexpr(math.log2(math.e))
_TURNS = tl.constexpr(1 / (2 * math.pi))
# 2^-32 of a turn, in radians.
_UNIT = tl.constexpr(2 * math.pi / 2**32)


def tile_rows(length: int) -> int:
    """Rows of a tile: fewer for short kernels, which would leave most of a tile empty."""
    return 16 if length <= 16 * COLUMNS else 64


@triton.jit
def _load_complex(z, h, pairs):
    """Real and imaginary parts of numbers `(BLOCK_H)`, float64, zero outside."""
    valid = h < pairs
    return tl.load(z + 2 * h, mask=valid, other=0.0), tl.load(z + 2 * h + 1, mask=valid, other=0.0)


@triton.jit
def _load_exponents(log_base, h, pairs):
    """Real parts in float32, times log2(e), and imaginary parts as fractions of a turn in units of 2^-64."""
    real, imag = _load_complex(log_base, h, pairs)
    # The conversion to an integer would lose NaN: the real part takes it over.
    rate = real * _LOG2_E + imag * 0.0
    turns = imag * _TURNS
    turns -= tl.floor(turns)
    turns = tl.where(turns == turns, turns, 0.0)
    # The product of a float32 number and a length stays finite.
    rate = tl.where(rate < -1e20, -1e20, rate).to(tl.float32)
    return rate, (turns * 4611686018427387904.0).to(tl.int64) << 2


@triton.jit
def _exponentials(rate, phase, at):
    """`exp(x at)`, real and imaginary parts in float32; `rate` and `phase` of `x` and `at` are broadcast."""
    size = tl.exp2(rate * at.to(tl.float32))
    angle = ((phase * at.to(tl.int64)) >> 32).to(tl.int32)
    # The nearest quarter of a turn, and what remains: its lower 30 bits with their sign.
    rest = (angle << 2) >> 2
    quarter = ((angle >> 29) + 1) >> 1
    a = rest.to(tl.float32) * _UNIT
    s = a * a
    # Taylor series; the next terms are below 3e-8 for a of at most pi / 4.
    sine = a * (1.0 + s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880)))))
    cosine = 1.0 + s * (-0.5 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320))))
    odd = (quarter & 1) != 0
    real, imag = tl.where(odd, sine, cosine), tl.where(odd, cosine, sine)
    real = tl.where(((quarter + 1) & 2) != 0, -real, real)
    imag = tl.where((quarter & 2) != 0, -imag, imag)
    return size * real, size * imag


_CONFIGS = [config(BLOCK_H=16, num_warps=4), config(BLOCK_H=32, num_warps=8)]
_EXAMPLE = {
    "log_base": "*fp64",
    "length": "i32",
    "pairs": "i32",
    "COLUMNS": COLUMNS,
    "PRECISION": "ieee",
}


@kernel(
    configs=_CONFIGS,
    key=("length", "pairs"),
    examples={
        label: {**_EXAMPLE, "weights": "*fp64", "taps": "*fp32", "ROWS": rows}
        for label, rows in (("long", 64), ("short", 16))
    },
)
@triton.jit
def _exponential_sums(
    log_base,
    weights,
    taps,
    length,
    pairs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write `taps` `(D, L)`; log_base and weights `(D, H, 2)`. Programs: `(D, T)`."""
    channel = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * ROWS * COLUMNS + COLUMNS * tl.arange(0, ROWS)
    j = tl.arange(0, COLUMNS)
    log_base += channel * 2 * pairs
    weights += channel * 2 * pairs
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, pairs, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        rate, phase = _load_exponents(log_base, h, pairs)
        real, imag = _load_complex(weights, h, pairs)
        w_real, w_imag = real.to(tl.float32)[None, :], imag.to(tl.float32)[None, :]
        real, imag = _exponentials(rate[None, :], phase[None, :], i[:, None])
        left_real, left_imag = w_real * real - w_imag * imag, w_real * imag + w_imag * real
        real, imag = _exponentials(rate[:, None], phase[:, None], j[None, :])
        total += dot(left_real, real, PRECISION)
        total -= dot(left_imag, imag, PRECISION)
    at = i[:, None] + j[None, :]
    tl.store(taps + channel * length + at, total, mask=at < length)


@kernel(
    configs=[config(BLOCK_H=16, BLOCK_J=16, num_warps=8, num_stages=1), config(BLOCK_H=32, BLOCK_J=16, num_warps=8)],
    key=("length", "pairs"),
    examples={
        label: {
            **_EXAMPLE,
            "grad": "*fp32",
            "sums": "*fp32",
            "channels": "i32",
            "grad_row": "i32:16",
            "WITH_BASE": True,
            "ROWS": rows,
        }
        for label, rows in (("long", 64), ("short", 16))
    },
)
@triton.jit
def _exponential_sums_backward(
    grad,
    log_base,
    sums,
    grad_row,
    length,
    pairs,
    channels,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WITH_BASE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """Write the sums over a tile of `grad exp(x l)`, and of `l grad exp(x l)`. Programs: `(D, T)`.

    Args:
        grad: `(D, L)`, with a stride of the rows.
        sums: `(T, D, 4, H)`, or `(T, D, 2, H)` without those weighted by `l`; real and imaginary parts of each.
    """
    channel, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tile * ROWS * COLUMNS + COLUMNS * tl.arange(0, ROWS)
    log_base += channel * 2 * pairs
    grad += channel * grad_row
    sums += (tile.to(tl.int64) * channels + channel) * (4 if WITH_BASE else 2) * pairs
    for start in range(0, pairs, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        valid = h < pairs
        rate, phase = _load_exponents(log_base, h, pairs)
        # Sums over the columns, and of those weighted by j.
        real = tl.zeros([ROWS, BLOCK_H], tl.float32)
        imag = tl.zeros([ROWS, BLOCK_H], tl.float32)
        moment_real = tl.zeros([ROWS, BLOCK_H], tl.float32)
        moment_imag = tl.zeros([ROWS, BLOCK_H], tl.float32)
        for column in range(0, COLUMNS, BLOCK_J):
            j = column + tl.arange(0, BLOCK_J)
            at = i[:, None] + j[None, :]
            g = tl.load(grad + at, mask=at < length, other=0.0)
            right_real, right_imag = _exponentials(rate[None, :], phase[None, :], j[:, None])
            real += dot(g, right_real, PRECISION)
            imag += dot(g, right_imag, PRECISION)
            if WITH_BASE:
                weight = j.to(tl.float32)[:, None]
                moment_real += dot(g, weight * right_real, PRECISION)
                moment_imag += dot(g, weight * right_imag, PRECISION)
        left_real, left_imag = _exponentials(rate[None, :], phase[None, :], i[:, None])
        tl.store(sums + h, tl.sum(left_real * real - left_imag * imag, 0), mask=valid)
        tl.store(sums + pairs + h, tl.sum(left_real * imag + left_imag * real, 0), mask=valid)
        if WITH_BASE:
            before = i.to(tl.float32)[:, None]
            moment_real += before * real
            moment_imag += before * imag
            tl.store(sums + 2 * pairs + h, tl.sum(left_real * moment_real - left_imag * moment_imag, 0), mask=valid)
            tl.store(sums + 3 * pairs + h, tl.sum(left_real * moment_imag + left_imag * moment_real, 0), mask=valid)


@triton.jit
def _add_tiles(sums, h, pairs, tiles, stride, BLOCK_T: tl.constexpr):
    """Sums of all tiles, `(BLOCK_H)` in float64."""
    total = tl.zeros([h.shape[0]], tl.float64)
    for start in range(0, tiles, BLOCK_T):
        t = start + tl.arange(0, BLOCK_T)
        valid = (t < tiles)[:, None] & (h < pairs)[None, :]
        tile_sums = tl.load(sums + t.to(tl.int64)[:, None] * stride + h[None, :], mask=valid, other=0.0)
        total += tl.sum(tile_sums.to(tl.float64), 0)
    return total


@kernel(
    configs=[config(BLOCK_H=32, BLOCK_T=16)],
    examples={
        "fp32": {
            **dict.fromkeys(("weights", "grad_base", "grad_weights"), "*fp64"),
            "sums": "*fp32",
            **dict.fromkeys(("pairs", "channels", "tiles"), "i32"),
        }
    },
)
@triton.jit
def _gradients_of_sums(
    sums,
    weights,
    grad_base,
    grad_weights,
    pairs,
    channels,
    tiles,
    BLOCK_H: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Write the gradients `(D, H, 2)` from the sums over tiles; that of log_base may be absent. Programs: `(D, H)`."""
    channel = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    valid = h < pairs
    parts = 2 if grad_base is None else 4
    stride = channels * parts * pairs
    sums += channel * parts * pairs
    place = channel * 2 * pairs + 2 * h
    real = _add_tiles(sums, h, pairs, tiles, stride, BLOCK_T)
    imag = _add_tiles(sums + pairs, h, pairs, tiles, stride, BLOCK_T)
    tl.store(grad_weights + place, real, mask=valid)
    tl.store(grad_weights + place + 1, -imag, mask=valid)
    if grad_base is not None:
        w_real, w_imag = _load_complex(weights + channel * 2 * pairs, h, pairs)
        real = _add_tiles(sums + 2 * pairs, h, pairs, tiles, stride, BLOCK_T)
        imag = _add_tiles(sums + 3 * pairs, h, pairs, tiles, stride, BLOCK_T)
        tl.store(grad_base + place, w_real * real - w_imag * imag, mask=valid)
        tl.store(grad_base + place + 1, -(w_real * imag + w_imag * real), mask=valid)


def _tiles(length: int) -> int:
    return triton.cdiv(length, tile_rows(length) * COLUMNS)


def _parts(z: Tensor) -> Tensor:
    """`(D, H)`, complex -> `(D, H, 2)`, dense."""
    return torch.view_as_real(z.resolve_conj().contiguous())


def _run_sums(args: SumInputs, length: int) -> Tensor:
    (channels, pairs), taps = args.log_base.shape, empty_sums(args, length)
    _exponential_sums.launch(
        (channels, _tiles(length)),
        log_base=_parts(args.log_base),
        weights=_parts(args.weights),
        taps=taps,
        length=length,
        pairs=pairs,
        ROWS=tile_rows(length),
        COLUMNS=COLUMNS,
        PRECISION=product_precision(),
    )
    return taps


def _run_sums_backward(grad: Tensor, args: SumInputs, length: int, wanted: Sequence[bool]) -> tuple[Tensor, Tensor]:
    (log_base, weights), with_base = args, wanted[0]
    channels, pairs = log_base.shape
    grad = dense_rows(grad)
    tiles = _tiles(length)
    sums = torch.empty((tiles, channels, 4 if with_base else 2, pairs), dtype=torch.float32, device=grad.device)
    _exponential_sums_backward.launch(
        (channels, tiles),
        grad=grad,
        log_base=_parts(log_base),
        sums=sums,
        grad_row=grad.stride(0),
        length=length,
        pairs=pairs,
        channels=channels,
        ROWS=tile_rows(length),
        COLUMNS=COLUMNS,
        WITH_BASE=with_base,
        PRECISION=product_precision(),
    )
    grad_base, grad_weights = empty_gradients(args, (with_base, True))
    _gradients_of_sums.launch(
        lambda meta: (channels, triton.cdiv(pairs, meta["BLOCK_H"])),
        sums=sums,
        weights=_parts(weights),
        grad_base=torch.view_as_real(grad_base) if with_base else None,
        grad_weights=torch.view_as_real(grad_weights),
        pairs=pairs,
        channels=channels,
        tiles=tiles,
    )
    return grad_base, grad_weights


_operator, _operator_backward = differentiable_operator(
    f"{NAMESPACE}::exponential_sums_triton",
    tensors=SumInputs,
    options="SymInt length",
    forward=_run_sums,
    fake=empty_sums,
    backward=_run_sums_backward,
    plain=plain_sums,
)


def supports_exponential_sums(log_base: Tensor, weights: Tensor, length: int, dtype: torch.dtype) -> bool:
    """Results in float64 need tables in float64, whose exponentials a GPU computes by long software routines."""
    return dtype == torch.float32 and runs_kernels(log_base, weights, dtypes=(torch.complex128,))


def exponential_sums_triton(log_base: Tensor, weights: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """`exponential_sums` in float32, by tables in float32 of phases in 64 bits."""
    taps: Tensor = _operator(log_base, weights, length)
    return taps
