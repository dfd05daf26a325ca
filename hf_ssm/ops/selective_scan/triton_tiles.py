"""Device functions of the Triton kernels of the selective scan.

A program advances a block of channels through consecutive positions, with its states in registers: tiles `(N, D)` whose
channels are innermost, so that a thread holds all states of a channel, sums over states stay inside a thread, and rows
of the inputs are read by neighbouring threads. Complex numbers are pairs of tiles; of real ones the second tile is not
used. `A` is prepared by `scaled_matrix`: its real part in units of log 2, its imaginary part in turns.

Dimensions: `N` states of a channel (padded to a power of two), `D` channels of a block, `P` planes, 1 for real and 2
for complex states.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from hf_ssm.ops.gpu.language import softplus

__all__ = [
    "advance",
    "decay_of",
    "enter",
    "load_parameter",
    "load_planes",
    "load_row",
    "load_state",
    "load_weights",
    "output_of",
    "row_of",
    "scaled_matrix",
    "step_at",
    "store_state",
    "sum_of_products",
]


def _circular(first: int, terms: int) -> tuple[float, ...]:
    """Taylor coefficients of cos(2πr), `first` 0, or of sin(2πr) / r, `first` 1, in powers of r²."""
    exponents = range(first + 2 * (terms - 1), -1, -2)
    return tuple((-1) ** (k // 2) * math.tau**k / math.factorial(k) for k in exponents)


# For r² <= 1/16 the first omitted term is below the rounding error of float32.
_COS = tl.constexpr(_circular(0, 7))
_SIN = tl.constexpr(_circular(1, 7))
_TERMS = tl.constexpr(7)


def scaled_matrix(A: Tensor) -> Tensor:
    """A `(D, N)` as `(P, N, D)`, float32: the real part in units of log 2 and the imaginary part in turns."""
    if not A.is_complex():
        return (A.float() / math.log(2)).t().unsqueeze(0).contiguous()
    return torch.stack([A.real.t() / math.log(2), A.imag.t() / math.tau]).float().contiguous()


@triton.jit
def _cos_sin(turns):
    """`cos(2πx)` and `sin(2πx)`; the functions of Triton are slow for exact results."""
    half = tl.floor(2.0 * turns + 0.5)
    odd = half - 2.0 * tl.floor(0.5 * half)
    sign = 1.0 - 2.0 * odd
    rest = turns - 0.5 * half
    square = rest * rest
    cosine, sine = square * _COS[0] + _COS[1], square * _SIN[0] + _SIN[1]
    for i in tl.static_range(2, _TERMS):
        cosine = cosine * square + _COS[i]
        sine = sine * square + _SIN[i]
    return sign * cosine, sign * rest * sine


@triton.jit
def decay_of(step, a_real, a_turns, COMPLEX: tl.constexpr):
    """`exp(step A)` `(N, D)` of step sizes `(D,)`."""
    size = tl.exp2(step[None, :] * a_real)
    if COMPLEX:
        cosine, sine = _cos_sin(step[None, :] * a_turns)
        return size * cosine, size * sine
    return size, size


@triton.jit
def advance(x_real, x_imag, decay_real, decay_imag, COMPLEX: tl.constexpr):
    """The decayed state."""
    if COMPLEX:
        return decay_real * x_real - decay_imag * x_imag, decay_real * x_imag + decay_imag * x_real
    return decay_real * x_real, x_imag


@triton.jit
def sum_of_products(a_real, a_imag, b_real, b_imag, AXIS: tl.constexpr, COMPLEX: tl.constexpr):
    """`Re Σ conj(a) b` along an axis of two tiles."""
    product = a_real * b_real
    if COMPLEX:
        product += a_imag * b_imag
    return tl.sum(product, AXIS)


@triton.jit
def load_row(row, d, there, channels):
    """A row of the inputs, `(D,)`; zeros where the position is not `there`."""
    return tl.load(row + d, mask=there & (d < channels), other=0.0).to(tl.float32)


@triton.jit
def load_parameter(parameter, d, channels, SHARED: tl.constexpr):
    """A parameter of each channel, or a `SHARED` one, `(D,)`."""
    if SHARED:
        return tl.load(parameter).to(tl.float32) + tl.zeros([d.shape[0]], tl.float32)
    else:
        return tl.load(parameter + d, mask=d < channels, other=0.0).to(tl.float32)


@triton.jit
def step_at(delta_row, bias, d, there, channels, SOFTPLUS: tl.constexpr, SHARED: tl.constexpr):
    """The step before the softplus, and the step that enters the recurrence, zero where the position is not `there`."""
    if SHARED:
        raw = tl.load(delta_row, mask=there, other=0.0).to(tl.float32) + bias
    else:
        raw = load_row(delta_row, d, there, channels) + bias
    step = raw
    if SOFTPLUS:
        step = softplus(raw)
    return raw, tl.where(there, step, 0.0)


@triton.jit
def load_weights(row, n, there, STATES: tl.constexpr, COMPLEX: tl.constexpr):
    """A row of B or C as columns `(N, 1)`; complex numbers are stored as pairs."""
    keep = there & (n < STATES)
    if COMPLEX:
        real = tl.load(row + 2 * n, mask=keep, other=0.0).to(tl.float32)[:, None]
        return real, tl.load(row + 2 * n + 1, mask=keep, other=0.0).to(tl.float32)[:, None]
    real = tl.load(row + n, mask=keep, other=0.0).to(tl.float32)[:, None]
    return real, real


@triton.jit
def row_of(rows, position, stride):
    """The row of a position; its offset may exceed 32 bits."""
    return rows + position.to(tl.int64) * stride


@triton.jit
def enter(
    state,
    rows,
    A,
    offset,
    there,
    n,
    d,
    channels,
    SOFTPLUS: tl.constexpr,
    SHARED: tl.constexpr,
    STATES: tl.constexpr,
    COMPLEX: tl.constexpr,
):
    """Advance a state by one position.

    Args:
        state: Pair of tiles.
        rows: Addresses of the rows of u, delta and B.
        A: Pair of tiles.
        offset: The bias `(D,)`.
        there: Whether the position is before the end.

    Returns:
        The decayed state, the state, u, the step before the softplus, and the step.
    """
    raw, step = step_at(rows[1], offset, d, there, channels, SOFTPLUS, SHARED)
    value = load_row(rows[0], d, there, channels)
    b_real, b_imag = load_weights(rows[2], n, there, STATES, COMPLEX)
    decay_real, decay_imag = decay_of(step, A[0], A[1], COMPLEX)
    h_real, h_imag = advance(state[0], state[1], decay_real, decay_imag, COMPLEX)
    x = (step * value)[None, :]
    x_real, x_imag = h_real + x * b_real, h_imag
    if COMPLEX:
        x_imag = h_imag + x * b_imag
    return h_real, h_imag, x_real, x_imag, value, raw, step


@triton.jit
def output_of(x_real, x_imag, c_real, c_imag, COMPLEX: tl.constexpr):
    """`Σ C x` over the states, or for complex ones `2 Re Σ C x`."""
    if COMPLEX:
        return 2.0 * tl.sum(c_real * x_real - c_imag * x_imag, 0)
    return tl.sum(c_real * x_real, 0)


@triton.jit
def load_planes(planes, n, d, STATES: tl.constexpr, channels, COMPLEX: tl.constexpr):
    """Tiles `(N, D)` of planes `(P, N, D)`."""
    at = tl.max_contiguous(n[:, None] * channels + d[None, :], [1, 1])
    keep = (n < STATES)[:, None] & (d < channels)[None, :]
    real = tl.load(planes + at, mask=keep, other=0.0)
    if COMPLEX:
        return real, tl.load(planes + STATES * channels + at, mask=keep, other=0.0)
    return real, tl.zeros([n.shape[0], d.shape[0]], tl.float32)


@triton.jit
def load_state(all_states, index, n, d, STATES: tl.constexpr, channels, COMPLEX: tl.constexpr):
    """The state of that index in `(..., P, N, D)`; zeros if there is none."""
    if all_states is None:
        zero = tl.zeros([n.shape[0], d.shape[0]], tl.float32)
        return zero, zero
    else:
        size = STATES * channels * (2 if COMPLEX else 1)
        return load_planes(all_states + index * size, n, d, STATES, channels, COMPLEX)


@triton.jit
def store_state(all_states, index, real, imag, n, d, STATES: tl.constexpr, channels, COMPLEX: tl.constexpr):
    """Write the state of that index in `(..., P, N, D)`."""
    size = STATES * channels * (2 if COMPLEX else 1)
    at = tl.max_contiguous(index * size + n[:, None] * channels + d[None, :], [1, 1])
    keep = (n < STATES)[:, None] & (d < channels)[None, :]
    tl.store(all_states + at, real, mask=keep)
    if COMPLEX:
        tl.store(all_states + at + STATES * channels, imag, mask=keep)
