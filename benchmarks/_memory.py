"""Peak memory of one call of one contender, in a separate process.

The process calls once with small inputs, which loads libraries, compiled code and threads, and again with the real
inputs. The result is the largest resident memory during the second call minus the resident memory before it: results,
gradients and scratch. The allocator returns freed blocks to the system, because reused blocks would not be counted.

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
# Larger blocks are mapped individually and unmapped when freed; glibc reads this at process start.
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**17), "MALLOC_TRIM_THRESHOLD_": str(2**17)}


def can_measure(device: str) -> bool:
    """Whether peak memory can be measured: on CUDA, and on Linux if the process may reset its peak counter."""
    return device == "cuda" or (_STATUS.exists() and os.access(_CLEAR, os.W_OK))


def _resident(name: str) -> int:
    """A size of `/proc/self/status` in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{_STATUS} has no line {name}")


def measure(call: Callable[[], object], device: str = "cpu") -> dict[str, int]:
    """Peak memory of a call in this process, in bytes: `extra` (above the memory before the call) and `total`.

    On a CPU, blocks that the allocator kept from earlier calls are not counted; `measure_apart` avoids them.
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
        # 5 resets the peak resident size (VmHWM) to the current one.
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
        RuntimeError: The process failed; the message has the end of its output.
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
    # Imported here, because the contests take seconds to import.
    from _contests import CONTESTS

    request = json.loads(sys.argv[1])
    torch.set_num_threads(request["threads"])
    build = CONTESTS[request["contest"]]
    build(**request["warm_up"]).contenders[request["contender"]]()
    call = build(**request["sizes"]).contenders[request["contender"]]
    print(json.dumps(measure(call, request["sizes"].get("device", "cpu"))))


if __name__ == "__main__":
    main()
