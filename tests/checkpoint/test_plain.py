"""Parity of the plain operations of checkpoints with those that they replace."""

import copy

import pytest
import torch

from hf_ssm.checkpoint import plain
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.ops.long_conv.streaming import StreamingConvolution

SIZES = [(1, 1, 0), (1, 5, 3), (7, 3, 0), (7, 20, 0), (40, 40, 39), (40, 3, 60), (513, 513, 0)]


@pytest.mark.parametrize(("length", "taps", "ahead"), SIZES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_long_conv(length, taps, ahead, dtype):
    torch.manual_seed(0)
    u, kernel = (
        torch.randn(2, length, 3).to(dtype),
        torch.randn(3, taps, dtype=torch.promote_types(dtype, torch.float32)),
    )
    back = torch.randn(3, ahead, dtype=kernel.dtype) if ahead else None
    results = []
    for function in (plain.long_conv, long_conv):
        leaves = [t if t is None else t.clone().requires_grad_() for t in (u, kernel, back)]
        y = function(*leaves)
        assert y.dtype == dtype
        y.double().square().sum().backward()
        results.append(
            [
                y.detach(),
                *(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves if leaf is not None),
            ]
        )
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance * float(there.abs().max() + 1))


@pytest.mark.parametrize("longest", [None, 60])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_streaming(longest, with_gradients):
    torch.manual_seed(0)
    u, kernel = torch.randn(2, 60, 3), torch.randn(3, 200, requires_grad=with_gradients)
    expected = long_conv(u, kernel[:, :60])
    stream = plain.StreamingConvolution(longest)
    pieces = [stream.extend(piece, lambda n: kernel[:, :n]) for piece in u.split([9, 1, 1, 30, 1, 18], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), expected, rtol=1e-5, atol=1e-5)
    assert stream.length == 60 and torch.equal(stream.history, u)
    if longest is not None:
        with pytest.raises(ValueError, match="would have 61 positions, but the implicit filter has taps for 60"):
            stream.extend(u[:, :1], lambda n: kernel[:, :n])
        assert stream.length == 60


def test_rows_of_streams_move_as_in_hf_ssm():
    torch.manual_seed(0)
    u, kernel = torch.randn(3, 10, 2), torch.randn(2, 200)
    results = []
    for kind in (plain.StreamingConvolution, StreamingConvolution):
        streams = [kind(), kind()]
        streams[0].extend(u[:2, :8], lambda n: kernel[:, :n])
        streams[1].extend(u[2:, :5], lambda n: kernel[:, :n])
        joined = kind.join(streams)
        joined.select(torch.tensor([2, 0]))
        copied = copy.deepcopy(joined)
        joined.keep_last(8)
        joined.detach_()
        again = kind.from_history(copied.history)
        results.append([s.extend(u[:2, 8:9], lambda n: kernel[:, :n]) for s in (joined, copied, again)])
    for here, there in zip(*results, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)
