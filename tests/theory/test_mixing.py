"""τ behind a mixing matrix: the definition by covariance matrices, its special cases, and what it bounds."""

import pytest
import torch
from theory_references import mixed_tau_reference

from hf_ssm.ops.documents import Documents
from hf_ssm.theory.complexity import tau
from hf_ssm.theory.mimo import matrix_tau
from hf_ssm.theory.mixing import mixed_tau
from hf_ssm.theory.moments import lag_moments


def drawn(rows: int = 6, length: int = 7, channels: int = 3, outputs: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    options = {"generator": generator, "dtype": torch.float64}
    kernel, mixing = torch.randn(channels, length, **options), torch.randn(outputs, channels, **options)
    between = torch.randn(channels, channels, **options)
    return kernel, mixing, torch.randn(rows, length, channels, **options) @ between + 0.5


@pytest.mark.parametrize("padded", [None, "left", "right"])
def test_values_and_gradients_equal_the_definition(padded: str | None) -> None:
    kernel, mixing, inputs = (tensor.requires_grad_() for tensor in drawn())
    mask = None
    if padded is not None:
        mask = torch.arange(7) < torch.tensor([[7], [4], [6], [2], [7], [5]])
        mask = mask if padded == "right" else mask.flip(1)
        # Zeros, as the inputs of operators are at padding.
        inputs = (inputs.detach() * mask.unsqueeze(-1)).requires_grad_()
    fast = mixed_tau(kernel, mixing, inputs, mask)
    slow = mixed_tau_reference(kernel, mixing, inputs, mask)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(
        torch.autograd.grad(fast.sum(), [kernel, mixing, inputs]),
        torch.autograd.grad(slow.sum(), [kernel, mixing, inputs]),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_without_mixing_it_is_tau_of_each_channel() -> None:
    kernel, _, inputs = drawn()
    expected = tau(kernel, *lag_moments(inputs))
    torch.testing.assert_close(mixed_tau(kernel, torch.eye(3, dtype=torch.float64), inputs), expected)


def test_equal_channels_add_up_and_cancel() -> None:
    kernel, mixing, inputs = drawn()
    same = inputs[..., :1].expand(-1, -1, 3)
    expected = tau(mixing @ kernel, *lag_moments(inputs[..., :1].expand(-1, -1, 2)))
    torch.testing.assert_close(mixed_tau(kernel, mixing, same), expected)
    opposite = torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)
    equal_kernels = kernel[:1].expand(3, -1)
    assert mixed_tau(equal_kernels, opposite, same).item() == pytest.approx(0, abs=1e-20)
    assert tau(equal_kernels, *lag_moments(same)).mean() > 0.1


def test_uncorrelated_channels_of_one_lag_are_a_mean_with_squared_weights() -> None:
    """All signs of three channels: mean 0 and exactly no correlation."""
    inputs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3).unsqueeze(1)
    kernel, mixing, _ = drawn(length=1)
    expected = mixing.square() @ tau(kernel, *lag_moments(inputs))
    torch.testing.assert_close(mixed_tau(kernel, mixing, inputs), expected)


def test_the_matrix_without_correlation_is_an_upper_bound() -> None:
    kernel, mixing, inputs = drawn()
    whole = mixing.unsqueeze(-1) * kernel
    found, bound = mixed_tau(kernel, mixing, inputs), matrix_tau(whole, *lag_moments(inputs))
    assert (found < bound).all()
    # Together with the spread of the outputs it encloses it: Minkowski's inequality.
    outputs = torch.einsum("odl,bld->bo", whole, inputs.flip(1))
    assert (outputs.std(0, correction=0) + outputs.mean(0).abs() <= found.sqrt() + 1e-12).all()


def test_packed_documents_are_rows() -> None:
    kernel, mixing, inputs = drawn(rows=3)
    lengths = [7, 4, 7]
    mask = torch.arange(7) < torch.tensor(lengths).unsqueeze(1)
    expected = mixed_tau(kernel, mixing, inputs * mask.unsqueeze(-1), mask)
    packed = torch.cat([row[:n] for row, n in zip(inputs, lengths, strict=True)]).unsqueeze(0)
    starts = torch.tensor([0, 7, 11])
    documents = Documents(torch.zeros(3, dtype=torch.long), starts, torch.tensor(lengths), (1, 18))
    found = mixed_tau(kernel, mixing, documents.arrange(packed), documents=documents)
    torch.testing.assert_close(found, expected)


def test_a_matrix_of_other_channels_is_refused() -> None:
    kernel, _, inputs = drawn()
    with pytest.raises(ValueError, match=r"`mixing` must have shape \(outputs, 3\), .* got \(2, 4\)"):
        mixed_tau(kernel, torch.ones(2, 4), inputs)
