"""τ and the moments it rests on."""

import pytest
import torch

from hf_ssm.theory.complexity import (
    selective_kernel,
    selective_kernel_reference,
    tau,
    tau_reference,
)
from hf_ssm.theory.moments import lag_moments

LENGTHS = [9, 5, 1, 7]


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same four rows, padded with large numbers on one side."""
    rows = [torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    inputs = torch.full((4, 9, 3), 1e3, dtype=torch.float64)
    mask = torch.zeros(4, 9, dtype=torch.long)
    for i, row in enumerate(rows):
        where = slice(9 - len(row), None) if side == "left" else slice(0, len(row))
        inputs[i, where], mask[i, where] = row, 1
    return inputs, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_tau_equals_the_loops_with_padding(side: str) -> None:
    inputs, mask = padded(side)
    kernel = torch.randn(3, 9, dtype=torch.float64)
    torch.testing.assert_close(tau(kernel, *lag_moments(inputs, mask)), tau_reference(kernel, inputs, mask))


def test_tau_and_gradients_equal_the_loops_without_padding() -> None:
    inputs = torch.randn(5, 6, 2, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    fast, slow = tau(kernel, *lag_moments(inputs)), tau_reference(kernel, inputs)
    torch.testing.assert_close(fast, slow)
    for ours, theirs in zip(
        torch.autograd.grad(fast.sum(), [kernel, inputs]),
        torch.autograd.grad(slow.sum(), [kernel, inputs]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


def test_padding_on_either_side_gives_the_same_moments() -> None:
    for ours, theirs in zip(lag_moments(*padded("left")), lag_moments(*padded("right")), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_moments_from_the_first_token_are_those_of_the_reversed_rows() -> None:
    inputs, mask = padded("right")
    ours = lag_moments(inputs, mask, from_first=True)
    theirs = lag_moments(inputs.flip(1), mask.flip(1))
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)


def test_unit_statistics_give_the_squared_l1_norm() -> None:
    kernel = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -0.5]])
    torch.testing.assert_close(tau(kernel), torch.tensor([36.0, 1.0]))


def test_a_worked_example() -> None:
    # Two rows, one channel: at lag 0 the values 1 and 3 (mean 2, variance 1), at lag 1 both 5 (variance 0).
    inputs = torch.tensor([[[5.0], [1.0]], [[5.0], [3.0]]])
    kernel = torch.tensor([[-1.0, 0.5]])
    # sqrt(tau) = |-1| * 1 + |-1 * 2 + 0.5 * 5|
    torch.testing.assert_close(tau(kernel, *lag_moments(inputs)), torch.tensor([1.5**2]))


def test_constant_inputs_have_finite_gradients() -> None:
    inputs = torch.ones(3, 4, 1, requires_grad=True)
    kernel = torch.randn(1, 4, requires_grad=True)
    tau(kernel, *lag_moments(inputs)).sum().backward()
    assert torch.isfinite(inputs.grad).all()
    assert torch.isfinite(kernel.grad).all()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("is_complex", [True, False])
@pytest.mark.parametrize("with_skip", [True, False])
def test_selective_kernel_and_gradients_equal_the_impulse_responses(shared, is_complex, with_skip) -> None:
    length, channels, states = 7, 3, 4
    dtype = torch.complex128 if is_complex else torch.float64
    parts = {
        "delta": torch.rand(length, 1 if shared else channels, dtype=torch.float64),
        "A": torch.randn(channels, states, dtype=dtype),
        "B": torch.randn(length, states, dtype=dtype),
        "C": torch.randn(states, dtype=dtype),
    }
    if with_skip:
        parts["D"] = torch.randn(channels, dtype=torch.float64)
    for part in parts.values():
        part.requires_grad_()
    weights = torch.randn(channels, length, dtype=torch.float64)
    results = []
    for function in (selective_kernel, selective_kernel_reference):
        kernel = function(**parts)
        results.append((kernel, *torch.autograd.grad((kernel * weights).sum(), list(parts.values()))))
    for fast, plain in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, atol=1e-10, rtol=1e-10)


def test_selective_kernel_of_a_constant_system_is_its_convolution_kernel() -> None:
    """With the same Δ, B and C at each token, Euler's B and the exponential A, the kernel is C Ā^ℓ B̄."""
    A, b, c = (torch.randn(n, dtype=torch.float64) for n in ((2, 3), 3, 3))
    found = selective_kernel(torch.full((5, 1), 0.3, dtype=torch.float64), A, b.expand(5, 3), c)
    expected = [(c * torch.exp(0.3 * A * lag) * 0.3 * b).sum(-1) for lag in range(5)]
    torch.testing.assert_close(found, torch.stack(expected, dim=1))
