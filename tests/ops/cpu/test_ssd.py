"""The compiled kernels of the state space duality and threads."""

from typing import Any

import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from hf_ssm.ops.ssd import ssd_scan


def kernel_inputs(batch=2, length=70, heads=6, channels=20, groups=2, states=17) -> dict[str, Any]:
    tensors = {
        "x": torch.randn(batch, length, heads, channels),
        "d": torch.rand(batch, length, heads),
        "A": -torch.rand(heads),
        "B": torch.randn(batch, length, groups, states),
        "C": torch.randn(batch, length, groups, states),
        "D": torch.randn(heads),
        "initial_state": torch.randn(batch, heads, channels, states),
    }
    return {name: t.requires_grad_() for name, t in tensors.items()}


def test_no_digit_depends_on_the_number_of_threads():
    inputs = kernel_inputs(3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            *tensors, state = inputs.values()
            y = ssd_scan(*tensors, initial_state=state)
            results.append((y, *torch.autograd.grad(y.square().sum(), list(inputs.values()))))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            assert torch.equal(found, expected)
