"""The Triton kernels of the short convolution, against the reference in double precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="triton is not installed")

from costs.short_conv import backward_cost, forward_cost
from proofs import assert_counted, assert_parity, counted

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.short_conv import short_conv, short_conv_extend, short_conv_reference
from hf_ssm.ops.short_conv.triton import _convolve, _convolve_backward


def arguments(batch, length, channels, taps, dtype, device, bias=True):
    shapes = [(batch, length, channels), (channels, taps)] + [(channels,)] * bias
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_parity(device, dtype, bidirectional, masked):
    given_arguments = arguments(2, 37, 5, 4, dtype, device)
    mask = (torch.rand(2, 37) > 0.3).to(device) if masked else None
    if masked:
        # Whatever is at a masked position is not read.
        with torch.no_grad():
            given_arguments[0][~mask] = float("nan")
    options = {"bidirectional": bidirectional, "activation": "silu", "mask": mask}
    assert_parity(short_conv, lambda *args, **kw: short_conv_reference(*args, **kw), given_arguments, **options)


@given(st.integers(1, 2), st.integers(1, 40), st.integers(1, 3), st.integers(1, 5), st.booleans(), st.booleans())
@settings(max_examples=6)
def test_parity_at_any_shape(batch, length, channels, taps, bias, activated):
    device = "cpu" if torch.cuda.device_count() == 0 else "cuda"
    options = {"activation": "silu" if activated else None}
    assert_parity(
        short_conv,
        short_conv_reference,
        arguments(batch, length, channels, taps, torch.float32, device, bias),
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [_convolve, _convolve_backward], ids=lambda kernel: kernel.name)
def test_every_configuration(device, kernel, monkeypatch):
    for config in kernel.configs:
        monkeypatch.setattr(kernel, "configs", [config])
        assert_parity(
            short_conv, short_conv_reference, arguments(1, 40, 40, 3, torch.float32, device), activation="silu"
        )


def test_pieces_equal_the_whole(device):
    u, weight, bias = (t.detach() for t in arguments(2, 9, 5, 4, torch.float32, device))
    expected = short_conv_reference(u, weight, bias, activation="silu")
    with use_backend("triton"):
        state, pieces = None, []
        for piece in u.split((2, 1, 6), dim=1):
            y, state = short_conv_extend(piece, state, weight, bias, activation="silu")
            pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected)


def test_counted_cost(device):
    u, weight, bias = arguments(2, 64, 64, 4, torch.float32, device)
    with use_backend("triton"):
        with counted() as forward:
            y = short_conv(u, weight, bias, activation="silu")
        with counted() as backward:
            y.backward(torch.ones_like(y))
    assert_counted(forward, forward_cost(2, 64, 64, 4, 4, tile=32), local=True)
    assert_counted(backward, backward_cost(2, 64, 64, 4, 4, tile=32), local=True)
