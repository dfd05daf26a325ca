"""The long convolution of rows of channels by products of blocks, for short inputs and for kernels of few taps.

Dimensions: `B` rows of the batch, `D` channels, `n` points, `K` taps, `T` outputs of a block, `N` blocks of a program,
`S` inputs of each that are read at once.

A block of `T` outputs from position `t` on is a sum over distances: `y[t + a] = Σ_s Σ_c K_s[a, c] x[t - s S + c]` with
the matrices `K_s[a, c] = k[s S + a - c]` of `T` by `S` taps, and `N` blocks together are products of matrices. A
program computes `N` blocks of one channel, of all rows of the batch in the order of their positions: a tap that is read
serves `N` sums, and distances at which a causal kernel has no inputs are left out. Both gradients are such sums as
well, at the distances `-s`: that of the inputs with the same taps, that of the taps with inputs in the place of taps.

A product of float32 keeps `S` numbers of each operand and output of a thread in registers, which are the limit here;
therefore `S` is small, and a program is one warp of 16 outputs a thread, of which about 20 run on a multiprocessor.
With 16 blocks no column is idle from 512 taps on, where their gradient has as many columns as the taps have blocks.

Products of bfloat16 rows and float32 taps are those of tensor cores, with each tap as the sum of two bfloat16 numbers:
its relative rounding error is 2^-17. All others are products of float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.arguments import dense_rows
from hf_ssm.ops.gpu.kernels import config, kernel, product_precision
from hf_ssm.ops.gpu.language import dot
from hf_ssm.ops.long_conv.fft import fft_length

__all__ = ["Blocks", "takes_blocks"]

# Taps for each point of the transforms up to which blocks are taken. Transforms move about 36 bytes a point more than
# blocks: 11 ps at 3.35 TB/s. A product of float32 takes 0.03 ps at 67 TFLOPS, so that both ways take the same time at
# 360 taps a point; blocks are taken to reach 70 % of that rate. Two products of bfloat16 take 0.004 ps at 989 TFLOPS,
# of which small blocks are taken to reach a fifth. With as many taps as positions, these are 512 and 1024 positions.
_TAPS_PER_POINT = {torch.float32: 256, torch.bfloat16: 512}
# Programs for the gradient of the taps, at least, where the batch is large enough: parts of it are summed by torch.
_FEWEST_PROGRAMS = 512
_ALIGNMENT = 32

_EXAMPLE = {
    "back": None,
    "out": "*fp32",
    **dict.fromkeys(
        ("signal_batch", "signal_channel", "ahead_batch", "ahead_channel", "out_batch", "out_channel"), "i32:16"
    ),
    **dict.fromkeys(("signal_count", "out_count", "before"), "i32:16"),
    **dict.fromkeys(("ahead_count", "back_count", "batch", "rows", "part_rows"), "i32"),
    "back_channel": 0,
    "SIGN": 1,
    "PRECISION": "ieee",
}


@triton.jit
def _load_weights(ahead, back, lag, ahead_count, back_count):
    """The taps at lags of any sign, zero where there are none."""
    weight = tl.load(ahead + lag, mask=(lag >= 0) & (lag < ahead_count), other=0.0)
    if back is not None:
        weight += tl.load(back - 1 - lag, mask=(lag < 0) & (lag >= -back_count), other=0.0)
    return weight


@triton.jit
def _product(signal, weight, PRECISION: tl.constexpr):
    """Their matrix product; a float32 weight is the sum of two numbers of the type of a narrower signal."""
    if weight.dtype == signal.dtype:
        return dot(signal, weight, PRECISION)
    high = weight.to(signal.dtype)
    low = (weight - high.to(tl.float32)).to(signal.dtype)
    return dot(signal, high, PRECISION) + dot(signal, low, PRECISION)


@kernel(
    configs=[
        config(BLOCK=32, STEP=16, COLUMNS=16, num_warps=1, num_stages=1),
        config(BLOCK=64, STEP=16, COLUMNS=64, num_warps=8),
    ],
    key=("signal_count", "out_count", "batch"),
    examples={
        "bf16": {**_EXAMPLE, "signals": "*bf16", "ahead": "*fp32"},
        "fp32": {**_EXAMPLE, "signals": "*fp32", "ahead": "*fp32", "back": "*fp32", "back_channel": "i32:16"},
    },
)
@triton.jit
def _convolve_blocks(
    signals,
    ahead,
    back,
    out,
    signal_batch,
    signal_channel,
    signal_count,
    ahead_batch,
    ahead_channel,
    ahead_count,
    back_channel,
    back_count,
    out_batch,
    out_channel,
    out_count,
    before,
    batch,
    rows,
    part_rows,
    SIGN: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write `out[t + before] = Σ_m weight[m] signals[t - SIGN m]` for `t >= -before`, zero outside the signals.

    Program axes: blocks of all rows of the batch, channels, parts of the rows that are summed.

    Args:
        signals: `(rows, D, signal_count)` with strides.
        ahead: Weights of lags 0, 1, ...: `(D, ahead_count)`, or one such tensor for each row.
        back: Weights of lags -1, -2, ...: `(D, back_count)`, or absent.
        out: `(batch, D, out_count)` or `(parts, D, out_count)`, float32.
        before: Outputs before position 0, a multiple of STEP.
        batch: Rows with outputs of their own; 1 if rows are summed.
        rows: Rows that are summed, in parts of `part_rows`; 1 otherwise.
    """
    a, c = tl.arange(0, BLOCK), tl.arange(0, STEP)
    n = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channel, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    blocks = (out_count + BLOCK - 1) // BLOCK
    is_known = n < blocks * batch
    row, begin = n % batch, n // batch * BLOCK
    # Distances of blocks at which there are weights and, from the first and from the last output, signals.
    lowest = tl.program_id(0) * COLUMNS // batch
    highest = tl.minimum((tl.program_id(0) * COLUMNS + COLUMNS - 1) // batch, blocks - 1)
    # Quotients are rounded towards zero: of negative numbers, only multiples are divided.
    to_first = (highest * BLOCK - before) // STEP
    to_last = (signal_count - 1 + before - lowest * BLOCK) // STEP
    if SIGN == 1:
        start = tl.maximum(-((back_count + BLOCK - 1) // STEP), -to_last)
        stop = tl.minimum((ahead_count + STEP - 2) // STEP, to_first)
    else:
        start = tl.maximum(-((back_count + STEP - 1) // STEP), -to_first)
        stop = tl.minimum((ahead_count + BLOCK - 2) // STEP, to_last)
    signals += channel * signal_channel + (part * part_rows).to(tl.int64) * signal_batch
    ahead += channel * ahead_channel + (part * part_rows).to(tl.int64) * ahead_batch
    if back is not None:
        back += channel * back_channel
    lags = SIGN * (a[None, :] - c[:, None])
    total = tl.zeros([COLUMNS, BLOCK], tl.float32)
    for _ in range(tl.minimum(part_rows, rows - part * part_rows)):
        for s in range(start, stop + 1):
            weight = _load_weights(ahead, back, s * STEP + lags, ahead_count, back_count)
            at = (begin - before - SIGN * s * STEP)[:, None] + c[None, :]
            inside = is_known[:, None] & (at >= 0) & (at < signal_count)
            signal = tl.load(signals + (row * signal_batch)[:, None] + at, mask=inside, other=0.0)
            total += _product(signal, weight, PRECISION)
        signals += signal_batch
        ahead += ahead_batch
    to = begin[:, None] + a[None, :]
    out += channel * out_channel + part.to(tl.int64) * out_batch
    # Columns beyond the last block are beyond the last output.
    tl.store(out + (row * out_batch)[:, None] + to, total, mask=to < out_count)


def takes_blocks(length: int, count: int, back_count: int, dtype: torch.dtype) -> bool:
    """Whether products of blocks are taken to need less time than transforms."""
    points = fft_length(length, count, back_count)
    return length * (count + back_count) <= _TAPS_PER_POINT.get(dtype, 256) * points


class Blocks:
    """Convolution of rows by products of blocks.

    Attributes:
        points: Points of a row.
        dtype: Type of the rows: bfloat16 for inputs of this type, and float32 for others, since float16 cannot hold
            small taps.
    """

    def __init__(self, length: int, count: int, back_count: int, dtype: torch.dtype):
        self.points = triton.cdiv(length, _ALIGNMENT) * _ALIGNMENT
        self.length, self.count, self.back_count = length, count, back_count
        self.dtype = dtype if dtype == torch.bfloat16 else torch.float32

    def prepare(self, taps: Tensor, back: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Taps of both sides `(D, K)`, each row dense."""
        return dense_rows(taps), None if back is None else dense_rows(back)

    def convolve(self, rows: Tensor, weights: tuple[Tensor, Tensor | None], sign: int = 1) -> Tensor:
        """The convolution of rows `(B, D, n)` with taps of both sides; with a `sign` of -1 both are exchanged."""
        out = torch.empty(rows.shape, dtype=torch.float32, device=rows.device)
        taps, back = weights
        self._launch(rows, taps.unsqueeze(0), back, out, 0, sign)
        return out

    def differentiate(
        self, grad: Tensor, inputs: Tensor | None, weights: tuple[Tensor, Tensor | None] | None, total: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the inputs, and of the taps of both sides in one tensor; see `Transforms.differentiate`."""
        if inputs is not None:
            added = self._correlate(grad, inputs)
            total = added if total is None else total.add_(added)
        return None if weights is None else self.convolve(grad, weights, sign=-1), total

    def gradients(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the taps of both sides, from the `total` of all rows."""
        before = self._before()
        return total[:, before : before + self.count], total[:, before - self.back_count : before].flip(-1)

    def _before(self) -> int:
        return triton.cdiv(self.back_count, _ALIGNMENT) * _ALIGNMENT

    def _correlate(self, grad: Tensor, inputs: Tensor) -> Tensor:
        """`out[d, m + before] = Σ_{b, t} grad[b, d, t + m] inputs[b, d, t]`, for lags of both signs."""
        batch, channels, _ = grad.shape
        before = self._before()
        width = before + triton.cdiv(self.count, _ALIGNMENT) * _ALIGNMENT
        part_rows = triton.cdiv(batch, min(batch, triton.cdiv(_FEWEST_PROGRAMS, channels)))
        parts = triton.cdiv(batch, part_rows)
        out = torch.empty((parts, channels, width), dtype=torch.float32, device=grad.device)
        self._launch(grad, inputs[..., : self.length], None, out, before, -1, part_rows)
        return out[0] if len(out) == 1 else out.sum(0)

    def _launch(
        self,
        signals: Tensor,
        ahead: Tensor,
        back: Tensor | None,
        out: Tensor,
        before: int,
        sign: int,
        part_rows: int = 0,
    ) -> None:
        """Launch for rows with outputs of their own, or else, with `part_rows`, for parts of rows that are summed."""
        batch, rows, parts = (1, len(signals), len(out)) if part_rows else (len(signals), 1, 1)
        _convolve_blocks.launch(
            lambda meta: (
                triton.cdiv(triton.cdiv(out.shape[2], meta["BLOCK"]) * batch, meta["COLUMNS"]),
                out.shape[1],
                parts,
            ),
            signals=signals,
            ahead=ahead,
            back=back,
            out=out,
            signal_batch=signals.stride(0),
            signal_channel=signals.stride(1),
            signal_count=signals.shape[2],
            ahead_batch=ahead.stride(0),
            ahead_channel=ahead.stride(1),
            ahead_count=ahead.shape[2],
            back_channel=0 if back is None else back.stride(0),
            back_count=0 if back is None else back.shape[1],
            out_batch=out.stride(0),
            out_channel=out.stride(1),
            out_count=out.shape[2],
            before=before,
            batch=batch,
            rows=rows,
            part_rows=max(1, part_rows),
            SIGN=sign,
            PRECISION=product_precision(),
        )
