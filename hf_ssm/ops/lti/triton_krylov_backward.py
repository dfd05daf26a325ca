"""Backward of `triton_krylov.py`; dimensions as there.

The powers and the tables are computed again. Then, in five launches:

- `table_gradients`, for the rows and for the columns: tiles of the product of the gradient of the taps and the other
  table, without a padded copy of the gradient;
- `tables_backward`: two programs for each channel reverse the steps of `tables`, and write the gradients of the powers
  that the tables are multiplied by;
- `squares_backward`: a program for each channel reverses the squarings, the last first;
- `start_backward`: from the gradient of the first power to those of the start.

Gradients of powers are float64, `8 D E P²` bytes, since products of float64 matrices fit the registers, and run on
tensor cores, where exact products of float32 do not.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.kernels import config, kernel, product_precision
from hf_ssm.ops.gpu.language import dot
from hf_ssm.ops.lti.krylov import Start
from hf_ssm.ops.lti.triton_krylov import (
    BLOCK,
    Plan,
    compute_powers,
    compute_tables,
    dot64,
    load_rows,
    power_places,
    program_steps,
)

__all__ = ["start_gradients"]


@kernel(
    configs=[config(TILE=32, num_warps=4), config(TILE=64, num_warps=8)],
    key=("length", "stride"),
    examples={
        label: {
            **dict.fromkeys(("grad", "tables", "grad_tables"), "*fp32"),
            "length": "i32",
            **dict.fromkeys(("grad_row", "rows", "columns", "stride"), "i32:16"),
            "OF_ROWS": label == "rows",
            "SIZE": 64,
            "PRECISION": "ieee",
        }
        for label in ("rows", "columns")
    },
)
@triton.jit
def _table_gradients(
    grad,
    tables,
    grad_tables,
    grad_row,
    length,
    rows,
    columns,
    stride,
    OF_ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the rows or the columns of grad_tables `(D, rows + columns, P)`. Programs: `(D, rows or columns / TILE)`.

    They are the product of the gradient of the taps, `(D, L)` with a stride of the rows, and the other part of tables.
    """
    channel = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    grad += channel * grad_row
    first = channel * (rows + columns) * SIZE
    table = tables + first + (rows * SIZE if OF_ROWS else 0)
    target = grad_tables + first + (0 if OF_ROWS else rows * SIZE)
    total = tl.zeros([TILE, SIZE], tl.float32)
    for start in range(0, columns if OF_ROWS else rows, BLOCK):
        k = start + tl.arange(0, BLOCK)
        if OF_ROWS:
            tap = at[:, None] * stride + k[None, :]
            g = tl.load(grad + tap, mask=(k < stride)[None, :] & (tap < length), other=0.0)
        else:
            # Rows of the gradient as they lie in memory.
            tap = k[:, None] * stride + at[None, :]
            g = tl.trans(tl.load(grad + tap, mask=(at < stride)[None, :] & (tap < length), other=0.0))
        total += dot(g, load_rows(table, k, SIZE), PRECISION)
    valid = (at < (rows if OF_ROWS else columns))[:, None]
    tl.store(target + at[:, None] * SIZE + tl.arange(0, SIZE)[None, :], total, mask=valid)


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    examples={
        label: {
            **dict.fromkeys(("powers", "grad_powers", "grad_first"), "*fp64"),
            **dict.fromkeys(("tables", "grad_tables"), "*fp32"),
            **dict.fromkeys(("first", "column_bits", "row_level", "row_bits", "total"), "i32"),
            **dict.fromkeys(("rows", "columns"), "i32:16"),
            "WITH_POWERS": label == "all",
            "SIZE": 64,
        }
        for label in ("all", "vectors")
    },
)
@triton.jit
def _tables_backward(
    powers,
    tables,
    grad_tables,
    grad_powers,
    grad_first,
    rows,
    columns,
    first,
    column_bits,
    row_level,
    row_bits,
    total,
    WITH_POWERS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Reverse the steps of `_tables`, the last first. Programs: `(D, 2)`, for the rows and for the columns.

    Args:
        grad_tables: Gradients of the tables; read, and overwritten by sums over the following blocks.
        grad_powers: Written if WITH_POWERS, `(D, E, P, P)`: the gradients of the powers that a table is multiplied by;
            for other powers nothing is written.
        grad_first: Written, `(D, 2, 16, P)`: the gradients of what the rows of the first block begin with.
    """
    channel = tl.program_id(0).to(tl.int64)
    of_columns, count, begin, end, lowest = program_steps(rows, columns, first, column_bits, row_level, row_bits)
    powers += channel * total * SIZE * SIZE
    grad_powers += channel * total * SIZE * SIZE
    table_start = (channel * (rows + columns) + tl.where(of_columns, rows, 0)) * SIZE
    tables += table_start
    grad_tables += table_start
    j = tl.arange(0, BLOCK)
    at = j[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    carry = tl.load(grad_tables + (count - BLOCK) * SIZE + at).to(tl.float64)
    if count > BLOCK:
        level = lowest + end - begin
        power = tl.load(powers + power_places(level, of_columns == 0, SIZE))
        for after in range(BLOCK, count, BLOCK):
            place = (count - BLOCK - after) * SIZE + at
            carry = dot64(carry, power) + tl.load(grad_tables + place)
            if WITH_POWERS:
                tl.store(grad_tables + place, carry.to(tl.float32))
        if WITH_POWERS:
            # Other threads of the program read what was written: the sum does not fit the registers beside the power.
            tl.debug_barrier()
            grad = tl.zeros([SIZE, SIZE], tl.float64)
            for place in range(BLOCK, count, BLOCK):
                value = load_rows(tables, place + j - BLOCK, SIZE).to(tl.float64)
                grad += dot64(tl.trans(value), load_rows(grad_tables, place + j, SIZE).to(tl.float64))
            tl.store(grad_powers + power_places(level, of_columns, SIZE), grad)
    for step in range(1, end - begin + 1):
        bit = end - step
        has_digit = (((j >> bit) & 1) != 0)[:, None]
        level = lowest + bit - begin
        if WITH_POWERS:
            # What this digit multiplies: the row without it and the higher ones.
            value = load_rows(tables, j & ((1 << bit) - 1), SIZE).to(tl.float64)
            grad = dot64(tl.trans(value), tl.where(has_digit, carry, 0.0))
            tl.store(grad_powers + power_places(level, of_columns, SIZE), grad)
        moved = dot64(carry, tl.load(powers + power_places(level, of_columns == 0, SIZE)))
        carry = tl.where(has_digit, moved, carry)
    tl.store(grad_first + (channel * 2 + tl.program_id(1)) * BLOCK * SIZE + at, carry)


@kernel(
    configs=[config(BLOCK_K=16, num_warps=8, num_stages=1)],
    examples={
        "fp64": {
            **dict.fromkeys(("powers", "grad_powers"), "*fp64"),
            **dict.fromkeys(("low", "high", "total"), "i32"),
            "SIZE": 64,
        }
    },
)
@triton.jit
def _squares_backward(powers, grad_powers, low, high, total, SIZE: tl.constexpr, BLOCK_K: tl.constexpr):
    """Add to grad_powers `(D, E, P, P)`, the gradients of the powers, what comes from their squares. Programs: `(D)`.

    Those of the powers from `low` to `high - 1` are written, not added to.
    """
    first = tl.program_id(0).to(tl.int64) * total * SIZE * SIZE
    powers += first
    grad_powers += first
    n, k = tl.arange(0, SIZE), tl.arange(0, BLOCK_K)
    at = n[:, None] * SIZE + n[None, :]
    for step in range(2, total + 1):
        level = total - step
        power, grad = powers + level * SIZE * SIZE, grad_powers + level * SIZE * SIZE
        square = grad + SIZE * SIZE
        value = tl.load(grad + at, mask=(level < low) | (level >= high), other=0.0)
        # The gradient of the square comes back from the cache, a part at a time: the registers do not hold all of it
        # in the layouts of both products.
        for start in range(0, SIZE, BLOCK_K):
            i = start + k
            left = tl.load(square + n[:, None] * SIZE + i[None, :])
            value += dot64(left, tl.load(power + n[None, :] * SIZE + i[:, None]))
            right = tl.load(square + i[:, None] * SIZE + n[None, :])
            value += dot64(tl.load(power + i[None, :] * SIZE + n[:, None]), right)
        tl.store(grad + at, value)
        tl.debug_barrier()


@kernel(
    configs=[config(num_warps=8, num_stages=1)],
    examples={
        "fp64": {
            **dict.fromkeys(("grad_powers", "outer", "inner"), "*fp64"),
            **dict.fromkeys(("grad_delta", "grad_outer", "grad_inner"), "*fp64"),
            **dict.fromkeys(("rank", "pairs", "total"), "i32"),
            "SIZE": 64,
        }
    },
)
@triton.jit
def _start_backward(
    grad_powers, outer, inner, grad_delta, grad_outer, grad_inner, rank, pairs, total, SIZE: tl.constexpr
):
    """Write the gradients of `Start`: delta `(D, H, 2)`, outer and inner `(D, K, N)`. Programs: `(D, K / 16, 2)`.

    Args:
        grad_powers: `(D, E, P, P)`, of which the first power's gradient is read.
    """
    channel, states = tl.program_id(0).to(tl.int64), 2 * pairs
    grad_powers += channel * total * SIZE * SIZE
    n = tl.arange(0, SIZE)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    of_outer = tl.program_id(2) == 0
    place = channel * rank * states + k[:, None] * states + n[None, :]
    valid = (k < rank)[:, None] & (n < states)[None, :]
    value = tl.load(inner + place, mask=valid & of_outer, other=0.0)
    value += tl.load(outer + place, mask=valid & (of_outer == 0), other=0.0)
    value = dot64(value, tl.load(grad_powers + power_places(0, of_outer, SIZE)))
    tl.store(grad_outer + place, value, mask=valid & of_outer)
    tl.store(grad_inner + place, value, mask=valid & (of_outer == 0))
    here = (n < pairs) & (tl.program_id(1) == 0) & of_outer
    upper, lower = grad_powers + n * (SIZE + 1), grad_powers + pairs * SIZE + n * (SIZE + 1)
    real = tl.load(upper, mask=here, other=0.0) + tl.load(lower + pairs, mask=here, other=0.0)
    imag = tl.load(lower, mask=here, other=0.0) - tl.load(upper + pairs, mask=here, other=0.0)
    tl.store(grad_delta + channel * states + 2 * n, real, mask=here)
    tl.store(grad_delta + channel * states + 2 * n + 1, imag, mask=here)


def _tiles(channels: int, count: int, meta: Mapping[str, Any]) -> tuple[int, int]:
    return channels, triton.cdiv(count, meta["TILE"])


def _reverse_tables(grad: Tensor, powers: Tensor, tables: Tensor, plan: Plan, grad_powers: Tensor | None) -> Tensor:
    """The gradients of the first vectors `(D, 2, 16, P)`, and those of the powers in `grad_powers`."""
    channels, length = grad.shape
    grad_tables = torch.empty_like(tables)
    for of_rows in (True, False):
        _table_gradients.launch(
            partial(_tiles, channels, plan.rows if of_rows else plan.columns),
            grad=grad,
            tables=tables,
            grad_tables=grad_tables,
            grad_row=grad.stride(0),
            length=length,
            rows=plan.rows,
            columns=plan.columns,
            stride=plan.stride,
            OF_ROWS=of_rows,
            SIZE=plan.size,
            PRECISION=product_precision(),
        )
    grad_first = powers.new_empty(channels, 2, 16, plan.size)
    _tables_backward.launch(
        (channels, 2),
        powers=powers,
        tables=tables,
        grad_tables=grad_tables,
        grad_powers=powers if grad_powers is None else grad_powers,
        grad_first=grad_first,
        rows=plan.rows,
        columns=plan.columns,
        first=plan.first,
        column_bits=plan.column_bits,
        row_level=plan.row_level,
        row_bits=plan.row_bits,
        total=plan.powers,
        WITH_POWERS=grad_powers is not None,
        SIZE=plan.size,
    )
    return grad_first


def start_gradients(
    grad: Tensor, start: Start, c: Tensor, plan: Plan, with_powers: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor, Tensor]:
    """Gradients of `delta`, `outer`, `inner` (`None` unless `with_powers`), of the columns of the start and of `c`."""
    channels, rank, states = start.outer.shape
    powers = compute_powers(start, plan)
    tables = compute_tables(powers, start.columns, c, plan)
    grad_powers = torch.empty_like(powers) if with_powers else None
    first = _reverse_tables(grad, powers, tables, plan, grad_powers)[..., :states]
    grad_c, grad_columns = first[:, 0].sum(1), first[:, 1].unflatten(1, (-1, start.columns.shape[1])).sum(1)
    if grad_powers is None:
        return None, None, None, grad_columns, grad_c
    if plan.powers == 0:
        return torch.zeros_like(start.delta), *(torch.zeros_like(start.outer) for _ in range(2)), grad_columns, grad_c
    # Powers that no table is multiplied by.
    low = min(plan.column_bits - plan.first + (plan.columns > 16), plan.row_level)
    _squares_backward.launch(
        (channels,),
        powers=powers,
        grad_powers=grad_powers,
        low=low,
        high=plan.row_level,
        total=plan.powers,
        SIZE=plan.size,
    )
    grad_delta = torch.empty((channels, states // 2), dtype=torch.complex128, device=grad.device)
    grad_outer, grad_inner = (powers.new_empty(start.outer.shape) for _ in range(2))
    _start_backward.launch(
        (channels, triton.cdiv(rank, 16), 2),
        grad_powers=grad_powers,
        outer=start.outer.contiguous(),
        inner=start.inner.contiguous(),
        grad_delta=torch.view_as_real(grad_delta),
        grad_outer=grad_outer,
        grad_inner=grad_inner,
        rank=rank,
        pairs=states // 2,
        total=plan.powers,
        SIZE=plan.size,
    )
    return grad_delta, grad_outer, grad_inner, grad_columns, grad_c
