"""The product of rows and columns. Formulas and errors are tested in test_lti_kernel.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_ssm.ops.lti.discretize import bilinear_dense, zoh_dense
from hf_ssm.ops.lti.dplr import dense_kernel, dplr_dense, dplr_kernel, dplr_kernel_reference
from hf_ssm.ops.lti.hippo import legs_nplr

RULES = ("bilinear", "zoh")


def system(channels: int, pairs: int, low: float = -4, high: float = 0, seed: int = 0) -> list[torch.Tensor]:
    """Random parameters; step sizes from `10^low` to `10^high`."""
    generator = torch.Generator().manual_seed(seed)
    p, b, c, spread = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(4))
    lam = torch.complex(-spread.real.abs() - 0.1, 10 * spread.imag)
    dt = 10 ** (low + (high - low) * torch.rand(channels, dtype=torch.float64, generator=generator))
    return [t.requires_grad_() for t in (lam, p, b, c, dt)]


def single(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The same in float32."""
    narrow = [t.detach().to(torch.complex64 if t.is_complex() else torch.float32) for t in inputs]
    return [t.requires_grad_() for t in narrow]


def double(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in float64."""
    wide = [t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in inputs]
    return [t.requires_grad_() for t in wide]


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Relative to the greatest value of each channel; for step sizes, whose gradients are sums that cancel, of all."""
    error, size = (actual.detach() - expected).abs(), expected.abs()
    error, size = (error.amax(-1), size.amax(-1)) if error.dim() == 2 else (error, size.max())
    assert (error <= tolerance * size).all(), (error / size).max()


@given(
    channels=st.integers(1, 4),
    pairs=st.integers(1, 6),
    length=st.one_of(st.integers(1, 20), st.integers(1, 300)),
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_match_the_reference(channels, pairs, length, rule, seed):
    inputs = system(channels, pairs, seed=seed)
    actual, expected = (f(*inputs, length, rule) for f in (dplr_kernel, dplr_kernel_reference))
    assert actual.shape == (channels, length)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    cotangent = torch.randn(channels, length, dtype=torch.float64)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-9, atol=1e-10 * (1 + other.abs().max().item()))


# 4200 taps are 33 rows of 128: sixteen by doubling, eight, eight and one by steps.
@pytest.mark.parametrize("rule", RULES)
def test_a_long_kernel_matches_the_reference(rule):
    inputs = system(1, 2, low=-3, high=-2)
    actual, expected = (f(*inputs, 4200, rule) for f in (dplr_kernel, dplr_kernel_reference))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    cotangent = torch.randn(1, 4200, dtype=torch.float64)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-8, atol=1e-9 * (1 + other.abs().max().item()))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 6, 21])
def test_gradcheck(length, rule):
    assert torch.autograd.gradcheck(lambda *ts: dplr_kernel(*ts, length, rule), system(2, 2, low=-1))


@pytest.mark.parametrize("length", [1, 2, 7, 70])
def test_where_a_diagonal_power_vanishes(length):
    # λ dt = -2 makes δ = 0.
    lam, p, b, c, dt = system(2, 2)
    with torch.no_grad():
        dt[0] = 0.5
        lam[0, 0] = -4
    inputs = [lam, p, b, c, dt]
    cotangent = torch.randn(2, length, dtype=torch.float64)
    actual, expected = (f(*inputs, length) for f in (dplr_kernel, dplr_kernel_reference))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("rule", "discretize"), [("bilinear", bilinear_dense), ("zoh", zoh_dense)])
def test_dense_kernel_is_its_formula(rule, discretize):
    lam, p, b, c, dt = (t.detach() for t in system(2, 3))
    a_bar, b_bar = discretize(*dplr_dense(lam, p, b, c)[:2], dt)
    # A basis of real coordinates: x = T z, z = (Re, Im).
    eye = torch.eye(3, dtype=lam.dtype)
    basis = torch.cat([torch.cat([eye, 1j * eye], dim=1), torch.cat([eye, -1j * eye], dim=1)])
    matrix = (torch.linalg.inv(basis) @ a_bar @ basis).real
    vector = (torch.linalg.inv(basis) @ b_bar.unsqueeze(-1)).squeeze(-1).real
    out = (torch.cat([c, c.conj()], dim=-1).unsqueeze(1) @ basis).squeeze(1).real
    expected = dplr_kernel_reference(lam, p, b, c, dt, 45, rule)
    torch.testing.assert_close(dense_kernel(matrix, vector, out, 45), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("rule", RULES)
def test_float32_legs_of_a_long_sequence_with_the_smallest_steps(rule):
    length = 16384
    inputs = system(4, 32)
    inputs[:3] = (t.repeat(4, 1) for t in legs_nplr(64)[:3])
    inputs[4] = torch.tensor([1e-5, 1e-4, 1e-3, 1e-1])
    inputs = single(inputs)
    wide = double(inputs)
    actual, expected = dplr_kernel(*inputs, length, rule), dplr_kernel(*wide, length, rule)
    assert actual.dtype == torch.float32
    assert_close(actual, expected, 1e-5)
    cotangent = torch.randn(4, length)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, wide, cotangent.double()), strict=True):
        assert_close(grad, other, 1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_float64_legs_of_a_long_sequence_is_the_recurrence(rule):
    # Every 500th tap of 16384, by powers of the matrix.
    lam, p, b = (t.unsqueeze(0) for t in legs_nplr(64)[:3])
    c, dt = torch.randn_like(b), torch.tensor([1e-4], dtype=torch.float64)
    kernel = dplr_kernel(lam, p, b, c, dt, 16384, rule)
    a_bar, state = (bilinear_dense if rule == "bilinear" else zoh_dense)(*dplr_dense(lam, p, b, c)[:2], dt)
    stride = torch.linalg.matrix_power(a_bar, 500)
    for tap in range(0, 16384, 500):
        assert kernel[0, tap].item() == pytest.approx(2 * (c * state[:, :32]).sum().real.item(), abs=1e-9)
        state = (stride @ state.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("which", range(5))
def test_nan_stays_in_its_channel(which, rule):
    inputs = system(4, 3)
    with torch.no_grad():
        inputs[which][1] = torch.nan
    kernel = dplr_kernel(*inputs, 37, rule)
    assert kernel[1].isnan().all()
    others = [0, 2, 3]
    assert kernel[others].isfinite().all()
    for grad in torch.autograd.grad(kernel.sum(), inputs):
        assert torch.view_as_real(grad[others]).isfinite().all() if grad.is_complex() else grad[others].isfinite().all()


def test_autocast_does_not_reach_the_kernel():
    inputs = single(system(2, 2))
    expected = dplr_kernel(*inputs, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = dplr_kernel(*inputs, 40)
        grads = torch.autograd.grad(actual.sum(), inputs)
    assert torch.equal(actual, expected)
    for grad, other in zip(grads, torch.autograd.grad(expected.sum(), inputs), strict=True):
        assert torch.equal(grad, other)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_compiles_without_a_break(rule):
    torch.compiler.reset()
    inputs = system(2, 2)
    compiled = torch.compile(dplr_kernel, backend="aot_eager", fullgraph=True)
    for length in (9, 20, 21):
        actual, expected = compiled(*inputs, length, rule), dplr_kernel(*inputs, length, rule)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
        cotangent = torch.randn(2, length, dtype=torch.float64)
        grads = torch.autograd.grad(actual, inputs, cotangent)
        for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
            torch.testing.assert_close(grad, other, rtol=0, atol=1e-12)
