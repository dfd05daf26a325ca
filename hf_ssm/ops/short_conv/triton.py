"""Short depth-wise convolution with SiLU by Triton kernels.

Dimensions: `B` batch, `L` length, `D` channels, `K` taps. A program computes a tile of positions and channels of one
row of the batch; neighbouring positions come from the cache.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.context import NAMESPACE, is_plain_call
from hf_ssm.ops.gpu.arguments import as_bytes, dense_rows, with_strides
from hf_ssm.ops.gpu.kernels import config, kernel, runs_kernels
from hf_ssm.ops.gpu.language import silu, silu_slope
from hf_ssm.ops.short_conv.operators import ConvInputs, short_conv_operator
from hf_ssm.ops.short_conv.reference import taps_before

__all__ = [
    "extend_triton",
    "short_conv_triton",
    "supports_extend",
    "supports_short_conv",
]

_EXAMPLES = {
    dtype: {
        **dict.fromkeys(("u", "weight", "bias"), f"*{dtype}"),
        "mask": "*i8",
        **dict.fromkeys(("u_batch", "u_row", "channels"), "i32:16"),
        "length": "i32",
        "TAPS": 4,
        "LEFT": 3,
        "SILU": True,
    }
    for dtype in ("bf16", "fp32")
}


@triton.jit
def _load_inputs(u, mask, past, at, d, length, channels, u_row, past_row, LEFT: tl.constexpr):
    """Inputs `(BLOCK_L, BLOCK_D)` at positions `at`, zero where masked or outside; before 0 those of `past`."""
    inside = (at >= 0) & (at < length)
    if mask is not None:
        inside = inside & (tl.load(mask + at, mask=inside, other=0) != 0)
    valid = inside[:, None] & (d < channels)[None, :]
    # Offsets in a row of a long sequence exceed 32 bits.
    value = tl.load(u + at.to(tl.int64)[:, None] * u_row + d[None, :], mask=valid, other=0.0).to(tl.float32)
    if past is not None:
        before = ((at >= -LEFT) & (at < 0))[:, None] & (d < channels)[None, :]
        value += tl.load(past + (at + LEFT)[:, None] * past_row + d[None, :], mask=before, other=0.0).to(tl.float32)
    return value


@triton.jit
def _convolve_at(
    u, weight, bias, mask, past, t, d, length, channels, u_row, past_row, TAPS: tl.constexpr, LEFT: tl.constexpr
):
    """`Σ_i weight[i] u[t - LEFT + i] + bias` at positions `t` and channels `d`, in float32."""
    total = tl.zeros([t.shape[0], d.shape[0]], tl.float32)
    if bias is not None:
        total += tl.load(bias + d, mask=d < channels, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(TAPS):
        tap = tl.load(weight + d * TAPS + i, mask=d < channels, other=0.0).to(tl.float32)
        total += tap[None, :] * _load_inputs(u, mask, past, t - LEFT + i, d, length, channels, u_row, past_row, LEFT)
    return total


@kernel(
    configs=[config(BLOCK_L=32, BLOCK_D=64), config(BLOCK_L=64, BLOCK_D=32), config(BLOCK_L=16, BLOCK_D=128)],
    key=("length", "channels"),
    examples={
        dtype: {**example, "past": None, "y": f"*{dtype}", "past_batch": 0, "past_row": 0}
        for dtype, example in _EXAMPLES.items()
    },
)
@triton.jit
def _convolve(
    u,
    weight,
    bias,
    mask,
    past,
    y,
    u_batch,
    u_row,
    past_batch,
    past_row,
    length,
    channels,
    TAPS: tl.constexpr,
    LEFT: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write `y` `(B, L, D)`; u `(B, L, D)` and past `(B, LEFT, D)` with strides, weight `(D, TAPS)`, mask `(B, L)`."""
    t = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = tl.program_id(2).to(tl.int64)
    u += row * u_batch
    y += row * length * channels
    if mask is not None:
        mask += row * length
    if past is not None:
        past += row * past_batch
    value = _convolve_at(u, weight, bias, mask, past, t, d, length, channels, u_row, past_row, TAPS, LEFT)
    if SILU:
        value = silu(value)
    inside = t < length
    if mask is not None:
        value = tl.where((tl.load(mask + t, mask=inside, other=0) != 0)[:, None], value, 0.0)
    keep = inside[:, None] & (d < channels)[None, :]
    tl.store(y + t.to(tl.int64)[:, None] * channels + d[None, :], value.to(y.dtype.element_ty), mask=keep)


