"""The loss of an evaluation is the mean over all labels, whatever the batches and the number of processes."""

from pathlib import Path

import evaluated_worker as worker
import pytest
import torch
from launching import run_workers


@pytest.mark.parametrize("head", worker.HEADS)
def test_batches(head: str, tmp_path: Path) -> None:
    # All rows in one batch, whose loss is that of the model.
    expected = worker.evaluate(head, tmp_path, 7)
    for size in (1, 2, 3, 5):
        assert worker.evaluate(head, tmp_path, size) == pytest.approx(expected, rel=1e-5), size


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    run_workers(worker.__file__, tmp_path, 2)
    for rank in range(2):
        for (head, size), loss in torch.load(tmp_path / f"{rank}.pt").items():
            assert loss == pytest.approx(worker.evaluate(head, tmp_path, 7), rel=1e-5), (head, size)
