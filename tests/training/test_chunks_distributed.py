"""Truncated backpropagation in two processes with half of the streams each equals one process with all of them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import chunks_worker as worker  # noqa: E402

# Two processes that train several models.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two processes found."""
    folder = tmp_path_factory.mktemp("chunks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = os.pathsep.join([str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    common = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_PORT": port}
    logs = [folder / f"{rank}.log" for rank in range(2)]
    running = []
    for rank, log in enumerate(logs):
        environ = {**common, "MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("w") as file:
            command = [sys.executable, worker.__file__, str(folder)]
            running.append(subprocess.Popen(command, env=environ, stdout=file, stderr=file))
    try:
        codes = [process.wait(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
    assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
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
