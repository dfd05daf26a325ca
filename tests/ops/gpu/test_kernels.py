"""The declaration and launch of Triton kernels: autotuning, and empty grids."""

import importlib
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from proofs import assert_parity

import hf_ssm.ops
from hf_ssm.ops.gpu import kernels
from hf_ssm.ops.gpu.kernels import KERNELS
from hf_ssm.ops.short_conv import short_conv, short_conv_reference
from hf_ssm.ops.short_conv.triton import _convolve, _convolve_backward

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
    assert (options["configs"], options["key"]) == (_convolve.configs, list(_convolve.key))
    assert function is _convolve.function
    # The number of programs follows from the configuration that is measured.
    assert launches == [(grid, {"x": x})] * 2


@pytest.mark.parametrize("grid", [(2, 0), lambda constants: (0, constants["BLOCK_L"])])
def test_autotuning_launches_nothing_for_an_empty_grid(tuned, device, grid):
    _convolve.launch(grid, x=torch.zeros(0, device=device))
    assert tuned == []


def test_gradients_are_right_after_other_configurations_were_measured(device, monkeypatch):
    """Small tiles write more partial sums than large ones, which do not overwrite all of them."""
    times = itertools.count(start=0, step=-1)

    def last_is_best(call: Any, quantiles: Any) -> list[int]:
        call()
        return [next(times)] * 3

    monkeypatch.setattr(kernels, "_autotunes", lambda: True)
    monkeypatch.setattr(kernels.triton, "autotune", partial(kernels.triton.autotune, do_bench=last_is_best))
    for kernel in (_convolve, _convolve_backward):
        monkeypatch.setattr(kernel, "_tuned", None)
    shapes = (1, 70, 5), (5, 3), (5,)
    tensors = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
    assert_parity(short_conv, short_conv_reference, tensors, activation="silu")
    assert _convolve_backward._tuned.best_config is _convolve_backward.configs[-1]
    # Without any sums.
    tensors = [t.detach() for t in tensors]
    tensors[0].requires_grad_()
    assert_parity(short_conv, short_conv_reference, tensors, activation="silu")


def test_keys_are_arguments_of_the_kernels():
    """Triton ignores other names."""
    for path in OPS.glob("*/triton*.py"):
        importlib.import_module(f"hf_ssm.ops.{path.parent.name}.{path.stem}")
    for kernel in KERNELS.values():
        assert {*kernel.key, *kernel.zeroed} <= set(kernel.function.arg_names), kernel.name
