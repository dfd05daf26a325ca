import pytest
import torch
import torch.nn.functional as F

from hf_ssm.ops.short_conv import short_conv, short_conv_extend, short_conv_reference


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients_match_the_reference(length, taps, bidirectional, with_bias):
    inputs = [randn(2, length, 3), randn(3, taps, seed=1)] + ([randn(3, seed=2)] if with_bias else [])
    inputs = [t.requires_grad_() for t in inputs]
    y = short_conv(*inputs, bidirectional=bidirectional)
    expected = short_conv_reference(*inputs, bidirectional=bidirectional)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-14)
    cotangent = randn(*y.shape, seed=3)
    for grad, expected_grad in zip(
        torch.autograd.grad(y, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-13)


@pytest.mark.parametrize("taps", [1, 3, 4])
def test_weight_order_is_that_of_a_left_padded_convolution(taps):
    u, weight, bias = randn(2, 8, 3), randn(3, taps, seed=1), randn(3, seed=2)
    layer = torch.nn.Conv1d(3, 3, taps, groups=3, padding=taps - 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight.unsqueeze(1))
        layer.bias.copy_(bias)
        expected = layer(u.transpose(1, 2))[..., :8].transpose(1, 2)
    torch.testing.assert_close(short_conv(u, weight, bias), expected)


@pytest.mark.parametrize("taps", [1, 3, 5])
def test_bidirectional_is_centred(taps):
    u, weight = randn(2, 8, 3), randn(3, taps, seed=1)
    expected = F.conv1d(u.transpose(1, 2), weight.unsqueeze(1), padding="same", groups=3).transpose(1, 2)
    torch.testing.assert_close(short_conv(u, weight, bidirectional=True), expected)


def test_an_even_centred_kernel_looks_one_further_ahead():
    u = torch.zeros(1, 5, 1, dtype=torch.float64)
    u[0, 2] = 1
    y = short_conv(u, torch.tensor([[10.0, 20.0]], dtype=torch.float64), bidirectional=True)
    assert y.flatten().tolist() == [0, 20, 10, 0, 0]


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("pieces", [(1,) * 7, (7,), (2, 1, 4)])
def test_pieces_equal_the_convolution(taps, with_bias, pieces):
    u, weight = randn(2, 7, 3), randn(3, taps, seed=1)
    bias = randn(3, seed=2) if with_bias else None
    state, outputs = None, []
    for piece in u.split(pieces, dim=1):
        y, state = short_conv_extend(piece, state, weight, bias)
        outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), short_conv(u, weight, bias), rtol=0, atol=1e-14)
    assert state.shape == (2, 3, taps - 1)
    if taps > 1:
        torch.testing.assert_close(state, u[:, 8 - taps :].transpose(1, 2))


def test_pieces_keep_the_dtype_of_the_input():
    u, weight = randn(2, 1, 3).bfloat16(), randn(3, 4, seed=1).bfloat16()
    y, state = short_conv_extend(u, None, weight)
    assert y.dtype == state.dtype == torch.bfloat16


def test_errors():
    u = torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match=r"u must have shape .* got \(5, 3\)"):
        short_conv(u[0], torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"weight must .*channels = 3 as in u, got \(2, 4\)"):
        short_conv(u, torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"bias must have shape \(3,\), got \(4,\)"):
        short_conv(u, torch.zeros(3, 2), torch.zeros(4))
    with pytest.raises(ValueError, match=r"state must .* = \(2, 3, 1\), got \(2, 3, 2\)"):
        short_conv_extend(u, torch.zeros(2, 3, 2), torch.zeros(3, 2))
