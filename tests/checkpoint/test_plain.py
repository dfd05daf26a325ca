"""Parity of the plain operations of checkpoints with those that they replace."""

import pytest
import torch

from hf_ssm.checkpoint import plain
from hf_ssm.ops.long_conv import long_conv

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
