"""The benchmarks import their neighbours as when Python runs them."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`run_script("score.py", "--tiny")`: run a script in this process, without another import of torch."""

    def run(name: str, *arguments: str) -> None:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")

    return run
