"""Triton kernels of one position: the step of the state space duality, and that of all blocks of a Mamba-2 model.

Dimensions: `B` batch, `S` hidden size, `D` channels of the scan, `H` heads, `P = D / H`, `G` groups, `N` states, `K`
taps, `M = D + 2 G N` channels of the convolution.

A block takes three launches: norm, in-projection, short convolution and step sizes; `update`, by blocks of the channels
of a head, with the gate unless the gated norm comes before it; gated norm, out-projection and residual. `update` reads
the state once and writes it once, B and C once for each block of channels, from the cache.
"""

import math
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
from hf_ssm.ops.ssd.arguments import SSDTensors
from hf_ssm.ops.ssd.decoding import SSDBlockOptions, SSDBlockWeights, ssd_block_shapes

__all__ = [
    "TritonSSDBlocksStep",
    "ssd_step_triton",
    "supports_blocks",
    "supports_ssd_step",
]


@kernel(
    configs=[config(BLOCK_P=8), config(BLOCK_P=16)],
    key=("size", "STATES"),
    examples={
        # In a block, and the step by itself.
        "fp32": {
            **dict.fromkeys(("x", "dt", "A", "B", "C", "skip", "gate", "state", "new_state", "y"), "*fp32"),
            **dict.fromkeys(("x_row", "dt_row", "b_row", "c_row", "gate_row", "state_row", "size"), "i32:16"),
            **dict.fromkeys(("heads", "of_group"), "i32"),
            **dict.fromkeys(("low", "high"), "fp32"),
            **{"dt_bias": None, "mask": "*i8", "STATES": 128, "SKIP_STEP": 0, "BLOCK_N": 128},
            **{"SOFTPLUS": False, "LOGARITHMIC": True},
        },
        "bf16": {
            **dict.fromkeys(("x", "dt", "B", "C", "y"), "*bf16"),
            **dict.fromkeys(("A", "skip", "dt_bias", "state", "new_state"), "*fp32"),
            **dict.fromkeys(("x_row", "dt_row", "b_row", "c_row", "state_row", "size"), "i32:16"),
            **dict.fromkeys(("heads", "of_group"), "i32"),
            **dict.fromkeys(("low", "high"), "fp32"),
            **{"gate": None, "mask": None, "gate_row": 0, "STATES": 256, "SKIP_STEP": 1, "BLOCK_N": 256},
            **{"SOFTPLUS": True, "LOGARITHMIC": False},
        },
    },
)
@triton.jit
def _update(
    x,
    dt,
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
    x_row,
    dt_row,
    b_row,
    c_row,
    gate_row,
    state_row,
    heads,
    size,
    of_group,
    low,
    high,
    STATES: tl.constexpr,
    SKIP_STEP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SOFTPLUS: tl.constexpr,
    LOGARITHMIC: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """Write `y` `(B, H, P)` and the next state, of one row of the batch and `BLOCK_P` channels of a head.

    The rows of the batch are `*_row` numbers apart, those of `new_state` and `y` are contiguous.

    Args:
        x: `(B, H, P)`.
        dt: `(B, H)`.
        dt_bias: `(H,)` or absent.
        A: `(H,)`; if `LOGARITHMIC`, the logarithm of its negative.
        B, C: `(B, G, STATES)`.
        skip: `(H,)` where `SKIP_STEP` is 0, `(H, P)` where it is 1, or absent.
        gate: `(B, H, P)` or absent; its SiLU multiplies the output.
        mask: `(B,)` of bytes, or absent; rows where it is 0 keep their states.
        state: `(B, H, P, STATES)`.
        new_state: Written, `(B, H, P, STATES)`.
        heads, size, of_group: H, P, H / G.
        low, high: Least and greatest step size.
        SOFTPLUS: Of the step sizes, after the bias.
        BLOCK_N: The power of 2 from `STATES` on.
    """
    tiles = tl.cdiv(size, BLOCK_P)
    head = tl.program_id(0) // tiles
    p = tl.program_id(0) % tiles * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    inside = p < size
    known = n < STATES
    keep = inside[:, None] & known[None, :]
    d = head * size + p
    at = d[:, None] * STATES + n[None, :]
    first = head // of_group * STATES
    step = tl.load(dt + row * dt_row + head).to(tl.float32)
    rate = tl.load(A + head).to(tl.float32)
    value = tl.load(x + row * x_row + d, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(B + row * b_row + first + n, mask=known, other=0.0).to(tl.float32)
    c = tl.load(C + row * c_row + first + n, mask=known, other=0.0).to(tl.float32)
    before = tl.load(state + row * state_row + at, mask=keep, other=0.0).to(tl.float32)
    if dt_bias is not None:
        step += tl.load(dt_bias + head).to(tl.float32)
    if SOFTPLUS:
        step = softplus(step)
    # Comparisons keep NaN.
    step = tl.where(step < low, low, step)
    step = tl.where(step > high, high, step)
    if LOGARITHMIC:
        rate = -exp(rate)
    after = exp(step * rate) * before + (step * value)[:, None] * b[None, :]
    total = tl.sum(after * c[None, :], 1)
    if mask is not None:
        after = tl.where(tl.load(mask + row) != 0, after, before)
    tl.store(new_state + row * heads * size * STATES + at, after, mask=keep)
    if skip is not None:
        place = d if SKIP_STEP else head + p * 0
        total += tl.load(skip + place, mask=inside, other=0.0).to(tl.float32) * value
    if gate is not None:
        total *= silu(tl.load(gate + row * gate_row + d, mask=inside, other=0.0).to(tl.float32))
    tl.store(y + row * heads * size + d, total.to(y.dtype.element_ty), mask=inside)


def _launch(x: Tensor, dt: Tensor, B: Tensor, state: Tensor, sizes: tuple[int, int, int, int], **given: Any) -> None:
    """Launch `update` for tensors whose axes after the first are dense; `sizes` are H, P, G and N."""
    heads, size, groups, states = sizes
    gate = given["gate"]
    _update.launch(
        lambda meta: (heads * triton.cdiv(size, meta["BLOCK_P"]), len(x)),
        x=x,
        dt=dt,
        B=B,
        state=state,
        x_row=x.stride(0),
        dt_row=dt.stride(0),
        b_row=B.stride(0),
        c_row=given["C"].stride(0),
        gate_row=0 if gate is None else gate.stride(0),
        state_row=state.stride(0),
        heads=heads,
        size=size,
        of_group=heads // groups,
        STATES=states,
        BLOCK_N=triton.next_power_of_2(states),
        **given,
    )


def supports_ssd_step(args: SSDTensors, softplus: bool, dt_limit: Sequence[float]) -> bool:
    """Values only; gradients through a step are those of torch. No double precision."""
    return is_plain_call(*args) and runs_kernels(*args)


def ssd_step_triton(args: SSDTensors, softplus: bool, dt_limit: Sequence[float]) -> tuple[Tensor, Tensor]:
    """`ssd_step` in one launch; `args` have the dtypes that the caller gave them."""
    x, dt, A, B, C, D, bias, _ = args
    (heads, size), (groups, states) = x.shape[1:], B.shape[1:]
    state = args.state
    assert state is not None
    x, dt, B, C, state = (dense(t) for t in (x, dt, B, C, state))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new_state = torch.empty(state.shape, dtype=torch.float32, device=x.device)
    _launch(
        *(x, dt, B, state, (heads, size, groups, states)),
        dt_bias=None if bias is None else bias.contiguous(),
        A=A.contiguous(),
        C=C,
        skip=None if D is None else D.contiguous(),
        gate=None,
        mask=None,
        new_state=new_state,
        y=y,
        low=float(dt_limit[0]) if dt_limit[0] > 0 or not softplus else 0.0,
        high=float(dt_limit[1]),
        SKIP_STEP=int(D is not None and D.dim() == 2),
        SOFTPLUS=softplus,
        LOGARITHMIC=False,
    )
    return y, new_state


class _Block:
    """The launches of a Mamba-2 block."""

    def __init__(self, w: SSDBlockWeights, options: SSDBlockOptions, sizes: tuple[int, int, int, int]):
        w = SSDBlockWeights(*map(held, w))
        self.sizes, self.residual = sizes, options.residual
        heads, size, groups, states = sizes
        channels, mixed = heads * size, len(w.conv_weight)
        self.parts, self.mixed_parts = (channels, mixed, heads), (channels, groups * states, groups * states)
        low, high = map(float, options.dt_limit)
        self.read = in_projection(w, options, first=channels, dt_bias=w.dt_bias, low=low, high=high)
        gated: dict[str, Any] = {"norm_weight": w.gate_weight, "epsilon": options.gate_epsilon, "GROUPS": groups}
        has_norm = w.gate_weight is not None
        self.gates_last = has_norm and options.norm_before_gate
        self.write = Projection(w.out_weight, w.out_bias, "rms" if has_norm else "none", **(gated if has_norm else {}))
        self.update = {
            **{"dt_bias": None, "A": w.A_log, "skip": w.skip, "low": 0.0, "high": math.inf},
            **{"SKIP_STEP": int(len(w.skip) != heads), "SOFTPLUS": False, "LOGARITHMIC": True},
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
        scanned: Tensor,
    ) -> None:
        self.read(hidden, projected, mask=mask, past=past, new_past=new_past)
        gate, mixed, steps = projected.split(self.parts, dim=1)
        x, B, C = mixed.split(self.mixed_parts, dim=1)
        early = None if self.gates_last else gate
        given = {"C": C, "gate": early, "mask": mask, "new_state": new_state, "y": scanned}
        _launch(x, steps, B, state, self.sizes, **given, **self.update)
        late = gate if self.gates_last else None
        self.write(scanned, output, residual=hidden if self.residual else None, gate=late)


class TritonSSDBlocksStep(BlocksOnGPU):
    """See `find_step`."""

    def __init__(
        self, weights: Sequence[SSDBlockWeights], options: SSDBlockOptions, final_norm: FinalNorm = NO_FINAL_NORM
    ):
        shapes = ssd_block_shapes(weights[0], options)
        heads, size, states = shapes.state
        blocks = [_Block(block, options, (heads, size, options.groups, states)) for block in weights]
        scratch = heads * size + len(weights[0].conv_weight) + heads, heads * size
        super().__init__(blocks, weights, options, final_norm, shapes, scratch)
