"""The Triton kernels of S4D and S4, against the references in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from proofs import assert_near, assert_parity

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.lti import triton_exponential_sums as sums
from hf_ssm.ops.lti.diagonal import diagonal_kernel, diagonal_kernel_reference
from hf_ssm.ops.lti.exponential_sums import exponential_sums

# Of the largest tap of a kernel, or of the largest gradient of a parameter.
TOLERANCE = 1e-5


def diagonal_system(device, channels=2, pairs=3, low=-2.0, high=0.0, dtype=torch.complex64, seed=0):
    """Parameters of a diagonal system; step sizes from `10^low` to `10^high`."""
    generator = torch.Generator().manual_seed(seed)
    b, c, spread = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(3))
    a = torch.complex(-spread.real.abs() - 0.1, 10 * spread.imag)
    dt = 10 ** (low + (high - low) * torch.rand(channels, dtype=torch.float64, generator=generator))
    system = [t.to(device, dtype) for t in (a, b, c)] + [dt.to(device, dtype.to_real())]
    return [t.requires_grad_() for t in system]


def bases(device, channels, pairs, decay, seed=0):
    """Logarithms of the bases, with real parts down to `-decay`, and weights; complex128."""
    generator = torch.Generator().manual_seed(seed)
    spread, weights = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(2))
    base = torch.complex(-decay * spread.real.abs(), 4 * spread.imag)
    return [t.to(device).requires_grad_() for t in (base, weights)]


def narrow_sums(log_base, weights, length):
    return exponential_sums(log_base, weights, length, torch.float32)


def direct_sums(log_base, weights, length):
    steps = torch.arange(length, dtype=torch.float64, device=log_base.device)
    return (weights.unsqueeze(-1) * torch.exp(log_base.unsqueeze(-1) * steps)).sum(1).real


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize(("pairs", "length"), [(3, 37), (17, 1100), (1, 1)])
def test_diagonal_kernel(device, rule, pairs, length):
    system = diagonal_system(device, 2, pairs)
    assert_parity(diagonal_kernel, diagonal_kernel_reference, [*system, length], TOLERANCE, discretization=rule)


@given(st.integers(0, 3), st.integers(0, 20), st.integers(1, 1400), st.integers(0, 100))
@settings(max_examples=8)
def test_sums_of_any_shape(channels, pairs, length, seed):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given_bases = bases(device, channels, pairs, decay=0.05, seed=seed)
    assert_parity(narrow_sums, direct_sums, [*given_bases, length], TOLERANCE)


@pytest.mark.parametrize("kernel", [sums._exponential_sums, sums._exponential_sums_backward], ids=lambda k: k.name)
@pytest.mark.parametrize("number", [0, 1])
def test_every_configuration_of_the_sums(device, kernel, number, monkeypatch):
    monkeypatch.setattr(kernel, "configs", [kernel.configs[number]])
    for length in (70, 4100):
        assert_parity(narrow_sums, direct_sums, [*bases(device, 1, 33, decay=0.01), length], TOLERANCE)


def test_phases_at_a_million(device):
    """Without decay, an error of the phase shows in full."""
    base, weights = (t.detach() for t in bases(device, 1, 4, decay=0.0))
    length, at = 1_000_003, torch.tensor([0, 1, 999_999, 1_000_002])
    with use_backend("triton"):
        taps = exponential_sums(base, weights, length, torch.float32)[:, at.to(device)]
    expected = (weights.unsqueeze(-1) * torch.exp(base.unsqueeze(-1) * at.to(device, torch.float64))).sum(1).real
    assert_near(taps.cpu(), expected.cpu(), 1e-6, "taps")
