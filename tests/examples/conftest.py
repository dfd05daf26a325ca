"""The example script that a test file is about."""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def script(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """`waves.py` for `test_waves.py`, with its neighbours found as when Python runs it."""
    name = request.path.stem.removeprefix("test_")
    path = next(EXAMPLES.rglob(f"{name}.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, name, module)  # where dataclasses look for their module
        spec.loader.exec_module(module)
        yield module
    for neighbour, loaded in list(sys.modules.items()):
        if (getattr(loaded, "__file__", None) or "").startswith(str(EXAMPLES)):
            sys.modules.pop(neighbour)


@pytest.fixture
def frozen_garbage() -> Iterator[None]:
    """accelerate collects garbage after each training run, which is most of the time of a tiny one."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
