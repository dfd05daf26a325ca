"""Tests of the Triton kernels: in Triton's interpreter, in a process of their own, or on a GPU.

`make test` runs this folder with TRITON_INTERPRET=1. Without it, and without a GPU, the tests skip.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from hf_ssm.ops.backends import use_backend

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
