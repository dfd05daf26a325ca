"""Workers of tests with several processes: a script of its own in each, joined by `torch.distributed`."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LONGEST = 900


def run_workers(worker: str | Path, folder: Path, size: int, *arguments: str) -> None:
    """Run `worker FOLDER ARGUMENTS...` in so many processes, which find each other by environment variables.

    Raises:
        AssertionError: A process failed, or took longer than a quarter of an hour; the message has its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    shared = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    logs = [folder / f"{rank}.log" for rank in range(size)]
    processes = []
    for rank, log in enumerate(logs):
        places = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        with log.open("w", encoding="utf-8") as file:
            command = [sys.executable, worker, folder, *arguments]
            environment = {**os.environ, **shared, **places}
            processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
    end = time.monotonic() + _LONGEST
    # After a failure of one, the others would wait for it.
    while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.wait()
    codes = [process.returncode for process in processes]
    texts = [log.read_text(encoding="utf-8")[-3000:] for code, log in zip(codes, logs, strict=True) if code > 0]
    assert not any(codes), "\n".join([f"exit codes {codes}", *texts])
