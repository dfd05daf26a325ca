"""The kernel behind `ops/decoding.py`, in float32; dimensions as there.

The time of a large model is that of reading its weights, so the linear maps are read as they are stored: in float32,
bfloat16 or int8. Columns and states are multiples of 16; `mixer_step` pads others with zeros.
"""

import math
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hf_ssm.ops.cpu.compiling import kernel
from hf_ssm.ops.cpu.vectors import (
    LANES,
    F,
    exp2,
    greatest,
    least,
    load,
    pointer,
    pointer_to,
    shifted,
    sigmoid,
    softplus,
    splat,
    store,
    total,
)

__all__ = ["mixer_step"]

_ZERO, _LOG2_E = F(0), F(math.log2(math.e))
_BFLOAT16, _INT8 = 1, 2
_FORMS = {torch.float32: 0, torch.bfloat16: _BFLOAT16, torch.int8: _INT8}


class _Mixer(NamedTuple):
    """Sizes, with columns and states in multiples of 16, and addresses of float32 numbers (0: none).

    `projected` to `y` are scratch memory for one sequence; `gate`, `inputs` and `dt` are parts of `projected`.
    """

    batch: int
    channels: int
    heads: int
    groups: int
    states: int
    states_given: int
    rank: int
    mixed: int
    taps: int
    is_log_A: bool
    norm_before_gate: bool
    epsilon: float
    low: Any
    high: Any
    hidden: int
    past: int
    state: int
    output: int
    new_past: int
    new_state: int
    conv_weight: int
    conv_bias: int
    A: int
    dt_bias: int
    skip: int
    norm_weight: int
    gate: int
    inputs: int
    dt: int
    projected: int
    convolved: int
    selected: int
    steps: int
    matrices: int
    decay: int
    y: int


class _Map(NamedTuple):
    """A linear map: addresses of the matrix, of scales of its rows and of the bias (0: none), and how it is stored."""

    weight: int
    scales: int
    bias: int
    form: int
    rows: int
    columns: int


@kernel
def _multiply(m, w, x, y):
    """`y = W x + b` with four independent sums, as fast as the weights are read."""
    for row in range(m.rows):
        at, c = row * m.columns, 0
        s0, s1, s2, s3 = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
        # In int8, loops over `range` are slower.
        while c + 4 * LANES <= m.columns:
            s0 = s0 + load(w, at + c) * load(x, c)
            s1 = s1 + load(w, at + c + LANES) * load(x, c + LANES)
            s2 = s2 + load(w, at + c + 2 * LANES) * load(x, c + 2 * LANES)
            s3 = s3 + load(w, at + c + 3 * LANES) * load(x, c + 3 * LANES)
            c += 4 * LANES
        while c < m.columns:
            s0 = s0 + load(w, at + c) * load(x, c)
            c += LANES
        value = total((s0 + s1) + (s2 + s3))
        if m.scales != 0:
            value *= pointer(m.scales, row)[0]
        if m.bias != 0:
            value += pointer(m.bias, row)[0]
        y[row] = value


@kernel
def _apply(m, x, y):
    if m.form == _INT8:
        _multiply(m, pointer_to(m.weight, np.int8(0)), x, y)
    elif m.form == _BFLOAT16:
        _multiply(m, pointer_to(m.weight, np.uint16(0)), x, y)
    else:
        _multiply(m, pointer(m.weight, 0), x, y)


@kernel
def _convolve(s, b, x, y):
    """The short convolution of sequence `b` with SiLU."""
    first = b * (s.taps - 1) * s.mixed
    before, after, w = pointer(s.past, first), pointer(s.new_past, first), pointer(s.conv_weight, 0)
    for d in range(s.mixed):
        value = w[d * s.taps + s.taps - 1] * x[d]
        for i in range(s.taps - 1):
            value += w[d * s.taps + i] * before[i * s.mixed + d]
        if s.conv_bias != 0:
            value += pointer(s.conv_bias, d)[0]
        y[d] = value
    for i in range((s.taps - 2) * s.mixed):
        after[i] = before[s.mixed + i]
    if s.taps > 1:
        for d in range(s.mixed):
            after[(s.taps - 2) * s.mixed + d] = x[d]
    for d in range(0, s.mixed, LANES):
        store(y, d, load(y, d) * sigmoid(load(y, d)))


@kernel
def _select(s, x_map, dt_map, convolved, steps, matrices):
    """The step sizes of the heads, and B and C of the groups, `(2, G, N)`."""
    source = pointer(s.selected, s.rank) if s.rank > 0 else shifted(convolved, s.channels)
    if s.rank > 0:
        _apply(x_map, convolved, pointer(s.selected, 0))
        _apply(dt_map, pointer(s.selected, 0), steps)
    else:
        for head in range(s.heads):
            steps[head] = pointer(s.dt, head)[0]
    for head in range(s.heads):
        steps[head] += pointer(s.dt_bias, head)[0]
    for i in range(0, s.heads, LANES):
        store(steps, i, least(splat(s.high), greatest(splat(s.low), softplus(load(steps, i)))))
    for group in range(2 * s.groups):
        for n in range(s.states_given):
            matrices[group * s.states + n] = source[group * s.states_given + n]


