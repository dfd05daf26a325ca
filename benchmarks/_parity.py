"""Parity of the Triton kernels with the references in double precision, at sizes with several blocks of each axis.

Dimensions: `B` batch, `L` length, `D` channels, `N` states, `H` heads, `P` channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hf_ssm.ops.long_conv import long_conv, long_conv_reference
from hf_ssm.ops.lti.diagonal import diagonal_kernel, diagonal_kernel_reference
from hf_ssm.ops.lti.dplr import dplr_kernel, dplr_kernel_reference
from hf_ssm.ops.selective_scan import selective_scan, selective_scan_reference
from hf_ssm.ops.short_conv import short_conv, short_conv_reference
from hf_ssm.ops.ssd import ssd_scan, ssd_scan_reference

__all__ = ["CASES", "parity"]

# Rounding of results, relative to the largest: float32, and bfloat16 with products of bfloat16 matrices.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}

Case = tuple[Callable[..., Any], Callable[..., Any], list[Tensor], dict[str, Any]]


def _scan(length: int, dtype: torch.dtype, complex_state: bool) -> Case:
    batch, channels, states = 2, 20, 8
    u, delta, z = (torch.randn(batch, length, channels).to(dtype) for _ in range(3))
    A = -torch.rand(channels, states) - 0.1
    B, C = (torch.randn(batch, length, states) for _ in range(2))
    if complex_state:
        A, B, C = (torch.complex(t, torch.randn_like(t)) for t in (A, B, C))
    else:
        B, C = B.to(dtype), C.to(dtype)
    tensors = [u, delta, A, B, C, torch.randn(channels), z, torch.randn(channels)]
    return selective_scan, selective_scan_reference, tensors, {"delta_softplus": True}


def _ssd(length: int, dtype: torch.dtype) -> Case:
    batch, heads, size, states = 2, 2, 16, 16
    x = torch.randn(batch, length, heads, size).to(dtype)
    dt, A = torch.randn(batch, length, heads).to(dtype), -torch.rand(heads) - 0.1
    B, C = (torch.randn(batch, length, 1, states).to(dtype) for _ in range(2))
    tensors = [x, dt, A, B, C, torch.randn(heads), torch.randn(heads)]
    return ssd_scan, ssd_scan_reference, tensors, {"dt_softplus": True}


def _short_conv(length: int, dtype: torch.dtype) -> Case:
    tensors = [torch.randn(2, length, 20).to(dtype), torch.randn(20, 4).to(dtype), torch.randn(20).to(dtype)]
    return short_conv, short_conv_reference, tensors, {"activation": "silu"}


def _convolution(length: int, dtype: torch.dtype) -> Case:
    tensors = [torch.randn(2, length, 6).to(dtype), torch.randn(6, length), torch.randn(6, length)]
    return long_conv, long_conv_reference, tensors, {}


def _lti(length: int, low_rank: bool) -> Case:
    a = torch.complex(torch.full((3, 4), -0.5), torch.arange(4.0).expand(3, 4) * 3)
    b, c, p = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(3))
    dt = torch.rand(3) * 0.1 + 0.01
    if low_rank:
        return dplr_kernel, dplr_kernel_reference, [a, p, b, c, dt], {"length": length}
    return diagonal_kernel, diagonal_kernel_reference, [a, b, c, dt], {"length": length}


CASES: dict[str, Callable[[int], Case]] = {
    "selective scan, float32": lambda length: _scan(length, torch.float32, False),
    "selective scan, bfloat16": lambda length: _scan(length, torch.bfloat16, False),
    "selective scan, complex states": lambda length: _scan(length, torch.float32, True),
    "SSD, float32": lambda length: _ssd(length, torch.float32),
    "SSD, bfloat16": lambda length: _ssd(length, torch.bfloat16),
    "short convolution, float32": lambda length: _short_conv(length, torch.float32),
    "short convolution, bfloat16": lambda length: _short_conv(length, torch.bfloat16),
    "long convolution, direct": lambda length: _convolution(length, torch.float32),
    "long convolution, direct, bfloat16": lambda length: _convolution(length, torch.bfloat16),
    "long convolution, FFT": lambda _: _convolution(1500, torch.float32),
    "S4D kernel": lambda length: _lti(length, False),
    "S4 kernel": lambda length: _lti(length, True),
}


def _double(t: Tensor) -> Tensor:
    return t.detach().to(torch.complex128 if t.is_complex() else torch.float64).requires_grad_()


def parity(name: str, device: str, length: int = 77) -> float:
    """Largest error of the values and gradients of a case, relative to the largest number of each.

    The FFT has a length of its own.

    Raises:
        RuntimeError: An error is larger than rounding explains, or not a number.
    """
    torch.manual_seed(0)
    function, reference, tensors, options = CASES[name](length)
    tolerance = max(_TOLERANCE.get(t.dtype, 0.0) for t in tensors)
    given = [t.to(device).requires_grad_() for t in tensors]
    wide = [_double(t) for t in tensors]
    y, expected = function(*given, **options), reference(*wide, **options)
    cotangent = torch.randn(y.shape).to(y.dtype)
    found = (y, *torch.autograd.grad(y, given, cotangent.to(device)))
    right = (expected, *torch.autograd.grad(expected, wide, cotangent.to(expected.dtype)))
    largest = 0.0
    for number, (a, b) in enumerate(zip(found, right, strict=True)):
        error = ((a.detach().cpu().to(b.dtype) - b).abs().max() / b.abs().max()).item()
        # False for NaN.
        if not error <= tolerance:
            raise RuntimeError(f"{name}: result {number} has an error of {error:.3g}, at most {tolerance:g} is allowed")
        largest = max(largest, error)
    return largest
