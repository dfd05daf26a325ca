"""Copies between inputs `(B, L, D)` and rows of channels `(B, D, n)`.

Dimensions: `B` batch, `L` length, `D` channels, `n >= L` points of a row, `s` bytes of a number of the inputs.

Inputs have their channels innermost, transforms and products of blocks need the positions innermost. A program
transposes a tile of positions and channels in shared memory, so that it reads and writes whole cache lines, and
converts on the way: no other pass over the memory does so.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.arguments import with_strides
from hf_ssm.ops.gpu.kernels import config, kernel

__all__ = ["crop_", "padded_rows"]

_AXES = ("batch", "row")
_CONFIGS = [config(BLOCK_L=64, BLOCK_D=64), config(BLOCK_L=128, BLOCK_D=32)]
_SIZES = {**dict.fromkeys(("channels", "points"), "i32:16"), "length": "i32"}


def _strides(*names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "i32:16" for name in names for axis in _AXES}


@kernel(
    configs=_CONFIGS,
    key=("points", "channels"),
    examples={
        dtype: {**dict.fromkeys(("u", "rows"), f"*{dtype}"), **_strides("u"), **_SIZES} for dtype in ("bf16", "fp32")
    },
)
@triton.jit
def _pad(
    u,
    rows,
    u_batch,
    u_row,
    length,
    channels,
    points,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write `rows` `(B, D, n)`: `u` `(B, L, D)`, transposed, and zeros after it."""
    first = tl.program_id(0) * BLOCK_L
    t = tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    valid = (first + t < length)[:, None] & (d < channels)[None, :]
    start = tl.program_id(2).to(tl.int64) * u_batch + first.to(tl.int64) * u_row
    value = tl.load(u + start + t[:, None] * u_row + d[None, :], mask=valid, other=0.0).to(tl.float32)
    rows += tl.program_id(2).to(tl.int64) * channels * points + first
    keep = (d < channels)[:, None] & (first + t < points)[None, :]
    place = rows + d.to(tl.int64)[:, None] * points + t[None, :]
    tl.store(place, tl.trans(value).to(rows.dtype.element_ty), mask=keep)


@kernel(
    configs=_CONFIGS,
    key=("points", "channels"),
    examples={dtype: {"rows": "*fp32", "out": f"*{dtype}", **_strides("out"), **_SIZES} for dtype in ("bf16", "fp32")},
)
@triton.jit
def _crop(
    rows,
    out,
    out_batch,
    out_row,
    length,
    channels,
    points,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the first L points of `rows` `(B, D, n)`, transposed, to `out` `(B, L, D)` with strides."""
    first = tl.program_id(0) * BLOCK_L
    t = tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    rows += tl.program_id(2).to(tl.int64) * channels * points + first
    # Up to the points, not the length: with a multiple of 16 of them, four numbers are read at once.
    there = (d < channels)[:, None] & (first + t < points)[None, :]
    value = tl.trans(tl.load(rows + d.to(tl.int64)[:, None] * points + t[None, :], mask=there, other=0.0))
    keep = (first + t < length)[:, None] & (d < channels)[None, :]
    out += tl.program_id(2).to(tl.int64) * out_batch + first.to(tl.int64) * out_row
    tl.store(out + t[:, None] * out_row + d[None, :], value.to(out.dtype.element_ty), mask=keep)


def padded_rows(u: Tensor, points: int, dtype: torch.dtype) -> Tensor:
    """`u` `(B, L, D)`, with dense channels, as `(B, D, points)` with zeros at the end."""
    batch, length, channels = u.shape
    rows = torch.empty((batch, channels, points), dtype=dtype, device=u.device)
    _pad.launch(
        lambda meta: (triton.cdiv(points, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        **with_strides(_AXES, u=u),
        rows=rows,
        length=length,
        channels=channels,
        points=points,
    )
    return rows


def crop_(rows: Tensor, out: Tensor) -> None:
    """Write the first points of `rows` to `out`.

    Args:
        rows: `(B, D, n)`, float32, contiguous.
        out: `(B, L, D)` with dense channels.
    """
    batch, length, channels = out.shape
    _crop.launch(
        lambda meta: (triton.cdiv(length, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        rows=rows,
        **with_strides(_AXES, out=out),
        length=length,
        channels=channels,
        points=rows.shape[2],
    )
