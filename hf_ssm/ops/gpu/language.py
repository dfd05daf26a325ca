"""Device functions that several kernels share."""

import triton
import triton.language as tl

from hf_ssm.ops.gpu.kernels import INTERPRETED

__all__ = ["INTERPRETS", "dot", "exp", "sigmoid", "silu", "silu_slope", "softplus"]

INTERPRETS = tl.constexpr(INTERPRETED)
_LOG2_E = tl.constexpr(1.4426950408889634)
# Where exp(x) is so large that log(1 + exp(x)) is x in float32; torch's own threshold.
_LINEAR = tl.constexpr(20.0)


@triton.jit
def exp(x):
    """The exponential of float32 numbers, one instruction of the special function unit."""
    return tl.exp2(x * _LOG2_E)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + exp(-x))


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def silu_slope(x):
    """Derivative of `silu`."""
    p = sigmoid(x)
    return p * (1.0 + x * (1.0 - p))


@triton.jit
def softplus(x):
    """`log(1 + exp(x))`; its derivative is `sigmoid(x)`."""
    # Of the smaller of both exponentials, so that no digit is lost for negative x: log1p(e) = 2 atanh(e / (2 + e)).
    e = exp(-tl.abs(x))
    s = 1.0 + e
    # Corrects the rounding of 1 + e, as there is no log1p on all devices.
    small = tl.where(s == 1.0, e, tl.log(s) * (e / tl.where(s == 1.0, 1.0, s - 1.0)))
    return tl.where(x > _LINEAR, x, tl.maximum(x, 0.0) + small)


@triton.jit
def dot(a, b, PRECISION: tl.constexpr):
    """The matrix product in float32; `PRECISION` as `input_precision` of `tl.dot`, for float32 matrices."""
    # The interpreter multiplies the bit patterns of bfloat16.
    if INTERPRETS:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)
