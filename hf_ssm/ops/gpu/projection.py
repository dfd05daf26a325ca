"""Triton kernels of a linear map of a few vectors, with what precedes and follows it, and of a norm.

Dimensions: `B` batch, `X` columns and `Y` rows of a weight, `K` taps of the short convolution, `C` its channels.

For a single position the time is that of reading the weights once. A program of `project` computes a few rows of a
weight for up to 16 vectors, so that there are several programs for each multiprocessor also at usual sizes, and what
precedes and follows a linear map is part of it: the norm of the input, which every program computes again (its inputs
are in the cache), and the short convolution, the softplus of step sizes, or the sum with the residual, which need
nothing but the program's rows. Up to 4 vectors are multiplied without tensor cores, as sums over the columns are
formed only once, at the end; more are padded to 16 for the tensor cores.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.kernels import config, kernel, product_precision
from hf_ssm.ops.gpu.language import dot, silu, softplus

__all__ = ["Projection", "add_norm"]

_NORMS = {"none": 0, "layer": 1, "rms": 2}
_LAYER = tl.constexpr(1)
# Vectors of a program, from which on they are multiplied by tensor cores.
_MANY = tl.constexpr(16)


@triton.jit
def _load_vectors(x, b, c, batch, end, x_row):
    """Numbers `(BATCH, columns)` of the vectors `b` at columns `c` before `end`, zero outside."""
    at = b.to(tl.int64)[:, None] * x_row + c[None, :]
    return tl.load(x + at, mask=(b < batch)[:, None] & (c < end)[None, :], other=0.0).to(tl.float32)


@triton.jit
def _moments(x, b, first, end, batch, x_row, epsilon, NORM: tl.constexpr, BATCH: tl.constexpr, WIDE: tl.constexpr):
    """What a norm subtracts from, and multiplies, the columns from `first` to `end - 1`: two of `(BATCH,)`."""
    mean = tl.zeros([BATCH], tl.float32)
    if NORM == _LAYER:
        for start in tl.range(first, end, WIDE):
            mean += tl.sum(_load_vectors(x, b, start + tl.arange(0, WIDE), batch, end, x_row), 1)
        mean = mean / (end - first)
    square = tl.zeros([BATCH], tl.float32)
    for start in tl.range(first, end, WIDE):
        c = start + tl.arange(0, WIDE)
        value = tl.where((c < end)[None, :], _load_vectors(x, b, c, batch, end, x_row) - mean[:, None], 0.0)
        square += tl.sum(value * value, 1)
    return mean, 1.0 / tl.sqrt(square / (end - first) + epsilon)


@triton.jit
def _product(
    x,
    weight,
    norm_weight,
    norm_bias,
    gate,
    b,
    r,
    batch,
    rows,
    columns,
    x_row,
    gate_row,
    epsilon,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rows `r` of the weight times the normed and gated vectors `b`, `(BATCH, ROWS)`."""
    COLUMNS: tl.constexpr = TILE // (BATCH if BATCH < 4 else 4)
    total = tl.zeros([BATCH, ROWS] if BATCH == _MANY else [BATCH, ROWS, COLUMNS], tl.float32)
    size = columns // GROUPS
    for group in range(GROUPS):
        first = group * size
        end = first + size
        if NORM != 0:
            mean, scale = _moments(x, b, first, end, batch, x_row, epsilon, NORM, BATCH, 4 * TILE // BATCH)
        for start in tl.range(first, end, COLUMNS, num_stages=2):
            c = start + tl.arange(0, COLUMNS)
            inside = (r < rows)[:, None] & (c < end)[None, :]
            w = tl.load(weight + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
            value = _load_vectors(x, b, c, batch, end, x_row)
            if NORM != 0:
                value = (value - mean[:, None]) * scale[:, None]
            if norm_weight is not None:
                value *= tl.load(norm_weight + c, mask=c < end, other=0.0).to(tl.float32)[None, :]
            if norm_bias is not None:
                value += tl.load(norm_bias + c, mask=c < end, other=0.0).to(tl.float32)[None, :]
            if gate is not None:
                value *= silu(_load_vectors(gate, b, c, batch, end, gate_row))
            if BATCH == _MANY:
                total += dot(value.to(w.dtype), tl.trans(w), PRECISION)
            else:
                total += value[:, None, :] * w.to(tl.float32)[None, :, :]
    return total if BATCH == _MANY else tl.sum(total, 2)


@triton.jit
def _convolved(value, weight, bias, mask, past, new_past, b, c, batch, channels, TAPS: tl.constexpr):
    """The step of the convolution with SiLU at channels `c`, and elsewhere the value itself; writes the new past."""
    # Rows that are masked keep their past.
    if mask is not None:
        moves = (tl.load(mask + b, mask=b < batch, other=0) != 0)[:, None]
    here = (c >= 0) & (c < channels)
    keep = (b < batch)[:, None] & here[None, :]
    at = b.to(tl.int64)[:, None] * ((TAPS - 1) * channels) + c[None, :]
    total = value * tl.load(weight + c * TAPS + TAPS - 1, mask=here, other=0.0).to(tl.float32)[None, :]
    if TAPS > 1:
        before = tl.load(past + at, mask=keep, other=0.0).to(tl.float32)
        for i in tl.static_range(TAPS - 1):
            total += before * tl.load(weight + c * TAPS + i, mask=here, other=0.0).to(tl.float32)[None, :]
            after = value
            if i < TAPS - 2:
                after = tl.load(past + at + (i + 1) * channels, mask=keep, other=0.0).to(tl.float32)
            stored = after if mask is None else tl.where(moves, after, before)
            tl.store(new_past + at + i * channels, stored.to(new_past.dtype.element_ty), mask=keep)
            before = after
    if bias is not None:
        total += tl.load(bias + c, mask=here, other=0.0).to(tl.float32)[None, :]
    return tl.where(here[None, :], silu(total), value)


_EXAMPLES = {
    # The in-projection of Mamba for many sequences, and the out-projection of Mamba-2 for few.
    "bf16": {
        **dict.fromkeys(("weight", "norm_weight", "conv_weight", "conv_bias", "past", "new_past"), "*bf16"),
        "mask": "*i8",
        **dict.fromkeys(("bias", "residual", "norm_bias", "gate", "dt_bias"), None),
        **{"first": "i32:16", "channels": "i32:16", "gate_row": 0, "NORM": 2, "GROUPS": 1, "TAPS": 4},
        **{"BATCH": 16, "ROWS": 16},
    },
    "fp32": {
        **dict.fromkeys(("weight", "bias", "residual", "norm_weight", "gate"), "*fp32"),
        **dict.fromkeys(("norm_bias", "conv_weight", "conv_bias", "mask", "past", "new_past", "dt_bias"), None),
        **{"first": 0, "channels": 0, "gate_row": "i32:16", "NORM": 2, "GROUPS": 8, "TAPS": 0},
        **{"BATCH": 4, "ROWS": 4},
    },
}


@kernel(
    configs=[config(TILE=512), config(TILE=256, num_warps=2)],
    key=("rows", "columns", "BATCH"),
    examples={
        label: {
            **dict.fromkeys(("x", "y"), "*fp32"),
            **dict.fromkeys(("rows", "columns", "x_row"), "i32:16"),
            "batch": "i32",
            **dict.fromkeys(("epsilon", "low", "high"), "fp32"),
            "PRECISION": "ieee",
            **example,
        }
        for label, example in _EXAMPLES.items()
    },
)
@triton.jit
def _project(
    x,
    weight,
    bias,
    y,
    residual,
    norm_weight,
    norm_bias,
    gate,
    conv_weight,
    conv_bias,
    mask,
    past,
    new_past,
    dt_bias,
    batch,
    rows,
    columns,
    first,
    channels,
    x_row,
    gate_row,
    epsilon,
    low,
    high,
    NORM: tl.constexpr,
    GROUPS: tl.constexpr,
    TAPS: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write `y = residual + f(W n(x) + bias)`, `(B, Y)`.

    Args:
        x: `(B, X)`, with rows `x_row` apart.
        weight, bias: W `(Y, X)`; `(Y,)` or absent.
        y: Written, `(B, Y)`.
        residual: `(B, Y)` or absent.
        norm_weight, norm_bias: Of the norm n, `(X,)` or absent.
        gate: Its SiLU multiplies the normed `x`; `(B, X)` with rows `gate_row` apart, or absent.
        conv_weight, conv_bias: `(C, K)` of the convolution of rows from `first` to `first + C - 1`; absent: none.
        mask: `(B,)` of bytes, or absent; rows where it is 0 keep the inputs of the convolution.
        past, new_past: Its inputs before (read) and after (written), `(B, K - 1, C)`, oldest first.
        dt_bias: With it, rows after those of the convolution are step sizes: their sum with it is passed through
            softplus and limited to the range from `low` to `high`.
        epsilon: Added to the variance by the norm.
        NORM: 0: none, 1: layer norm, 2: RMS norm.
        GROUPS: Number of groups of columns with norms of their own.
        BATCH: Vectors of a program: 1, 2, 4 or 16.
    """
    b = tl.program_id(1) * BATCH + tl.arange(0, BATCH)
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    value = _product(
        x,
        weight,
        norm_weight,
        norm_bias,
        gate,
        b,
        r,
        batch,
        rows,
        columns,
        x_row,
        gate_row,
        epsilon,
        NORM,
        GROUPS,
        BATCH,
        ROWS,
        TILE,
        PRECISION,
    )
    if bias is not None:
        value += tl.load(bias + r, mask=r < rows, other=0.0).to(tl.float32)[None, :]
    # The outer conditions are decided when the kernel is compiled.
    least = tl.program_id(0) * ROWS
    if conv_weight is not None:
        if (least + ROWS > first) & (least < first + channels):
            value = _convolved(value, conv_weight, conv_bias, mask, past, new_past, b, r - first, batch, channels, TAPS)
    if dt_bias is not None:
        if least + ROWS > first + channels:
            after = r - first - channels
            is_step = (after >= 0) & (r < rows)
            step = softplus(value + tl.load(dt_bias + after, mask=is_step, other=0.0).to(tl.float32)[None, :])
            # Comparisons keep NaN.
            step = tl.where(step < low, low, step)
            value = tl.where(is_step[None, :], tl.where(step > high, high, step), value)
    at = b.to(tl.int64)[:, None] * rows + r[None, :]
    known = (b < batch)[:, None] & (r < rows)[None, :]
    if residual is not None:
        value += tl.load(residual + at, mask=known, other=0.0).to(tl.float32)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=known)


@kernel(
    configs=[config(num_warps=8)],
    examples={
        "fp32": {
            "y": "*fp32",
            **dict.fromkeys(("weight", "bias"), "*fp32"),
            **{"columns": "i32:16", "epsilon": "fp32", "NORM": 1, "WIDE": 4096},
        }
    },
)
@triton.jit
def _normalize(y, weight, bias, columns, epsilon, NORM: tl.constexpr, WIDE: tl.constexpr):
    """The norm of each row of `y` `(B, X)`, in place; `WIDE` is at least `X`."""
    c = tl.arange(0, WIDE)
    inside = c < columns
    y += tl.program_id(0).to(tl.int64) * columns
    value = tl.load(y + c, mask=inside, other=0.0)
    if NORM == _LAYER:
        value = tl.where(inside, value - tl.sum(value, 0) / columns, 0.0)
    value = value / tl.sqrt(tl.sum(value * value, 0) / columns + epsilon)
    if weight is not None:
        value *= tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        value += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + c, value, mask=inside)


def vectors_of_program(batch: int) -> int:
    """How many vectors a program of `project` multiplies."""
    return 16 if batch > 4 else triton.next_power_of_2(max(1, batch))


def rows_of_program(rows: int, batch: int) -> int:
    """How many rows of a weight a program of `project` reads.

    Fewer rows make more programs, and inputs that are read more often from the cache; tensor cores take 16.
    """
    if batch > 4:
        return 16
    return 8 if rows >= 2048 else 4 if rows >= 512 else 2


class Projection:
    """A linear map of a few vectors, with what precedes and follows it; see the arguments of the kernel `project`.

    The arguments that stay the same from one position to the next are collected once.

    Args:
        weight: `(Y, X)`.
        bias: `(Y,)`, default none.
        norm: `"none"`, `"layer"` or `"rms"`.
        **arguments: Further arguments of the kernel.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, norm: str = "none", **arguments: Any):
        absent = ("norm_weight", "norm_bias", "conv_weight", "conv_bias", "dt_bias")
        numbers = dict.fromkeys(("first", "channels", "TAPS"), 0) | {"epsilon": 0.0, "low": 0.0, "high": 0.0}
        self.rows, self.columns = weight.shape
        self.arguments = {
            **dict.fromkeys(absent),
            **numbers,
            **{"weight": weight, "bias": bias, "rows": self.rows, "columns": self.columns},
            **{"NORM": _NORMS[norm], "GROUPS": 1},
            **arguments,
        }

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
        mask: Tensor | None = None,
        past: Tensor | None = None,
        new_past: Tensor | None = None,
    ) -> None:
        """Write `y`, contiguous, from `x`."""
        batch = len(x)
        rows, vectors = rows_of_program(self.rows, batch), vectors_of_program(batch)
        _project.launch(
            (triton.cdiv(self.rows, rows), triton.cdiv(batch, vectors)),
            x=x,
            y=y,
            residual=residual,
            gate=gate,
            mask=mask,
            past=past,
            new_past=new_past,
            batch=batch,
            x_row=x.stride(0),
            gate_row=0 if gate is None else gate.stride(0),
            BATCH=vectors,
            ROWS=rows,
            PRECISION=product_precision(),
            **self.arguments,
        )


def add_norm(y: Tensor, kind: str, epsilon: float, weight: Tensor | None, bias: Tensor | None) -> None:
    """Replace each row of `y` `(B, X)`, float32, by its norm."""
    if kind != "none":
        columns = y.shape[1]
        sizes = {"columns": columns, "WIDE": triton.next_power_of_2(columns)}
        _normalize.launch((len(y),), y=y, weight=weight, bias=bias, epsilon=epsilon, NORM=_NORMS[kind], **sizes)
