"""Peak memory of one call of one contender, in a process of its own.

The process builds small inputs and calls once, so that libraries, compiled code and threads are there, then builds the
real inputs and calls again. What counts is the most memory resident during that call, less that resident before it:
results, gradients and scratch. The allocator is told to give freed blocks back, or they would be used unseen.

    python benchmarks/_memory.py '{"contest": ..., "contender": ..., "sizes": {...}, "warm_up": {...}, "threads": 2}'
"""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# Blocks from this size on are mapped one by one, and unmapped when freed; glibc reads it when a process starts.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17)}


def can_measure(device: str) -> bool:
    """Whether peak memory can be measured: on CUDA, and on Linux where the process may reset its own record."""
    return device == "cuda" or (_STATUS.exists() and os.access(_CLEAR, os.W_OK))


def _resident(name: str) -> int:
    """A size of `/proc/self/status` in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no line {name}")


def measure(call: Callable[[], object], device: str = "cpu") -> dict[str, int]:
    """Peak memory of a call in this process, in bytes: `extra`, above what was there before, and `total`.

    On a CPU, blocks that the allocator of this process kept from earlier calls count for nothing:
    `measure_apart` has a process without any.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        if sys.platform == "linux":
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
        # 5 sets the record of the highest resident size (VmHWM) back to the present one.
        _CLEAR.write_text("5")
        before = _resident("VmRSS")
        result = call()
        peak = _resident("VmHWM")
    del result
    return {"extra": peak - before, "total": peak}


def measure_apart(contest: str, contender: str, sizes: Mapping[str, Any], warm_up: Mapping[str, Any]) -> dict[str, int]:
    """`measure` of a contender in a fresh process.

    Args:
        contest: Name in `_contests.CONTESTS`.
        contender: Its name there.
        sizes: Arguments of the contest.
        warm_up: Arguments of the small contest before it.

    Raises:
        RuntimeError: The process failed; its last words are in the message.
    """
    request = {"contest": contest, "contender": contender, "sizes": dict(sizes), "warm_up": dict(warm_up)}
    request["threads"] = torch.get_num_threads()
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_ALLOCATOR})
    if done.returncode:
        raise RuntimeError(f"peak memory of {contender} in {contest}: exit {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    # Imported here: the contests take seconds to import, and the process that asks has them already.
    from _contests import CONTESTS

    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    build = CONTESTS[request["contest"]]
    build(**request["warm_up"]).contenders[request["contender"]]()
    call = build(**request["sizes"]).contenders[request["contender"]]
    print(json.dumps(measure(call, request["sizes"].get("device", "cpu"))))


if __name__ == "__main__":
    main()
