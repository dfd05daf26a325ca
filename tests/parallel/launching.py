"""Processes of tests: a script or module in each, forked from a server that has imported the packages and run nothing.

Each import of torch, transformers and hf_ssm takes seconds of a core, a fork takes milliseconds.
"""

import gc
import multiprocessing
import os
import runpy
import socket
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LONGEST = 900
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch", "torch.distributed.fsdp", "accelerate", "datasets", "hf_ssm.cli", "hf_ssm.training", "peft", "numba"]
)


def start(log: Path, program: str | Path, *arguments: object, **environment: str) -> BaseProcess:
    """Start a script (a path) or a module (its name) as `__main__` in a new process, which prints to a file.

    The packages read the environment when they were imported, before `environment` was set: changes reach only what is
    read later.
    """
    words = [str(program), *map(str, arguments)]
    process = _CONTEXT.Process(target=_run, args=(str(log), words, {**os.environ, **environment}))
    process.start()
    return process


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    """Scan what survives a full collection no more: accelerate collects after each run, each time in half a second."""
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


def _run(log: str, words: list[str], environment: dict[str, str]) -> None:
    gc.freeze()
    gc.callbacks.append(_freeze_survivors)
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    if words[0].endswith(".py"):
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")
    else:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)


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
    processes = [
        start(log, worker, folder, *arguments, **shared, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
        for rank, log in enumerate(logs)
    ]
    end = time.monotonic() + _LONGEST
    # After a failure of one, the others would wait for it.
    while any(process.exitcode is None for process in processes) and not any(process.exitcode for process in processes):
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.join()
    codes = [process.exitcode or 0 for process in processes]
    texts = [log.read_text(encoding="utf-8")[-3000:] for code, log in zip(codes, logs, strict=True) if code > 0]
    assert not any(codes), "\n".join([f"exit codes {codes}", *texts])
