"""The two-level product. Formulas and errors are tested in test_lti_kernel.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_ssm.ops.lti.diagonal import diagonal_kernel, diagonal_kernel_reference
from hf_ssm.ops.lti.hippo import initial_eigenvalues

RULES = ("zoh", "bilinear")


def system(channels: int, pairs: int, low: float = -4, high: float = 0, seed: int = 0) -> list[torch.Tensor]:
    """Random parameters; step sizes from `10^low` to `10^high`."""
    generator = torch.Generator().manual_seed(seed)
    b, c, spread = (torch.randn(channels, pairs, dtype=torch.complex128, generator=generator) for _ in range(3))
    a = torch.complex(-spread.real.abs() - 0.1, 10 * spread.imag)
    dt = 10 ** (low + (high - low) * torch.rand(channels, dtype=torch.float64, generator=generator))
    return [t.requires_grad_() for t in (a, b, c, dt)]


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
    channels=st.integers(1, 5),
    pairs=st.integers(1, 7),
    length=st.one_of(st.integers(1, 20), st.integers(1, 300)),
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_match_the_reference(channels, pairs, length, rule, seed):
    inputs = system(channels, pairs, seed=seed)
    actual, expected = (f(*inputs, length, rule) for f in (diagonal_kernel, diagonal_kernel_reference))
    assert actual.shape == (channels, length)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    cotangent = torch.randn(channels, length, dtype=torch.float64)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-10, atol=1e-11 * (1 + other.abs().max().item()))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 6, 21])
def test_gradcheck(length, rule):
    assert torch.autograd.gradcheck(lambda *ts: diagonal_kernel(*ts, length, rule), system(2, 2, low=-1))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("init", ["legs", "lin", "inv"])
def test_float32_of_a_long_sequence_with_the_smallest_steps(init, rule):
    length = 16384
    inputs = system(4, 32)
    inputs[0] = initial_eigenvalues(init, 64).repeat(4, 1)
    inputs[3] = torch.tensor([1e-5, 1e-4, 1e-3, 1e-1])
    inputs = single(inputs)
    wide = double(inputs)
    actual, expected = diagonal_kernel(*inputs, length, rule), diagonal_kernel(*wide, length, rule)
    assert actual.dtype == torch.float32
    assert_close(actual, expected, 1e-5)
    cotangent = torch.randn(4, length)
    grads = torch.autograd.grad(actual, inputs, cotangent)
    for grad, other in zip(grads, torch.autograd.grad(expected, wide, cotangent.double()), strict=True):
        assert_close(grad, other, 1e-5)


@pytest.mark.parametrize("which", range(4))
def test_nan_stays_in_its_channel(which):
    inputs = system(4, 3)
    with torch.no_grad():
        inputs[which][1] = torch.nan
    kernel = diagonal_kernel(*inputs, 37)
    assert kernel[1].isnan().all()
    others = [0, 2, 3]
    assert kernel[others].isfinite().all()
    for grad in torch.autograd.grad(kernel.sum(), inputs):
        assert torch.view_as_real(grad[others]).isfinite().all() if grad.is_complex() else grad[others].isfinite().all()


def test_a_weight_of_zero_has_a_gradient():
    inputs = system(2, 3)
    with torch.no_grad():
        inputs[2].zero_()
    cotangent = torch.randn(2, 20, dtype=torch.float64)
    grads = torch.autograd.grad(diagonal_kernel(*inputs, 20), inputs, cotangent)
    others = torch.autograd.grad(diagonal_kernel_reference(*inputs, 20), inputs, cotangent)
    assert grads[2].abs().min() > 0
    for grad, other in zip(grads, others, strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-11, atol=1e-11)


def test_gradients_that_are_expanded_or_strided():
    inputs = system(3, 2)
    for cotangent in (torch.ones((), dtype=torch.float64).expand(3, 16), torch.randn(16, 3, dtype=torch.float64).mT):
        grads = torch.autograd.grad(diagonal_kernel(*inputs, 16), inputs, cotangent)
        others = torch.autograd.grad(diagonal_kernel_reference(*inputs, 16), inputs, cotangent)
        for grad, other in zip(grads, others, strict=True):
            torch.testing.assert_close(grad, other, rtol=1e-11, atol=1e-11)


def test_autocast_does_not_reach_the_kernel():
    inputs = single(system(2, 2))
    expected = diagonal_kernel(*inputs, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = diagonal_kernel(*inputs, 40)
        grads = torch.autograd.grad(actual.sum(), inputs)
    assert torch.equal(actual, expected)
    for grad, other in zip(grads, torch.autograd.grad(expected.sum(), inputs), strict=True):
        assert torch.equal(grad, other)


@pytest.mark.parametrize("rule", RULES)
def test_compiles_without_a_break(rule):
    torch.compiler.reset()
    inputs = system(2, 2)
    compiled = torch.compile(diagonal_kernel, backend="aot_eager", fullgraph=True)
    for length in (9, 20, 21):
        actual, expected = compiled(*inputs, length, rule), diagonal_kernel(*inputs, length, rule)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)
        cotangent = torch.randn(2, length, dtype=torch.float64)
        grads = torch.autograd.grad(actual, inputs, cotangent)
        for grad, other in zip(grads, torch.autograd.grad(expected, inputs, cotangent), strict=True):
            torch.testing.assert_close(grad, other, rtol=0, atol=1e-12)
