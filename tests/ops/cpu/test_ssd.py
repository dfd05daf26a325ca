"""The compiled kernels of the state space duality: threads, torch's own checks, and single-token decoding."""

import math
from typing import Any

import pytest
import torch

pytest.importorskip("numba", reason="numba is not installed (the extra `cpu`)")

from decoding_references import ssd_blocks_step_reference

from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.cpu.ssd_decoding import SSDBlocksStep
from hf_ssm.ops.ssd import ssd_scan
from hf_ssm.ops.ssd_decoding import SSDBlockOptions, SSDBlockWeights


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


def block_weights(size, heads, channels, groups, states, taps, options: dict[str, Any], dtype) -> SSDBlockWeights:
    def randn(*shape: int, wanted: bool = True) -> torch.Tensor | None:
        return torch.randn(*shape, dtype=dtype) / max(1, shape[-1]) ** 0.5 if wanted else None

    inner, norm, biases = heads * channels, options["norm"], options["biases"]
    mixed = inner + 2 * groups * states
    weights: Any = (
        *(randn(size, wanted=norm != "none"), randn(size, wanted=norm == "layer")),
        *(randn(inner + mixed + heads, size), randn(inner + mixed + heads, wanted=biases)),
        *(randn(mixed, 1, taps), randn(mixed, wanted=biases), randn(heads), randn(heads)),
        randn(inner if options["per_channel"] else heads),
        randn(inner, wanted=options["gated_norm"]),
        *(randn(size, inner), randn(size, wanted=biases)),
    )
    return SSDBlockWeights(*weights)


PLAIN = {"norm": "rms", "biases": False, "per_channel": False, "gated_norm": True, "limit": (0.0, math.inf)}


@pytest.mark.parametrize(
    ("given", "norm_first", "residual", "norm_before_gate", "dtype"),
    [
        (PLAIN, True, True, False, torch.float32),
        (PLAIN | {"biases": True, "limit": (0.3, 0.9)}, True, True, False, torch.float64),
        (PLAIN | {"norm": "layer", "per_channel": True}, False, False, True, torch.float64),
        (PLAIN | {"norm": "none", "gated_norm": False, "biases": True}, False, True, False, torch.float32),
    ],
)
@pytest.mark.parametrize("sizes", [(24, 4, 5, 2, 7, 4), (64, 2, 64, 1, 32, 1)])
def test_a_step_of_all_blocks(given, norm_first, residual, norm_before_gate, dtype, sizes):
    size, heads, channels, groups, states, taps = sizes
    blocks = [block_weights(*sizes, given, dtype) for _ in range(2)]
    options = SSDBlockOptions(
        *(given["norm"], 1e-5, norm_first, residual, groups, 1e-3, norm_before_gate), given["limit"]
    )
    final = blocks[1].norm_weight, blocks[1].norm_bias
    step = SSDBlocksStep(blocks, options, final)
    pasts = torch.randn(2, 3, taps - 1, heads * channels + 2 * groups * states, dtype=dtype)
    states_before = torch.randn(2, 3, heads, channels, states, dtype=dtype)
    found = expected = torch.empty(0), pasts, states_before
    for _ in range(3):
        hidden = torch.randn(3, size, dtype=dtype)
        found = step(hidden, *found[1:])
        with use_backend("torch"):
            expected = ssd_blocks_step_reference(hidden, *expected[1:], blocks, options, final)
        tolerance = 1e-4 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_step_of_all_blocks_checks_shapes():
    block = block_weights(24, 4, 5, 2, 7, 4, PLAIN, torch.float32)
    options = SSDBlockOptions("rms", 1e-5, True, True, 2, 1e-5, False, (0.0, math.inf))
    with pytest.raises(ValueError, match=r"out_bias must have shape \(24,\), got \(3,\)"):
        SSDBlocksStep([block._replace(out_bias=torch.ones(3))], options)
    step = SSDBlocksStep([block], options)
    good = torch.ones(1, 24), torch.ones(1, 1, 3, 48), torch.ones(1, 1, 4, 5, 7)
    step(*good)
    with pytest.raises(ValueError, match="hidden must have 24 numbers"):
        step(torch.ones(1, 23), *good[1:])
    with pytest.raises(ValueError, match=r"states must have shape \(1, 1, 4, 5, 7\)"):
        step(*good[:2], torch.ones(1, 1, 4, 7, 5))
