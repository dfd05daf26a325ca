"""Two-frequency sinusoid filter: kernel and frequency response.

Dimensions: `L` length, `D` channels, `S` frequencies.

Source: Nishikawa & Suzuki 2025, Section 3 (ii).
"""

import math

import torch

from hf_ssm.ops.context import is_exporting

__all__ = ["sinusoid_kernel", "sinusoid_response"]

# Larger kernels are computed in parts of this many taps, to bound the memory of intermediate results.
_TAPS_AT_ONCE = 1 << 22


def sinusoid_kernel(
    c1: torch.Tensor,
    c2: torch.Tensor,
    a1: torch.Tensor,
    a2: torch.Tensor,
    window: int,
    length: int,
    *,
    inclusive: bool = False,
) -> torch.Tensor:
    """Two-frequency filter `k[t] = c1 cos(2π a1 t / U) + c2 sin(2π a2 t / U)` for `t < U`, 0 from `t = U` on.

    Section 3 of the paper does not say whether the lag U is part of the window. The proof of its Theorem F.1 sums over
    the lags 0 to U - 1, and the constructions of Appendices E and F over 0 to U: `inclusive`.

    Args:
        c1: Amplitude of the cosine `(D,)`.
        c2: Amplitude of the sine `(D,)`.
        a1: Frequency of the cosine in turns per window `(D,)`.
        a2: Frequency of the sine in turns per window `(D,)`.
        window: `U`, in positions.
        length: Number of taps `L`.
        inclusive: Whether the tap at the lag U is that of the formula instead of 0.

    Returns:
        `(D, L)`.

    Source: Nishikawa & Suzuki 2025, Section 3 (ii).
    """
    support, phase = window + inclusive, 2 * math.pi / window

    def sinusoids(channels: slice, t: torch.Tensor) -> torch.Tensor:
        """The formula at some lags, also beyond the window."""
        cosine, sine, slow, fast = (parameter[channels].unsqueeze(-1) for parameter in (c1, c2, a1, a2))
        return cosine * torch.cos(slow * (phase * t)) + sine * torch.sin(fast * (phase * t))

    if is_exporting():
        t = torch.arange(length, device=c1.device, dtype=a1.dtype)
        return sinusoids(slice(None), t) * (t < support)
    t = torch.arange(min(support, length), device=c1.device, dtype=a1.dtype)
    size = len(c1) if torch.is_grad_enabled() else max(1, _TAPS_AT_ONCE // length)
    if size >= len(c1):
        return torch.nn.functional.pad(sinusoids(slice(None), t), (0, length - len(t)))
    kernel = c1.new_zeros(len(c1), length)
    for start in range(0, len(c1), size):
        kernel[start : start + size, : len(t)] = sinusoids(slice(start, start + size), t)
    return kernel


def _geometric(x: torch.Tensor, count: int) -> torch.Tensor:
    """`Σ_{t < count} e^{ixt}` for real x, also where `e^{ix}` is 1 or near it."""
    # Between -π and π, where the denominator does not vanish.
    x = x - 2 * math.pi * torch.round(x.detach() / (2 * math.pi))
    turns = x / (2 * math.pi)
    return torch.polar(torch.ones_like(x), x * (count - 1) / 2) * count * torch.sinc(count * turns) / torch.sinc(turns)


def sinusoid_response(
    omega: torch.Tensor,
    c1: torch.Tensor,
    c2: torch.Tensor,
    a1: torch.Tensor,
    a2: torch.Tensor,
    window: int,
    *,
    inclusive: bool = False,
) -> torch.Tensor:
    """Response of `sinusoid_kernel`, whose taps end at its window: four finite geometric sums.

    Args:
        omega: Frequencies `(S,)` or `(D, S)`, radians per sample.
        c1: Amplitude of the cosine `(D,)`.
        c2: Amplitude of the sine `(D,)`.
        a1: Frequency of the cosine in turns per window `(D,)`.
        a2: Frequency of the sine in turns per window `(D,)`.
        window: `U`, in positions.
        inclusive: As for `sinusoid_kernel`.

    Returns:
        `(D, S)`, complex128.
    """
    omega = omega.to(torch.float64)
    c1, c2, a1, a2 = (t.to(torch.float64).unsqueeze(-1) for t in (c1, c2, a1, a2))
    cosine, sine = 2 * math.pi / window * a1, 2 * math.pi / window * a2
    count = window + inclusive
    response = c1 / 2 * (_geometric(cosine - omega, count) + _geometric(-cosine - omega, count))
    return response - 1j * c2 / 2 * (_geometric(sine - omega, count) - _geometric(-sine - omega, count))
