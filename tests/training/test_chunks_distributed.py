"""Truncated backpropagation in two processes with half of the streams each equals one process with all of them."""

from pathlib import Path

import chunks_worker as worker
import pytest
import torch
from launching import run_workers

# Two processes that train several models.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("chunks")
    run_workers(worker.__file__, folder, 2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("family", worker.FAMILIES)
def test_two_processes_equal_one(both: list[dict], family: str, tmp_path: Path) -> None:
    expected = worker.train(family, tmp_path)
    for results in both:
        for name, value in expected.items():
            # The loss of tokens is computed in float32.
            torch.testing.assert_close(results[family][name], value, rtol=0, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", worker.FAMILIES)
def test_resuming_is_bit_equal(both: list[dict], family: str) -> None:
    for results in both:
        for name, value in results[family].items():
            assert torch.equal(results[f"{family} resumed"][name], value), name
