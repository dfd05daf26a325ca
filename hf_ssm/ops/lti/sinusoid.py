"""Two-frequency sinusoid filter: kernel and frequency response.

Dimensions: `L` length, `D` channels, `S` frequencies.

Source: Nishikawa & Suzuki 2025, Section 3 (ii).
"""

import math

import torch

__all__ = ["sinusoid_kernel", "sinusoid_response"]


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
    t = torch.arange(length, device=c1.device, dtype=a1.dtype)
    phase = 2 * math.pi / window * t
    cosine, sine, slow, fast = (parameter.unsqueeze(-1) for parameter in (c1, c2, a1, a2))
    kernel = cosine * torch.cos(slow * phase) + sine * torch.sin(fast * phase)
    return kernel * (t < window + inclusive)


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
