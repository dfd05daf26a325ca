"""The benchmarks import their neighbours as when Python runs them."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
