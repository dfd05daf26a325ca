"""Copies between inputs `(B, L, D)` and rows of channels `(B, D, n)`, with the gates of the long convolution.

Dimensions: `B` batch, `L` length, `D` channels, `n >= L` points of a row, `s` bytes of a number of the inputs.

Inputs have their channels innermost, transforms and products of blocks need the positions innermost. A program
transposes a tile of positions and channels in shared memory, so that it reads and writes whole cache lines, and
converts and multiplies on the way: no other pass over the memory does so.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.arguments import with_strides
from hf_ssm.ops.gpu.costs import Cost
from hf_ssm.ops.gpu.kernels import config, kernel

__all__ = ["crop_cost", "cropped", "pad_cost", "padded_rows"]

_AXES = ("batch", "row")
_CONFIGS = [config(BLOCK_L=64, BLOCK_D=64), config(BLOCK_L=128, BLOCK_D=32)]
_SIZES = {**dict.fromkeys(("channels", "points"), "i32:16"), "length": "i32"}


def _strides(*names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "i32:16" for name in names for axis in _AXES}


@triton.jit
def _load_tile(source, batch, row, first, t, d, known):
    """Numbers `(BLOCK_L, BLOCK_D)` at positions `first + t` of the row of the program, in float32."""
    start = tl.program_id(2).to(tl.int64) * batch + first.to(tl.int64) * row
    return tl.load(source + start + t[:, None] * row + d[None, :], mask=known, other=0.0).to(tl.float32)


@kernel(
    configs=_CONFIGS,
    key=("points", "channels"),
    examples={
        dtype: {**dict.fromkeys(("u", "gate", "rows"), f"*{dtype}"), **_strides("u", "gate"), **_SIZES}
        for dtype in ("bf16", "fp32")
    },
)
@triton.jit
def _pad(
    u,
    gate,
    rows,
    u_batch,
    u_row,
    gate_batch,
    gate_row,
    length,
    channels,
    points,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write `rows` `(B, D, n)`: the product of `u` and `gate` `(B, L, D)`, transposed, and zeros after it."""
    first = tl.program_id(0) * BLOCK_L
    t = tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    known = (first + t < length)[:, None] & (d < channels)[None, :]
    value = _load_tile(u, u_batch, u_row, first, t, d, known)
    if gate is not None:
        value *= _load_tile(gate, gate_batch, gate_row, first, t, d, known)
    rows += tl.program_id(2).to(tl.int64) * channels * points + first
    keep = (d < channels)[:, None] & (first + t < points)[None, :]
    place = rows + d.to(tl.int64)[:, None] * points + t[None, :]
    tl.store(place, tl.trans(value).to(rows.dtype.element_ty), mask=keep)


@kernel(
    configs=_CONFIGS,
    key=("points", "channels"),
    examples={
        dtype: {
            "rows": "*fp32",
            **dict.fromkeys(("gate", "other", "out", "second"), f"*{dtype}"),
            **_strides("gate", "other", "out", "second"),
            **_SIZES,
        }
        for dtype in ("bf16", "fp32")
    },
)
@triton.jit
def _crop(
    rows,
    gate,
    other,
    out,
    second,
    gate_batch,
    gate_row,
    other_batch,
    other_row,
    out_batch,
    out_row,
    second_batch,
    second_row,
    length,
    channels,
    points,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the first L points of `rows` `(B, D, n)`, transposed: times `gate` to `out`, times `other` to `second`.

    Both outputs are `(B, L, D)` with strides, or absent; an absent factor is one.
    """
    first = tl.program_id(0) * BLOCK_L
    t = tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    rows += tl.program_id(2).to(tl.int64) * channels * points + first
    # Up to the points, not the length: with a multiple of 16 of them, four numbers are read at once.
    there = (d < channels)[:, None] & (first + t < points)[None, :]
    value = tl.trans(tl.load(rows + d.to(tl.int64)[:, None] * points + t[None, :], mask=there, other=0.0))
    keep = (first + t < length)[:, None] & (d < channels)[None, :]
    row = tl.program_id(2).to(tl.int64)
    if out is not None:
        result = value
        if gate is not None:
            result = value * _load_tile(gate, gate_batch, gate_row, first, t, d, keep)
        out += row * out_batch + first.to(tl.int64) * out_row
        tl.store(out + t[:, None] * out_row + d[None, :], result.to(out.dtype.element_ty), mask=keep)
    if second is not None:
        if other is not None:
            value *= _load_tile(other, other_batch, other_row, first, t, d, keep)
        second += row * second_batch + first.to(tl.int64) * second_row
        tl.store(second + t[:, None] * second_row + d[None, :], value.to(second.dtype.element_ty), mask=keep)


def pad_cost(batch: int, length: int, channels: int, points: int, size: int, row_size: int, inputs: int = 1) -> Cost:
    """Cost of `padded_rows`: `s B L D` bytes of each of the `inputs` (with a gate two) are read.

    `B D n` numbers of `row_size` bytes are written.
    """
    return Cost(read=inputs * size * batch * length * channels, written=row_size * batch * channels * points)


def crop_cost(
    batch: int, length: int, channels: int, points: int, size: int, tile: int, factors: int = 0, outputs: int = 1
) -> Cost:
    """Cost of `cropped`: all points of tiles with inputs are read, and written are `s B L D` bytes for each output.

    Of tiles of `T` points, `4 B D min(n, T ceil(L / T))` bytes of rows are read, and `s B L D` of each factor.
    """
    numbers = batch * length * channels
    rows = batch * channels * min(points, -(-length // tile) * tile)
    return Cost(read=4 * rows + factors * size * numbers, written=outputs * size * numbers)


def padded_rows(u: Tensor, gate: Tensor | None, points: int, dtype: torch.dtype) -> Tensor:
    """The product of `u` and `gate` `(B, L, D)`, with dense channels, as `(B, D, points)` with zeros at the end."""
    batch, length, channels = u.shape
    rows = torch.empty((batch, channels, points), dtype=dtype, device=u.device)
    _pad.launch(
        lambda meta: (triton.cdiv(points, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        **with_strides(_AXES, u=u, gate=gate),
        rows=rows,
        length=length,
        channels=channels,
        points=points,
    )
    return rows


def cropped(
    rows: Tensor, out: Tensor | None, gate: Tensor | None, second: Tensor | None = None, other: Tensor | None = None
) -> None:
    """Write `gate` times the first points of `rows` to `out`, and `other` times them to `second`.

    Args:
        rows: `(B, D, n)`, float32, contiguous.
        out: `(B, L, D)` with dense channels, or absent.
        gate: Factor of `out`, of its shape; default one.
        second: As `out`.
        other: Factor of `second`; default one.
    """
    like = out if out is not None else second
    if like is None:
        return
    batch, length, channels = like.shape
    _crop.launch(
        lambda meta: (triton.cdiv(length, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        rows=rows,
        **with_strides(_AXES, gate=gate, other=other, out=out, second=second),
        length=length,
        channels=channels,
        points=rows.shape[2],
    )
