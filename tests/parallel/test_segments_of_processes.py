"""Segments in data-parallel training: the gradients of two processes are those of one."""

import json
from pathlib import Path

import pytest
import torch
from launching import run_workers

WORKER = Path(__file__).with_name("segments_worker.py")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_processes_equal_one(tmp_path, backend):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    run_workers(WORKER, tmp_path, 2, backend)
    for rank in range(2):
        errors = json.loads((tmp_path / f"{rank}.json").read_text())
        # The loss itself is computed in float32.
        assert len(errors) == 6 and max(errors.values()) < 1e-6, errors
