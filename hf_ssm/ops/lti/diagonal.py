"""Kernel and transfer function of diagonal state space models.

Dimensions: `B` batch, `L` length, `D` channels, `N` real states, `H = N // 2` stored conjugate pairs, `S`
frequencies.

One eigenvalue of each conjugate pair is stored; the real kernel is `k[l] = 2 Re Σ_n c b_bar a_bar^l`.
"""

import torch

from hf_ssm.ops.backends import Operation
from hf_ssm.ops.lti.discretize import bilinear, check_discretization, zoh
from hf_ssm.ops.lti.exponential_sums import exponential_sums

__all__ = ["check_system", "diagonal_kernel", "diagonal_kernel_reference", "diagonal_transfer", "working_dtype"]


def check_system(length: int, discretization: str, dt: torch.Tensor, **states: torch.Tensor) -> None:
    """Raise a ValueError where length, discretization, step sizes or states, `(D, H)` and complex, are not valid."""
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length!r}")
    check_discretization(discretization)
    shapes = {name: tuple(map(int, value.shape)) for name, value in states.items()}
    first = next(iter(states.values()))
    if first.dim() != 2 or len(set(shapes.values())) != 1:
        raise ValueError(f"{', '.join(shapes)} must share one shape (channels, state_size // 2), got {shapes}")
    for name, value in states.items():
        if not value.is_complex():
            raise ValueError(f"{name} must be complex, got {value.dtype}; use torch.view_as_complex")
    if dt.shape != first.shape[:1]:
        raise ValueError(f"dt must have shape (channels,) = ({first.shape[0]},), got {tuple(dt.shape)}")


def working_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """float64 if one of the tensors is complex128, else float32."""
    return torch.float64 if any(t.dtype == torch.complex128 for t in tensors) else torch.float32


def diagonal_kernel(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "zoh",
) -> torch.Tensor:
    """Kernel of a diagonal system, `k[l] = 2 Re Σ_n c_n b_bar_n a_bar_n^l`.

    Computed by `exponential_sums`, whose tables are complex128 and rounded once to the working precision, so that the
    phase of `a_bar^l` is accurate at any length.

    Args:
        a: Eigenvalues `(D, H)`, complex, real part negative.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.
        dt: Step sizes `(D,)`, positive.
        length: Number of taps `L`.
        discretization: `"zoh"` or `"bilinear"`.

    Returns:
        `(D, L)`, float64 if one of a, b, c is complex128, else float32.

    Raises:
        ValueError: Shapes or types do not fit, unknown discretization, or `length < 1`.

    Source: Gu et al. 2022 (S4D), eq. (4) and Section 3.2 (there as a Vandermonde product).
    """
    check_system(length, discretization, dt, a=a, b=b, c=c)
    kernel: torch.Tensor = _DIAGONAL_KERNEL(a, b, c, dt, length, discretization)
    return kernel.to(working_dtype(a, b, c))


def _diagonal_kernel_torch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, dt: torch.Tensor, length: int, discretization: str
) -> torch.Tensor:
    dtype = working_dtype(a, b, c)
    a, b, c = (t.to(torch.complex128) for t in (a, b, c))
    step = dt.to(torch.float64).unsqueeze(-1)
    if discretization == "zoh":
        _, b_bar = zoh(a, b, step)
        log_base = a * step
    else:
        a_bar, b_bar = bilinear(a, b, step)
        # a dt = -2 gives a_bar = 0, whose logarithm is infinite; 1e-30 has the same powers and the same
        # gradient.
        log_base = torch.log(torch.where(a_bar.abs() < 1e-30, a_bar + 1e-30, a_bar))
    return exponential_sums(log_base, 2 * c * b_bar, length, dtype)


def diagonal_kernel_reference(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    length: int,
    discretization: str = "zoh",
) -> torch.Tensor:
    """`diagonal_kernel` by running powers of `a_bar`; same arguments."""
    check_system(length, discretization, dt, a=a, b=b, c=c)
    a_bar, power = (zoh if discretization == "zoh" else bilinear)(a, b, dt.unsqueeze(-1))
    taps = []
    for _ in range(length):
        taps.append(2 * (c * power).sum(-1).real)
        power = power * a_bar
    return torch.stack(taps, dim=-1)


_DIAGONAL_KERNEL = Operation(torch=_diagonal_kernel_torch, reference=diagonal_kernel_reference)


def diagonal_transfer(s: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Transfer function of a diagonal system, `G(s) = Σ_n c b / (s - a) + conj(c b) / (s - conj(a))`.

    Complex, with both halves of every conjugate pair: the Laplace transform of the real impulse response. (Yu
    et al. take the real part of it on the imaginary axis, their eq. (3).)

    Args:
        s: Complex frequencies `(S,)` or per channel `(D, S)`, in radians per unit of time times i.
        a: Eigenvalues `(D, H)`.
        b: Input weights `(D, H)`.
        c: Output weights `(D, H)`.

    Returns:
        `(D, S)`, complex.
    """
    s, cb = s.unsqueeze(-1), (c * b).unsqueeze(1)
    a = a.unsqueeze(1)
    return (cb / (s - a) + cb.conj() / (s - a.conj())).sum(-1)
