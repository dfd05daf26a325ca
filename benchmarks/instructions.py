"""Instructions of a selective scan, counted by valgrind's callgrind; independent of the load of the machine.

    python benchmarks/instructions.py                        # takes minutes
    python benchmarks/instructions.py --output counts.json
    python benchmarks/instructions.py --tiny                 # smaller sizes

Each contender runs once at two lengths, on one thread. The difference divided by the additional positions, channels and
states is the cost of one state at one position, without the cost of a call. valgrind does not support AVX-512, so
everything runs with AVX2. The script needs valgrind on Linux on x86-64; otherwise it prints a message and exits.
"""

import argparse
import ctypes
import gc
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES: dict[str, Any] = {"batch": 1, "channels": 64, "states": 16}
LENGTHS = (64, 192)
TINY_SIZES: dict[str, Any] = {"batch": 1, "channels": 16, "states": 4}
TINY_LENGTHS = (16, 32)

# AVX2 for numba, torch and MKL, and one thread.
ENVIRONMENT = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+f16c,+fma,+lzcnt,+mmx,+movbe,+popcnt,+sse,+sse2,+sse3,"
    "+sse4.1,+sse4.2,+ssse3",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
EMPTY = "nothing"
WARM_UP = 20

# A client request of valgrind is an instruction sequence without effect: rotations by 128 bits in total, and an
# exchange of a register with itself (valgrind.h). Machine code of a function of (arguments, default):
_REQUEST_CODE = bytes.fromhex(
    "4889f8"  # mov rax, rdi: the arguments
    "4889f2"  # mov rdx, rsi: the result without valgrind
    "48c1c703 48c1c70d 48c1c73d 48c1c733"  # rol rdi, 3; 13; 61; 51
    "4887db"  # xchg rbx, rbx
    "4889d0"  # mov rax, rdx: the result
    "c3"
)
_RUNNING_ON_VALGRIND = 0x1001
# Requests to callgrind have the prefix "CT".
_CALLGRIND = (ord("C") << 24) + (ord("T") << 16)
_ZERO, _DUMP_AT, _START, _STOP = _CALLGRIND + 1, _CALLGRIND + 3, _CALLGRIND + 4, _CALLGRIND + 5


class Valgrind:
    """Client requests to valgrind; without valgrind they have no effect."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(_REQUEST_CODE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self._function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)(address)

    def request(self, number: int, argument: int = 0) -> int:
        given = (ctypes.c_uint64 * 6)(number, argument)
        answer: int = self._function(ctypes.addressof(given), 0)
        return answer

    @property
    def is_there(self) -> bool:
        return self.request(_RUNNING_ON_VALGRIND) != 0

    def zero(self) -> None:
        self.request(_ZERO)

    def start(self) -> None:
        self.request(_START)

    def stop(self) -> None:
        self.request(_STOP)

    def dump(self, name: str) -> None:
        text = ctypes.create_string_buffer(name.encode())
        self.request(_DUMP_AT, ctypes.addressof(text))


def run_all(tiny: bool) -> None:
    """Run each contender at each length under valgrind, and dump its counts by name."""
    import torch
    import transformers
    from _contests import scan

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    valgrind = Valgrind()
    calls: dict[str, Callable[[], object]] = {EMPTY: tuple}
    sizes, lengths = (TINY_SIZES, TINY_LENGTHS) if tiny else (SIZES, LENGTHS)
    for backward in (False, True):
        for length in lengths:
            what = "forward + backward" if backward else "forward"
            contenders = scan(**sizes, length=length, backward=backward).contenders
            calls |= {f"{what}|{name}|{length}": call for name, call in contenders.items()}
    # Garbage collection would run during some of the calls.
    gc.disable()
    for name, call in [("first", tuple), *calls.items()]:
        # Compiles everything, and lets Python specialise its bytecode.
        for _ in range(WARM_UP):
            call()
        valgrind.zero()
        valgrind.start()
        call()
        # In this order: stopping discards the count.
        valgrind.dump(name)
        valgrind.stop()


def read_counts(folder: Path) -> dict[str, int]:
    """Instructions by the name of the dump, minus those of an empty call."""
    counts = {}
    for path in folder.iterdir():
        text = path.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (.+)$", text, re.MULTILINE)
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        if name and total:
            counts[name[1].strip()] = int(total[1])
    if EMPTY not in counts:
        raise RuntimeError(f"callgrind left no counts in {folder}: it has {sorted(p.name for p in folder.iterdir())}")
    empty = counts.pop(EMPTY)
    counts.pop("first", None)
    return {name: number - empty for name, number in counts.items()}


def count(tiny: bool) -> dict[str, int]:
    """Run this script under callgrind.

    Raises:
        RuntimeError: The process failed; the message has the end of its output.
    """
    environment = {**os.environ, **ENVIRONMENT}
    child = [sys.executable, str(Path(__file__).resolve()), "--child", *(["--tiny"] if tiny else [])]
    with tempfile.TemporaryDirectory() as folder:
        # First without valgrind, to fill the compilation cache: compiling under valgrind takes minutes.
        callgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        for command in (child, [*callgrind, *child]):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{command[0]}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return read_counts(Path(folder))


def summarize(counts: Mapping[str, int], sizes: Mapping[str, int], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Instructions of the longer call, and per state and position, for each contender."""
    shorter, longer = lengths
    states = (longer - shorter) * sizes["batch"] * sizes["channels"] * sizes["states"]
    found = []
    for key, value in counts.items():
        what, name, length = key.split("|")
        if int(length) == longer:
            more = value - counts[f"{what}|{name}|{shorter}"]
            found.append({"what": what, "contender": name, "per_call": value, "per_state": more / states})
    return sorted(found, key=lambda row: (row["what"], row["per_state"]))


def missing() -> str | None:
    """The reason why instructions cannot be counted; `None` if they can."""
    if shutil.which("valgrind") is None:
        return "valgrind is not installed"
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return f"client requests need Linux on x86-64, not {sys.platform} on {platform.machine()}"
    return None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("--tiny", action="store_true", help="smaller sizes")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        run_all(args.tiny)
        return
    reason = missing()
    if reason is not None:
        print(f"Instructions are not counted: {reason}.")
        return
    sizes, lengths = (TINY_SIZES, TINY_LENGTHS) if args.tiny else (SIZES, LENGTHS)
    rows = summarize(count(args.tiny), sizes, lengths)
    named = ", ".join(f"{name} {value}" for name, value in sizes.items())
    print(f"Instructions with AVX2, one thread; {named}, length {lengths[1]}\n")
    print("| what | contender | per call | per state and position |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row['what']} | {row['contender']} | {row['per_call']:,} | {row['per_state']:.3g} |")
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps({"sizes": sizes, "lengths": lengths, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
