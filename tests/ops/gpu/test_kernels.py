"""The declaration and launch of Triton kernels: autotuning, and empty grids."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

import hf_ssm.ops
from hf_ssm.ops.gpu import kernels
from hf_ssm.ops.gpu.kernels import KERNELS
from hf_ssm.ops.short_conv.triton import _convolve

OPS = Path(hf_ssm.ops.__file__).parent


@pytest.fixture
def tuned(monkeypatch) -> list[Any]:
    """What is handed to `triton.autotune`, and the launches of its results, which compute nothing."""
    calls: list[Any] = []

    class Recorder:
        def __init__(self, **options: Any):
            calls.append(options)

        def __call__(self, function: Any) -> Any:
            calls.append(function)
            return self

        def __getitem__(self, grid: Any) -> Any:
            return lambda **arguments: calls.append((grid, arguments))

    monkeypatch.setattr(kernels, "_autotunes", lambda: True)
    monkeypatch.setattr(kernels.triton, "autotune", Recorder)
    monkeypatch.setattr(_convolve, "_tuned", None)
    return calls


def test_autotuning_measures_all_configurations(tuned, device):
    def grid(constants: Any) -> tuple[int, ...]:
        assert constants["x"] is x
        return (len(x) // constants["BLOCK_L"],)

    x = torch.zeros(1024, device=device)
    assert len(_convolve.configs) > 1
    _convolve.launch(grid, x=x)
    _convolve.launch(grid, x=x)
    options, function, *launches = tuned
    assert options == {"configs": _convolve.configs, "key": list(_convolve.key)}
    assert function is _convolve.function
    # The number of programs follows from the configuration that is measured.
    assert launches == [(grid, {"x": x})] * 2


@pytest.mark.parametrize("grid", [(2, 0), lambda constants: (0, constants["BLOCK_L"])])
def test_autotuning_launches_nothing_for_an_empty_grid(tuned, device, grid):
    _convolve.launch(grid, x=torch.zeros(0, device=device))
    assert tuned == []


def test_keys_are_arguments_of_the_kernels():
    """Triton ignores other names."""
    for path in OPS.glob("*/triton*.py"):
        importlib.import_module(f"hf_ssm.ops.{path.parent.name}.{path.stem}")
    for kernel in KERNELS.values():
        assert set(kernel.key) <= set(kernel.function.arg_names), kernel.name
