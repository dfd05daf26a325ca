"""Tests of the Triton kernels: in Triton's interpreter, in a process of their own, or on a GPU.

`make test` runs this folder with TRITON_INTERPRET=1. Without it, and without a GPU, the tests skip.
"""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hf_ssm.ops.backends import use_backend

# The formulas of the costs. With the folder of the benchmarks on the path, its `kernels.py` would hide the library.
_COSTS = Path(__file__).parents[3] / "benchmarks" / "costs"
_SPEC = importlib.util.spec_from_file_location("costs", _COSTS / "__init__.py")
assert _SPEC is not None
sys.modules.setdefault("costs", importlib.util.module_from_spec(_SPEC))

pytest.register_assert_rewrite("proofs")

INTERPRETS = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if INTERPRETS or torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a GPU, or TRITON_INTERPRET=1 (`make test` runs them so)")
    for item in items:
        if "/ops/gpu/" in item.path.as_posix():
            item.add_marker(skip)


@pytest.fixture
def device() -> str:
    """Where kernels run."""
    return "cpu" if INTERPRETS else "cuda"


@pytest.fixture
def triton_kernels() -> Iterator[None]:
    with use_backend("triton"):
        yield
