import numpy as np
import pytest
import torch

from hf_ssm.ops.long_conv import long_conv, long_conv_reference, next_fast_len


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def is_smooth(n: int) -> bool:
    for prime in (2, 3, 5, 7):
        while n % prime == 0:
            n //= prime
    return n == 1


def test_next_fast_len_is_the_smallest_smooth_number():
    for n in range(1, 3000):
        expected = n
        while not is_smooth(expected):
            expected += 1
        assert next_fast_len(n) == expected
    assert next_fast_len(2**20 + 1) == min(m for m in range(2**20 + 1, 2**20 + 9000) if is_smooth(m))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("backward_taps", [None, 1, 2, 6, 7, 11])
@pytest.mark.parametrize("taps", [1, 2, 7, 8, 13])
def test_values_match_numpy(length, taps, backward_taps):
    u, kernel = randn(2, length, 3), randn(3, taps, seed=1)
    backward_kernel = None if backward_taps is None else randn(3, backward_taps, seed=2)
    y = long_conv(u, kernel, backward_kernel)
    assert y.shape == u.shape
    for b in range(2):
        for d in range(3):
            # Lags -K2, ..., K - 1 in one kernel: the output at position t sits at t + K2.
            back = [] if backward_kernel is None else backward_kernel[d].flip(0).tolist()
            full = np.convolve(np.array(back + kernel[d].tolist()), u[b, :, d].numpy())
            np.testing.assert_allclose(y[b, :, d], full[len(back) : len(back) + length], atol=1e-13)


@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize("backward_taps", [None, 2, 9])
@pytest.mark.parametrize("taps", [1, 3, 11])
def test_values_and_gradients_match_the_reference(length, taps, backward_taps):
    inputs = [randn(2, length, 3), randn(3, taps, seed=1)]
    if backward_taps is not None:
        inputs.append(randn(3, backward_taps, seed=2))
    inputs = [t.requires_grad_() for t in inputs]
    y, expected = long_conv(*inputs), long_conv_reference(*inputs)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-13)
    cotangent = randn(*y.shape, seed=3)
    # A backward kernel cannot act on one position: both leave its gradient at zero or unset.
    grads = torch.autograd.grad(y, inputs, cotangent, allow_unused=True, materialize_grads=True)
    expected_grads = torch.autograd.grad(expected, inputs, cotangent, allow_unused=True, materialize_grads=True)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-12)


def test_gradcheck():
    inputs = [randn(2, 5, 2), randn(2, 4, seed=1), randn(2, 3, seed=2)]
    assert torch.autograd.gradcheck(long_conv, [t.requires_grad_() for t in inputs])


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_input_only(wanted):
    inputs = [randn(2, 5, 2), randn(2, 4, seed=1)]
    inputs[wanted].requires_grad_()
    long_conv(*inputs).sum().backward()
    expected = [t.detach().clone() for t in inputs]
    expected[wanted].requires_grad_()
    long_conv_reference(*expected).sum().backward()
    torch.testing.assert_close(inputs[wanted].grad, expected[wanted].grad)
    assert inputs[1 - wanted].grad is None


def test_second_derivative_is_refused():
    u, kernel = randn(1, 5, 2).requires_grad_(), randn(2, 4, seed=1)
    (grad,) = torch.autograd.grad(long_conv(u, kernel).pow(2).sum(), u, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("backward_taps", [None, 257])
def test_float32_accuracy(backward_taps):
    u, kernel = randn(2, 1000, 4), randn(4, 1000, seed=1)
    backward_kernel = None if backward_taps is None else randn(4, backward_taps, seed=2)
    expected = long_conv(u, kernel, backward_kernel)
    y = long_conv(u.float(), kernel.float(), None if backward_kernel is None else backward_kernel.float())
    assert y.dtype == torch.float32
    assert (y - expected).abs().max() < 2e-6 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    u, kernel = randn(2, 33, 4).to(dtype), randn(4, 33, seed=1, dtype=torch.float32)
    y = long_conv(u.requires_grad_(), kernel)
    assert y.dtype == dtype
    expected = long_conv(u.detach().double(), kernel.double())
    torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-5)
    y.float().sum().backward()
    assert u.grad is not None
    assert u.grad.dtype == dtype


def test_inputs_need_not_be_contiguous():
    u = randn(3, 2, 9).permute(1, 2, 0)
    torch.testing.assert_close(long_conv(u, randn(3, 4)), long_conv(u.contiguous(), randn(3, 4)))


def test_errors():
    with pytest.raises(ValueError, match=r"u must have shape .* got \(4, 3\)"):
        long_conv(torch.zeros(4, 3), torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"length >= 1.* got \(2, 0, 3\)"):
        long_conv(torch.zeros(2, 0, 3), torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"^kernel must .*channels = 3 as in u, got \(4, 2\)"):
        long_conv(torch.zeros(2, 5, 3), torch.zeros(4, 2))
    with pytest.raises(ValueError, match=r"backward_kernel must .* got \(3, 0\)"):
        long_conv(torch.zeros(2, 5, 3), torch.zeros(3, 2), torch.zeros(3, 0))
    with pytest.raises(ValueError, match="n must be a positive integer, got 0"):
        next_fast_len(0)
