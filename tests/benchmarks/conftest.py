"""The benchmarks import their neighbours as when Python runs them."""

import importlib.util
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`cost.py` for `test_cost.py`."""
    name = request.path.stem.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`run_script("score.py", "--tiny")`: run a script in this process, without another import of torch."""

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")

    return run
