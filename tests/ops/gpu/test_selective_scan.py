"""The Triton kernels of the selective scan, against the reference in double precision."""

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from proofs import assert_parity

from hf_ssm.ops.selective_scan import selective_scan, selective_scan_reference

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")
BY_POSITION = ("u", "delta", "B", "C", "z")


def tensors(batch, length, channels, states, device, dtype=torch.float32, is_complex=False, shared=False):
    """All tensors of a scan by name; u, delta, B, C and z of `dtype`, the others float32."""
    kind = torch.complex64 if is_complex else dtype
    steps = 1 if shared else channels
    A = -torch.rand(channels, states) * 2 - 0.1
    if is_complex:
        A = torch.complex(A, 4 * torch.randn(channels, states))
    found = {
        "u": torch.randn(batch, length, channels, dtype=dtype),
        "delta": torch.randn(batch, length, steps, dtype=dtype) - 0.5,
        "A": A,
        "B": torch.randn(batch, length, states, dtype=kind),
        "C": torch.randn(batch, length, states, dtype=kind),
        "D": torch.randn(channels),
        "z": torch.randn(batch, length, channels, dtype=dtype),
        "delta_bias": torch.randn(steps),
        "initial_state": torch.randn(batch, channels, states, dtype=torch.complex64 if is_complex else torch.float32),
    }
    return {name: t.to(device).requires_grad_() for name, t in found.items()}


def by_name(function, names, positions, *values, **options):
    return function(**dict(zip(names, values, strict=True)), **positions, delta_softplus=True, return_last_state=True)


def assert_scan(given, positions=None):
    """Parity of the output, the last state and all gradients."""
    names, positions = tuple(given), positions or {}
    assert_parity(
        lambda *values: by_name(selective_scan, names, positions, *values),
        lambda *values: by_name(selective_scan_reference, names, positions, *values),
        list(given.values()),
    )


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parity(device, dtype, is_complex):
    assert_scan(tensors(2, 11, 5, 3, device, dtype, is_complex))