@kernel
def _scan(s, b, x, steps, matrices, decay, y):
    """The state of sequence `b`, `exp(d A) h + d x B`, and the output, `C h + skip x`."""
    first = b * s.channels * s.states
    before, after, A = pointer(s.state, first), pointer(s.new_state, first), pointer(s.A, 0)
    size, of_group, others = s.channels // s.heads, s.heads // s.groups, s.groups * s.states
    for head in range(s.heads):
        group = head // of_group * s.states
        for n in range(0, s.states, LANES):
            rate = load(A, head * s.states + n) * _LOG2_E
            if s.is_log_A:
                rate = exp2(rate) * -_LOG2_E
            store(decay, n, exp2(steps[head] * rate))
        for channel in range(head * size, (head + 1) * size):
            amount, summed = steps[head] * x[channel], splat(_ZERO)
            for n in range(0, s.states, LANES):
                at = channel * s.states + n
                value = load(decay, n) * load(before, at) + amount * load(matrices, group + n)
                store(after, at, value)
                summed = summed + value * load(matrices, others + group + n)
            y[channel] = total(summed)
            if s.skip != 0:
                y[channel] += pointer(s.skip, channel)[0] * x[channel]


@kernel
def _gate(s, y):
    z = pointer(s.gate, 0)
    for i in range(0, s.channels, LANES):
        store(y, i, load(y, i) * load(z, i) * sigmoid(load(z, i)))


@kernel
def _norm_groups(s, y):
    """The RMS norm of each group of channels."""
    size, weight = s.channels // s.groups, pointer(s.norm_weight, 0)
    for first in range(0, s.channels, size):
        square = 0.0
        for i in range(first, first + size):
            square += y[i] * y[i]
        scale = 1 / math.sqrt(square / size + s.epsilon)
        for i in range(first, first + size):
            y[i] = y[i] * scale * weight[i]


@kernel
def _step(s, in_map, x_map, dt_map, out_map):
    projected, convolved, steps = pointer(s.projected, 0), pointer(s.convolved, 0), pointer(s.steps, 0)
    matrices, y = pointer(s.matrices, 0), pointer(s.y, 0)
    for b in range(s.batch):
        _apply(in_map, pointer(s.hidden, b * in_map.columns), projected)
        _convolve(s, b, pointer(s.inputs, 0), convolved)
        _select(s, x_map, dt_map, convolved, steps, matrices)
        _scan(s, b, convolved, steps, matrices, pointer(s.decay, 0), y)
        if not s.norm_before_gate:
            _gate(s, y)
        if s.norm_weight != 0:
            _norm_groups(s, y)
        if s.norm_before_gate:
            _gate(s, y)
        for i in range(s.channels, out_map.columns):
            y[i] = _ZERO
        _apply(out_map, y, pointer(s.output, b * out_map.rows))


def mixer_step(w: Any, hidden: Tensor, past: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output of a mixer at one position, and the next states; `w` are the `MixerWeights` of `ops/decoding.py`."""
    batch, (width, channels) = len(hidden), w.out_weight.shape
    heads, (mixed, _, taps), given = len(w.dt_bias), w.conv_weight.shape, state.shape[-1]
    rank = 0 if w.dt_weight is None else w.dt_weight.shape[1]
    dtypes, states = (hidden.dtype, past.dtype), given + -given % LANES
    kept: list[Tensor] = []
    in_map, out_map = _linear_map(kept, w.in_weight, w.in_bias), _linear_map(kept, w.out_weight, w.out_bias)
    x_map, dt_map = _linear_map(kept, w.x_weight, None), _linear_map(kept, w.dt_weight, None)
    A = w.A.unsqueeze(1).expand(-1, given) if w.A.dim() == 1 else w.A
    skip = w.skip
    if skip is not None and len(skip) != channels:
        skip = skip.repeat_interleave(channels // heads)
    hidden, past, before = _padded(hidden.float()), past.mT.float().contiguous(), _padded(state).contiguous()
    output, new_past, after = hidden.new_empty(batch, 1, width), torch.empty_like(past), torch.empty_like(before)
    numbers = (w.conv_weight, w.conv_bias, _padded(A), w.dt_bias, skip, w.norm_weight)
    # The parts of the scratch memory begin at multiples of 16 numbers, and vectors may reach behind the gate.
    parts = in_map.rows + LANES, mixed, rank + 2 * given, heads, 2 * w.groups * states, states, channels
    first = [0, *accumulate(size + -size % LANES for size in parts)]
    work = hidden.new_zeros(first[-1])
    places = [work.data_ptr() + 4 * at for at in first[:-1]]
    gate, inputs, dt = (channels, 0, 0) if rank else (0, channels, channels + mixed)
    low, high = map(F, w.dt_limit)
    mixer = _Mixer(
        *(batch, channels, heads, w.groups, states, given, rank, mixed, taps),
        *(w.is_log_A, w.norm_before_gate, w.epsilon, low, high),
        *(t.data_ptr() for t in (hidden, past, before, output, new_past, after)),
        *(_address(kept, t) for t in numbers),
        *(places[0] + 4 * at for at in (gate, inputs, dt)),
        *places,
    )
    _step(mixer, in_map, x_map, dt_map, out_map)
    after = after if states == given else after[..., :given].contiguous()
    return output.to(dtypes[0]), new_past.to(dtypes[1]).mT, after


def _padded(t: Tensor) -> Tensor:
    """The tensor with zeros behind its last dimension, up to a multiple of 16."""
    more = -t.shape[-1] % LANES
    return functional.pad(t, (0, more)) if more else t


def _address(kept: list[Tensor], t: Tensor | None) -> int:
    """The address of the numbers in float32, of a tensor that is kept alive."""
    if t is None:
        return 0
    kept.append(t.float().contiguous())
    return kept[-1].data_ptr()


def _linear_map(kept: list[Tensor], weight: Any, bias: Tensor | None) -> _Map:
    if weight is None:
        return _Map(0, 0, 0, 0, 0, 0)
    scales = getattr(weight, "scale", None)
    values = weight if scales is None else weight.qdata
    if values.shape[1] % LANES:
        values, scales = _padded(values.float() if scales is None else values * scales), None
    kept.append(values)
    return _Map(values.data_ptr(), _address(kept, scales), _address(kept, bias), _FORMS[values.dtype], *values.shape)
