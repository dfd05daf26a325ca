"""Powers of small matrices between two vectors by Triton kernels: the kernel of a DPLR system.

Dimensions: `L` length, `D` channels, `N` states, `H = N // 2` pairs, `M` columns, `R` rows, `R M >= L`, `S` columns
and `K` vectors of a `Start` of `krylov.py`, `E` powers, `P` states padded to a power of two.

The taps are the product of the rows `C A^(iM)` and the columns `A^j B`, as in `krylov.py`, in three launches:

- `squares`: a program for each channel squares `A` in registers, in float64, and writes the powers `A^(2^e)`;
- `tables`: two programs for each channel compute its rows and its columns in float64, a block of 16 by the binary
  digits of their numbers, the following blocks by the power for 16, and write them rounded to float32;
- `taps`: tiles of the product of both tables, written without padding.

Products in float64 run on the tensor cores of sm_80, sm_90 and gfx942; a matrix of 64 states is what fits the registers
of 8 warps. All steps of one channel depend on each other, hence the channels are what the GPU works on in parallel.
Squarings are cheap here, `2 N³` operations for each of the `log2(M) + 4` powers, and a start is one column: the sixteen
columns that `bilinear_start` computes on a CPU save four of them by a hundred small operations of PyTorch.

Powers take `8 D E P²` bytes and tables `4 D (R + M) P`; channels are processed in blocks of at most 2^28 bytes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.kernels import config, kernel, product_precision
from hf_ssm.ops.gpu.language import dot
from hf_ssm.ops.lti.exponential_sums import block_bytes, split_length
from hf_ssm.ops.lti.krylov import Start

__all__ = [
    "BLOCK",
    "MAX_STATES",
    "Plan",
    "channel_blocks",
    "compute_powers",
    "compute_tables",
    "dot64",
    "load_rows",
    "multiply_tables",
    "plan_steps",
    "power_places",
    "program_steps",
    "tile_size",
]

MAX_STATES = 64
BLOCK = tl.constexpr(16)
"""Rows of a table that are computed at a time."""


class Plan(NamedTuple):
    """Sizes and numbers of steps.

    Attributes:
        states: `N`.
        size: `P`.
        rows: `R`, rounded up to a multiple of 16.
        columns: `M`, a power of two, rounded up to 16.
        stride: `M`.
        first: `log2(S)`.
        column_bits: Binary digits of the number of a column in a block.
        row_level: Number of the power `A^M`.
        row_bits: Binary digits of the number of a row in a block.
        powers: `E`: powers `A^(2^e)`, `e >= log2(S)`, that the tables are computed from.
    """

    states: int
    size: int
    rows: int
    columns: int
    stride: int
    first: int
    column_bits: int
    row_level: int
    row_bits: int
    powers: int


def plan_steps(states: int, start_columns: int, length: int) -> Plan:
    """The steps for a start of `S` columns; S is at most 16 and at most `M`."""
    rows, columns = split_length(length)
    first, digits = start_columns.bit_length() - 1, columns.bit_length() - 1
    row_bits = min(4, (rows - 1).bit_length())
    return Plan(
        states,
        max(16, triton.next_power_of_2(states)),
        -(-rows // 16) * 16,
        max(16, columns),
        columns,
        first,
        min(4, digits),
        digits - first,
        row_bits,
        digits - first + row_bits + (rows > 16),
    )


@triton.jit
def dot64(a, b):
    """The matrix product in float64."""
    return tl.dot(a, b, out_dtype=tl.float64, input_precision="ieee")


@triton.jit
def load_rows(table, rows, SIZE: tl.constexpr):
    """Rows of a table of SIZE numbers each."""
    return tl.load(table + rows[:, None] * SIZE + tl.arange(0, SIZE)[None, :])


@triton.jit
def _load_vectors(vectors, k, count, states, SIZE: tl.constexpr):
    """Rows `k` of `(count, N)`: `(BLOCK, SIZE)`, zero outside."""
    n = tl.arange(0, SIZE)
    known = (k < count)[:, None] & (n < states)[None, :]
    return tl.load(vectors + k[:, None] * states + n[None, :], mask=known, other=0.0)


@triton.jit
def power_places(level, is_turned, SIZE: tl.constexpr):
    """Offsets `(SIZE, SIZE)` of the numbers of a power, transposed if `is_turned`."""
    n = tl.arange(0, SIZE)
    row, column = n[:, None], n[None, :]
    return level * SIZE * SIZE + tl.where(is_turned, column * SIZE + row, row * SIZE + column)


@triton.jit
def program_steps(rows, columns, first, column_bits, row_level, row_bits):
    """What a program `(D, 2)` computes: whether columns, rows of its table, digits from and to, power of the first."""
    of_columns = tl.program_id(1) == 1
    count = tl.where(of_columns, columns, rows)
    begin = tl.where(of_columns, first, 0)
    end = tl.where(of_columns, column_bits, row_bits)
    return of_columns, count, begin, end, tl.where(of_columns, 0, row_level)


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    examples={
        "fp64": {
            **dict.fromkeys(("delta", "outer", "inner", "powers"), "*fp64"),
            **dict.fromkeys(("rank", "pairs", "total"), "i32"),
            "SIZE": 64,
        }
    },
)
@triton.jit
def _squares(delta, outer, inner, powers, rank, pairs, total, SIZE: tl.constexpr):
    """Write powers `(D, E, P, P)`: `diag(δ) + outer^T inner` in real coordinates, and its squares. Programs: `(D)`.

    Args:
        delta: `(D, H, 2)`.
        outer: `(D, K, N)`, as inner.
        rank: `K`.
        total: `E`, at least 1.
    """
    channel, states = tl.program_id(0).to(tl.int64), 2 * pairs
    delta += channel * states
    outer += channel * rank * states
    inner += channel * rank * states
    powers += channel * total * SIZE * SIZE
    power = tl.zeros([SIZE, SIZE], tl.float64)
    for start in range(0, rank, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = _load_vectors(outer, k, rank, states, SIZE)
        power += dot64(tl.trans(left), _load_vectors(inner, k, rank, states, SIZE))
    n = tl.arange(0, SIZE)
    real = tl.load(delta + 2 * (n % pairs), mask=n < states, other=0.0)[:, None]
    imag = tl.load(delta + 2 * (n % pairs) + 1, mask=n < states, other=0.0)[:, None]
    row, column = n[:, None], n[None, :]
    # Multiplication by complex numbers as a matrix.
    power += tl.where(row == column, real, 0.0) + tl.where(row == column + pairs, imag, 0.0)
    power -= tl.where((row + pairs == column) & (column < states), imag, 0.0)
    at = power_places(0, False, SIZE)
    tl.store(powers + at, power)
    for level in range(1, total):
        power = dot64(power, power)
        tl.store(powers + level * SIZE * SIZE + at, power)


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    examples={
        "fp64": {
            **dict.fromkeys(("powers", "start", "c"), "*fp64"),
            "tables": "*fp32",
            **dict.fromkeys(("states", "first", "column_bits", "row_level", "row_bits", "total"), "i32"),
            **dict.fromkeys(("rows", "columns"), "i32:16"),
            "SIZE": 64,
        }
    },
)
@triton.jit
def _tables(
    powers, start, c, tables, states, rows, columns, first, column_bits, row_level, row_bits, total, SIZE: tl.constexpr
):
    """Write tables `(D, rows + columns, P)`, the rows first. Programs: `(D, 2)`, for the rows and for the columns.

    Args:
        start: `(D, S, N)`.
        c: `(D, N)`.
    """
    channel = tl.program_id(0).to(tl.int64)
    of_columns, count, begin, end, lowest = program_steps(rows, columns, first, column_bits, row_level, row_bits)
    powers += channel * total * SIZE * SIZE
    tables += (channel * (rows + columns) + tl.where(of_columns, rows, 0)) * SIZE
    j, n = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    given = 1 << first
    place = (j & (given - 1))[:, None] * states + n[None, :]
    inside = (n < states)[None, :]
    block = tl.load(start + channel * given * states + place, mask=inside & of_columns, other=0.0)
    block += tl.load(c + channel * states + (j & 0)[:, None] + n[None, :], mask=inside & (of_columns == 0), other=0.0)
    for bit in range(begin, end):
        moved = dot64(block, tl.load(powers + power_places(lowest + bit - begin, of_columns, SIZE)))
        block = tl.where((((j >> bit) & 1) != 0)[:, None], moved, block)
    at = j[:, None] * SIZE + n[None, :]
    tl.store(tables + at, block.to(tl.float32))
    if count > BLOCK:
        power = tl.load(powers + power_places(lowest + end - begin, of_columns, SIZE))
        for number in range(BLOCK, count, BLOCK):
            block = dot64(block, power)
            tl.store(tables + number * SIZE + at, block.to(tl.float32))


@kernel(
    configs=[config(BLOCK_N=16, num_warps=4), config(BLOCK_N=16, num_warps=8)],
    key=("length", "SIZE"),
    examples={
        label: {
            **dict.fromkeys(("tables", "taps"), "*fp32"),
            "length": "i32",
            **dict.fromkeys(("rows", "columns", "stride"), "i32:16"),
            "SIZE": 64,
            "TILE": tile,
            "PRECISION": "ieee",
        }
        for label, tile in (("long", 64), ("short", 32))
    },
)
@triton.jit
def _taps(
    tables,
    taps,
    length,
    rows,
    columns,
    stride,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write taps `(D, L)`, the product of both tables. Programs: `(D, rows / TILE, columns / TILE)`; stride: `M`."""
    channel = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    j = tl.program_id(2) * TILE + tl.arange(0, TILE)
    tables += channel * (rows + columns) * SIZE
    left = tables + i[:, None] * SIZE
    right = tables + (rows + j)[:, None] * SIZE
    total = tl.zeros([TILE, TILE], tl.float32)
    for start in range(0, SIZE, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        a = tl.load(left + n[None, :], mask=(i < rows)[:, None], other=0.0)
        b = tl.load(right + n[None, :], mask=(j < columns)[:, None], other=0.0)
        total += dot(a, tl.trans(b), PRECISION)
    at = i[:, None] * stride + j[None, :]
    tl.store(taps + channel * length + at, total, mask=(j < stride)[None, :] & (at < length))


def tile_size(plan: Plan) -> int:
    """Sides of the tiles of the product of both tables."""
    return 32 if max(plan.rows, plan.columns) <= 32 else 64


def channel_blocks(channels: int, plan: Plan, device: torch.device, with_gradients: bool) -> list[slice]:
    """Slices of channels whose powers and tables, and gradients of both, fit a part of the memory."""
    size = 8 * plan.powers * plan.size**2 + 4 * (plan.rows + plan.columns) * plan.size
    count = max(1, block_bytes(device) // (2 * size if with_gradients else size))
    return [slice(begin, begin + count) for begin in range(0, channels, count)]


def compute_powers(start: Start, plan: Plan) -> Tensor:
    """Powers `(D, E, P, P)`, float64, padded with zeros."""
    channels, rank = start.outer.shape[:2]
    powers = start.outer.new_empty(channels, plan.powers, plan.size, plan.size)
    _squares.launch(
        (channels if plan.powers else 0,),
        delta=torch.view_as_real(start.delta.resolve_conj().contiguous()),
        outer=start.outer.contiguous(),
        inner=start.inner.contiguous(),
        powers=powers,
        rank=rank,
        pairs=plan.states // 2,
        total=plan.powers,
        SIZE=plan.size,
    )
    return powers


def compute_tables(powers: Tensor, start: Tensor, c: Tensor, plan: Plan) -> Tensor:
    """Rows and columns, `(D, rows + columns, P)`, float32, padded with zeros."""
    tables = torch.empty((len(c), plan.rows + plan.columns, plan.size), dtype=torch.float32, device=c.device)
    _tables.launch(
        (len(c), 2),
        powers=powers,
        start=start.contiguous(),
        c=c.contiguous(),
        tables=tables,
        states=plan.states,
        rows=plan.rows,
        columns=plan.columns,
        first=plan.first,
        column_bits=plan.column_bits,
        row_level=plan.row_level,
        row_bits=plan.row_bits,
        total=plan.powers,
        SIZE=plan.size,
    )
    return tables


def multiply_tables(tables: Tensor, taps: Tensor, plan: Plan) -> None:
    """Write the taps `(D, L)`, dense."""
    tile = tile_size(plan)
    _taps.launch(
        (len(taps), triton.cdiv(plan.rows, tile), triton.cdiv(plan.columns, tile)),
        tables=tables,
        taps=taps,
        length=taps.shape[1],
        rows=plan.rows,
        columns=plan.columns,
        stride=plan.stride,
        SIZE=plan.size,
        TILE=tile,
        PRECISION=product_precision(),
    )
