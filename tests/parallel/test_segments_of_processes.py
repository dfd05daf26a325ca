"""Segments in data-parallel training: the gradients of two processes are those of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_processes_equal_one(tmp_path, backend):
    if backend == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs two GPUs")
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    command = [sys.executable, HERE / "segments_worker.py", tmp_path, backend]
    running = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    told = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(told)
    for rank in range(2):
        errors = json.loads((tmp_path / f"{rank}.json").read_text())
        # The loss itself is computed in float32.
        assert len(errors) == 6 and max(errors.values()) < 1e-6, errors