@kernel(
    configs=[config(BLOCK_L=32, BLOCK_D=32), config(BLOCK_L=64, BLOCK_D=16)],
    key=("length", "channels"),
    zeroed=("sums",),
    examples={
        dtype: {
            **example,
            **dict.fromkeys(("grad", "grad_u"), f"*{dtype}"),
            "sums": "*fp32",
            **dict.fromkeys(("grad_batch", "grad_row"), "i32:16"),
        }
        for dtype, example in _EXAMPLES.items()
    },
)
@triton.jit
def _convolve_backward(
    grad,
    u,
    weight,
    bias,
    mask,
    grad_u,
    sums,
    grad_batch,
    grad_row,
    u_batch,
    u_row,
    length,
    channels,
    TAPS: tl.constexpr,
    LEFT: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the gradients of u, and the sums over a tile for those of the weights and the bias.

    The outputs that read the input at `t` are at `t + LEFT - i`, of which each input of SiLU is computed again.

    Args:
        grad: Gradient of y, `(B, L, D)` with strides, as `u`.
        grad_u: `(B, L, D)` or absent.
        sums: `(B, number of tiles, TAPS + 1, D)`, float32, the bias last; or absent.
    """
    tile = tl.program_id(0)
    t = tile * BLOCK_L + tl.arange(0, BLOCK_L)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = tl.program_id(2).to(tl.int64)
    u += row * u_batch
    grad += row * grad_batch
    if mask is not None:
        mask += row * length
    # Inputs from TAPS - 1 before to TAPS - 1 after each position: each output that reads it needs TAPS of them.
    inputs = ()
    for shift in tl.static_range(2 * TAPS - 1):
        at = t + shift - (TAPS - 1)
        value = _load_inputs(u, mask, None, at, d, length, channels, u_row, 0, LEFT)
        inputs = inputs + (value,)  # type: ignore[assignment]
    here = inputs[TAPS - 1]  # type: ignore[var-annotated]
    weights = ()
    for i in tl.static_range(TAPS):
        tap = tl.load(weight + d * TAPS + i, mask=d < channels, other=0.0).to(tl.float32)
        weights = weights + (tap[None, :],)  # type: ignore[assignment]
    offset = tl.zeros([1, BLOCK_D], tl.float32)
    if SILU:
        if bias is not None:
            offset += tl.load(bias + d, mask=d < channels, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros([BLOCK_L, BLOCK_D], tl.float32)
    place = sums
    if sums is not None:
        place = sums + (row * tl.num_programs(0) + tile) * (TAPS + 1) * channels + d
    for i in tl.static_range(TAPS):
        slope = _load_inputs(grad, mask, None, t + LEFT - i, d, length, channels, grad_row, 0, LEFT)
        if SILU:
            before = tl.zeros([BLOCK_L, BLOCK_D], tl.float32) + offset
            for j in tl.static_range(TAPS):
                before += weights[j] * inputs[j - i + TAPS - 1]
            slope *= silu_slope(before)
        total += weights[i] * slope
        if sums is not None:
            tl.store(place + i * channels, tl.sum(slope * here, 0), mask=d < channels)
            if i == LEFT:
                tl.store(place + TAPS * channels, tl.sum(slope, 0), mask=d < channels)
    if grad_u is not None:
        keep = (t < length)[:, None] & (d < channels)[None, :]
        if mask is not None:
            total = tl.where((tl.load(mask + t, mask=t < length, other=0) != 0)[:, None], total, 0.0)
        grad_u += row * length * channels
        tl.store(grad_u + t.to(tl.int64)[:, None] * channels + d[None, :], total.to(grad_u.dtype.element_ty), mask=keep)


_AXES = ("batch", "row")


def _forward(
    u: Tensor, weight: Tensor, bias: Tensor | None, mask: Tensor | None, past: Tensor | None, left: int, silu: bool
) -> Tensor:
    batch, length, channels = u.shape
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    _convolve.launch(
        lambda meta: (triton.cdiv(length, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        **with_strides(_AXES, u=dense_rows(u), past=None if past is None else dense_rows(past)),
        weight=weight.contiguous(),
        bias=None if bias is None else bias.contiguous(),
        mask=as_bytes(mask),
        y=y,
        length=length,
        channels=channels,
        TAPS=weight.shape[1],
        LEFT=left,
        SILU=silu,
    )
    return y


def _run_forward(args: ConvInputs, left: int, silu: bool) -> Tensor:
    return _forward(*args, None, left, silu)


def _run_backward(
    grad: Tensor, args: ConvInputs, left: int, silu: bool, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    (u, weight, bias, mask), needs_u, needs_sums = args, wanted[0], any(wanted[1:])
    batch, length, channels = u.shape
    taps = weight.shape[1]
    grad_u = torch.empty(u.shape if needs_u else (0,), dtype=u.dtype, device=u.device)
    # One row of sums for each tile of the smallest configuration; those of larger tiles leave rows of zeros.
    tiles = triton.cdiv(length, min(c.kwargs["BLOCK_L"] for c in _convolve_backward.configs))
    shape = (batch, tiles, taps + 1, channels) if needs_sums else (0,)
    sums = torch.zeros(shape, dtype=torch.float32, device=u.device)
    _convolve_backward.launch(
        lambda meta: (triton.cdiv(length, meta["BLOCK_L"]), triton.cdiv(channels, meta["BLOCK_D"]), batch),
        **with_strides(_AXES, grad=dense_rows(grad), u=dense_rows(u)),
        weight=weight.contiguous(),
        bias=None if bias is None else bias.contiguous(),
        mask=as_bytes(mask),
        grad_u=grad_u if needs_u else None,
        sums=sums if needs_sums else None,
        length=length,
        channels=channels,
        TAPS=taps,
        LEFT=left,
        SILU=silu,
    )
    if not needs_sums:
        return grad_u, None, None, None
    total = sums.sum((0, 1))
    grad_weight = total[:-1].t().to(weight.dtype).contiguous()
    return grad_u, grad_weight, total[-1].to((weight if bias is None else bias).dtype, copy=True), None


_operator, _ = short_conv_operator(f"{NAMESPACE}::short_conv_triton", forward=_run_forward, backward=_run_backward)


def supports_short_conv(
    u: Tensor, weight: Tensor, bias: Tensor | None, bidirectional: bool, activation: str | None, mask: Tensor | None
) -> bool:
    return runs_kernels(u, weight, bias)


def short_conv_triton(
    u: Tensor, weight: Tensor, bias: Tensor | None, bidirectional: bool, activation: str | None, mask: Tensor | None
) -> Tensor:
    """`short_conv`; the rows of `u` need not be contiguous, as in a slice of a wider projection."""
    y: Tensor = _operator(u, weight, bias, mask, taps_before(weight.shape[1], bidirectional), activation is not None)
    return y


def supports_extend(
    u: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, mask: Tensor | None
) -> bool:
    """Values only: gradients through a chunk are those of the convolution of the joined inputs."""
    return runs_kernels(u, past, weight, bias) and is_plain_call(u, past, weight, bias, mask)


def extend_triton(
    u: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, mask: Tensor | None
) -> Tensor:
    """The causal convolution of `u` `(B, L, D)` after the inputs `past` `(B, K - 1, D)`, without gradients."""
    return _forward(u, weight, bias, mask, past, weight.shape[1] - 1, activation is not None)
