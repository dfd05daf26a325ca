"""Triton kernels of one position: the step of the selective scan, and that of all blocks of a Mamba model.

Dimensions: `B` batch, `H` hidden size, `D` channels of the scan, `N` states, `R` rank of the step projection, `K` taps.

A block takes four launches, between which all its numbers are needed: norm, in-projection and short convolution;
projection to step sizes, B and C; `update`, by blocks of channels; out-projection and residual. `update` reads the
state once and writes it once, and computes the step sizes of its channels from the rank-R vector, so that only the
`D R` weights of the step projection are added to its traffic.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.context import is_plain_call
from hf_ssm.ops.decoding import NO_FINAL_NORM, FinalNorm
from hf_ssm.ops.gpu.decoding import BlocksOnGPU, dense, held, in_projection, supports_blocks
from hf_ssm.ops.gpu.kernels import config, kernel, runs_kernels
from hf_ssm.ops.gpu.language import exp, silu, softplus
from hf_ssm.ops.gpu.projection import Projection
from hf_ssm.ops.selective_scan.arguments import ScanTensors
from hf_ssm.ops.selective_scan.decoding import BlockOptions, BlockWeights, block_shapes

__all__ = [
    "TritonBlocksStep",
    "scan_step_triton",
    "supports_blocks",
    "supports_scan_step",
]


@triton.jit
def _step_sizes(
    delta,
    weight,
    bias,
    d,
    channels,
    DELTA_STEP: tl.constexpr,
    BIAS_STEP: tl.constexpr,
    RANK: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Step sizes of channels `d`, from `delta`, or with a weight `(D, RANK)` from its product with `delta`."""
    inside = d < channels
    if weight is not None:
        total = tl.zeros([d.shape[0], BLOCK_R], tl.float32)
        for start in tl.static_range(0, RANK, BLOCK_R):
            r = start + tl.arange(0, BLOCK_R)
            here = inside[:, None] & (r < RANK)[None, :]
            w = tl.load(weight + d[:, None] * RANK + r[None, :], mask=here, other=0.0).to(tl.float32)
            total += w * tl.load(delta + r, mask=r < RANK, other=0.0).to(tl.float32)[None, :]
        step = tl.sum(total, 1)
    else:
        step = tl.load(delta + d * DELTA_STEP, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        step += tl.load(bias + d * BIAS_STEP, mask=inside, other=0.0).to(tl.float32)
    return softplus(step) if SOFTPLUS else step


_ROWS = ("u_row", "delta_row", "b_row", "c_row", "gate_row", "state_row")


@kernel(
    configs=[config(BLOCK_D=16, BLOCK_R=64), config(BLOCK_D=8, BLOCK_R=64, num_warps=2)],
    key=("channels", "STATES", "RANK"),
    examples={
        # In a block, and the step of complex states by itself.
        "bf16": {
            **dict.fromkeys(("u", "delta", "B", "C", "gate", "state", "new_state", "y"), "*fp32"),
            **dict.fromkeys(("dt_weight", "dt_bias", "A", "skip"), "*bf16"),
            **dict.fromkeys((*_ROWS, "channels"), "i32:16"),
            "mask": "*i8",
            **{"STATES": 16, "RANK": 160, "DELTA_STEP": 1, "BIAS_STEP": 1, "BLOCK_N": 16},
            **{"SOFTPLUS": True, "LOGARITHMIC": True, "COMPLEX": False},
        },
        "fp32": {
            **dict.fromkeys(("u", "delta", "B", "C", "gate", "state", "new_state", "y"), "*fp32"),
            **dict.fromkeys(("dt_bias", "A", "skip"), "*fp32"),
            **dict.fromkeys((*_ROWS, "channels"), "i32:16"),
            **{
                "dt_weight": None,
                "mask": None,
                "STATES": 16,
                "RANK": 0,
                "DELTA_STEP": 1,
                "BIAS_STEP": 1,
                "BLOCK_N": 16,
            },
            **{"SOFTPLUS": True, "LOGARITHMIC": False, "COMPLEX": True},
        },
    },
)
@triton.jit
def _update(
    u,
    delta,
    dt_weight,
    dt_bias,
    A,
    B,
    C,
    skip,
    gate,
    mask,
    state,
    new_state,
    y,
    u_row,
    delta_row,
    b_row,
    c_row,
    gate_row,
    state_row,
    channels,
    STATES: tl.constexpr,
    RANK: tl.constexpr,
    DELTA_STEP: tl.constexpr,
    BIAS_STEP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    LOGARITHMIC: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """Write `y` `(B, D)` and the next state, of one row of the batch and `BLOCK_D` channels.

    The rows of the batch are `*_row` numbers apart, those of `new_state` and `y` are contiguous. Complex numbers are
    pairs of real ones, and their rows are counted in real numbers.

    Args:
        u: `(B, D)`.
        delta: `(B, D)`; with `dt_weight` `(B, RANK)`; `(B, 1)` where `DELTA_STEP` is 0.
        dt_weight: `(D, RANK)` or absent.
        dt_bias: `(D,)`; `(1,)` where `BIAS_STEP` is 0; or absent.
        A: `(D, STATES)`; if `LOGARITHMIC`, the logarithm of its negative.
        B, C: `(B, STATES)`.
        skip: `(D,)` or absent.
        gate: `(B, D)` or absent; its SiLU multiplies the output.
        mask: `(B,)` of bytes, or absent; rows where it is 0 keep their states.
        state: `(B, D, STATES)`.
        new_state: Written, `(B, D, STATES)`.
        BLOCK_N: The power of 2 from `STATES` on.
        SOFTPLUS: Of the step sizes, after the bias.
        COMPLEX: Of each pair of conjugate states one is stored.
    """
    d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    parts: tl.constexpr = 2 if COMPLEX else 1
    inside = d < channels
    step = _step_sizes(
        delta + row * delta_row, dt_weight, dt_bias, d, channels, DELTA_STEP, BIAS_STEP, RANK, SOFTPLUS, BLOCK_R
    )
    value = tl.load(u + row * u_row + d, mask=inside, other=0.0).to(tl.float32)
    keep = inside[:, None] & (n < STATES)[None, :]
    at = (d[:, None] * STATES + n[None, :]) * parts
    state += row * state_row
    new_state += row * channels * STATES * parts
    B += row * b_row
    C += row * c_row
    rate = tl.load(A + at, mask=keep, other=0.0).to(tl.float32)
    if LOGARITHMIC:
        rate = -exp(rate)
    decay = exp(step[:, None] * rate)
    amount = (step * value)[:, None]
    if mask is not None:
        moves = tl.load(mask + row) != 0
    before = tl.load(state + at, mask=keep, other=0.0).to(tl.float32)
    b = tl.load(B + n * parts, mask=n < STATES, other=0.0).to(tl.float32)[None, :]
    c = tl.load(C + n * parts, mask=n < STATES, other=0.0).to(tl.float32)[None, :]
    if COMPLEX:
        angle = step[:, None] * tl.load(A + at + 1, mask=keep, other=0.0).to(tl.float32)
        cosine = decay * tl.cos(angle)
        sine = decay * tl.sin(angle)
        before_i = tl.load(state + at + 1, mask=keep, other=0.0).to(tl.float32)
        b_i = tl.load(B + n * 2 + 1, mask=n < STATES, other=0.0).to(tl.float32)[None, :]
        c_i = tl.load(C + n * 2 + 1, mask=n < STATES, other=0.0).to(tl.float32)[None, :]
        after = amount * b + cosine * before - sine * before_i
        after_i = amount * b_i + cosine * before_i + sine * before
        total = 2.0 * tl.sum(after * c - after_i * c_i, 1)
        if mask is not None:
            after_i = tl.where(moves, after_i, before_i)
        tl.store(new_state + at + 1, after_i, mask=keep)
    else:
        after = amount * b + decay * before
        total = tl.sum(after * c, 1)
    if mask is not None:
        after = tl.where(moves, after, before)
    tl.store(new_state + at, after, mask=keep)
    if skip is not None:
        total += tl.load(skip + d, mask=inside, other=0.0).to(tl.float32) * value
    if gate is not None:
        total *= silu(tl.load(gate + row * gate_row + d, mask=inside, other=0.0).to(tl.float32))
    tl.store(y + row * channels + d, total.to(y.dtype.element_ty), mask=inside)


def _launch(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, new_state: Tensor, y: Tensor, **given: Any
) -> None:
    """Launch `update` for tensors with dense last axes, complex ones as pairs; `given` has the other arguments."""
    batch, channels = u.shape
    states = B.shape[1]
    _update.launch(
        lambda meta: (triton.cdiv(channels, meta["BLOCK_D"]), batch),
        u=u,
        A=A,
        B=B,
        C=C,
        state=state,
        new_state=new_state,
        y=y,
        u_row=u.stride(0),
        delta_row=given["delta"].stride(0),
        b_row=B.stride(0),
        c_row=C.stride(0),
        gate_row=0 if given["gate"] is None else given["gate"].stride(0),
        state_row=state.stride(0),
        channels=channels,
        STATES=states,
        BLOCK_N=triton.next_power_of_2(states),
        **given,
    )


def supports_scan_step(args: ScanTensors, softplus: bool) -> bool:
    """Values only; gradients through a step are those of torch. No double precision."""
    return is_plain_call(*args) and runs_kernels(*args)


def _as_pairs(t: Tensor) -> Tensor:
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def scan_step_triton(args: ScanTensors, softplus: bool) -> tuple[Tensor, Tensor]:
    """`selective_scan_step` in one launch; `args` have the dtypes that the caller gave them."""
    u, delta, *matrices, D, z, bias, initial = args
    assert initial is not None
    u, delta = dense(u), dense(delta)
    A, B, C, state = (dense(_as_pairs(t)) for t in (*matrices, initial))
    y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    dtype = torch.complex64 if args.A.is_complex() else torch.float32
    new_state = torch.empty(initial.shape, dtype=dtype, device=u.device)
    _launch(
        *(u, A, B, C, state, _as_pairs(new_state), y),
        delta=delta,
        dt_weight=None,
        mask=None,
        dt_bias=None if bias is None else bias.contiguous(),
        skip=None if D is None else D.contiguous(),
        gate=None if z is None else dense(z),
        RANK=0,
        DELTA_STEP=int(delta.shape == u.shape),
        BIAS_STEP=int(bias is not None and len(bias) == u.shape[1]),
        SOFTPLUS=softplus,
        LOGARITHMIC=False,
        COMPLEX=args.A.is_complex(),
    )
    return y, new_state


class _Block:
    """The launches of a Mamba block."""

    def __init__(self, w: BlockWeights, options: BlockOptions):
        w = BlockWeights(*map(held, w))
        (self.channels, self.states), self.rank = w.A.shape, w.dt_weight.shape[1]
        self.read = in_projection(w, options)
        self.select = Projection(w.x_weight)
        self.write = Projection(w.out_weight, w.out_bias)
        self.residual = options.residual
        self.A = w.A
        self.update = {
            **{"dt_weight": w.dt_weight, "dt_bias": w.dt_bias, "skip": w.skip, "RANK": self.rank},
            **{"DELTA_STEP": 1, "BIAS_STEP": 1, "SOFTPLUS": True, "COMPLEX": False},
            "LOGARITHMIC": options.logarithmic,
        }

    def __call__(
        self,
        hidden: Tensor,
        output: Tensor,
        mask: Tensor | None,
        past: Tensor,
        state: Tensor,
        new_past: Tensor,
        new_state: Tensor,
        projected: Tensor,
        selected: Tensor,
        scanned: Tensor,
    ) -> None:
        self.read(hidden, projected, mask=mask, past=past, new_past=new_past)
        u, gate = projected.split(self.channels, dim=1)
        self.select(u, selected)
        step, B, C = selected.split([self.rank, self.states, self.states], dim=1)
        _launch(u, self.A, B, C, state, new_state, scanned, delta=step, gate=gate, mask=mask, **self.update)
        self.write(scanned, output, residual=hidden if self.residual else None)


class TritonBlocksStep(BlocksOnGPU):
    """See `find_step`."""

    def __init__(self, weights: Sequence[BlockWeights], options: BlockOptions, final_norm: FinalNorm = NO_FINAL_NORM):
        w = weights[0]
        (channels, states), rank = w.A.shape, w.dt_weight.shape[1]
        blocks = [_Block(block, options) for block in weights]
        scratch = 2 * channels, rank + 2 * states, channels
        super().__init__(blocks, weights, options, final_norm, block_shapes(w), scratch)
