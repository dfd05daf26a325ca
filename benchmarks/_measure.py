"""Comparison of contenders: agreement, alternating timing, ratios of paired repetitions."""

import argparse
import gc
import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from _experiment import experiment_parser

# A call without arguments; returns its results, or an empty tuple if there is nothing to compare.
Call = Callable[[], tuple[Tensor, ...]]

# A contender whose first call takes longer is not called again to estimate its time.
_SLOW = 10.0
_PACKAGES = ("torch", "transformers", "numpy", "numba", "mambapy", "kernels", "mamba_ssm", "causal_conv1d")


@dataclass(frozen=True)
class Row:
    """One line of the table, with the value of each repetition."""

    section: str
    what: str
    quantity: str
    values: Sequence[float]
    unit: str = ""

    @property
    def middle(self) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        if len(self.values) == 1:
            return (self.values[0],) * 3
        low, median, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, median, high

    def as_dict(self) -> dict[str, Any]:
        low, median, high = self.middle
        named = {"section": self.section, "what": self.what, "quantity": self.quantity, "unit": self.unit}
        return {**named, "median": median, "low": low, "high": high, "values": list(self.values)}

    def __str__(self) -> str:
        low, median, high = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in self.middle)
        spread = f" ({low} to {high})" if len(self.values) > 1 else ""
        unit = f" {self.unit}" if self.unit else ""
        return f"| {self.what} | {self.quantity} | {median}{unit}{spread} | {len(self.values)} |"


TABLE_HEAD = "| what | quantity | median (middle half) | repetitions |\n|---|---|---|---|"


def show(content: dict[str, Any]) -> None:
    """Print the rows of a file of measurements."""
    section = None
    for stored in content["results"]:
        if stored["section"] != section:
            section = stored["section"]
            print(f"\n{section}\n\n{TABLE_HEAD}")
        print(Row(**{name: stored[name] for name in ("section", "what", "quantity", "values", "unit")}))


def benchmark_parser(
    description: str, settings: Mapping[str, Any], tiny: Mapping[str, Any], cost: str
) -> argparse.ArgumentParser:
    """Build a parser with the options of all benchmarks; the arguments are those of `experiment_parser`."""
    return experiment_parser(description, show, settings, tiny, cost)


def print_environment(sizes: str) -> None:
    """Print versions, threads and the sizes of a run."""
    versions = f"torch {torch.__version__}, transformers {importlib.metadata.version('transformers')}"
    print(f"{versions}, {platform.machine()}, {torch.get_num_threads()} threads; {sizes}\n")


def write_rows(path: Path | None, rows: Sequence[Row], device: str = "cpu", **facts: Any) -> None:
    """Write rows, the command and the machine to the file of `--output`, if given."""
    if path is None:
        return
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    found = {
        "command": command,
        "machine": describe_machine(device),
        **facts,
        "results": [row.as_dict() for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def describe_machine(device: str) -> dict[str, Any]:
    """The machine and the versions of the packages."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "processor": models[0] if models else platform.processor(),
        "architecture": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def _timed(call: Call, number: int) -> tuple[float, tuple[Tensor, ...]]:
    """Seconds per call of `number` calls, and the last result."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(number):
        result = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / number, result


def _check_one(names: tuple[str, str], expected: Sequence[Tensor], found: Sequence[Tensor], tolerance: float) -> None:
    first, name = names
    if len(expected) != len(found):
        raise RuntimeError(f"{name} returned {len(found)} results, {first} {len(expected)}")
    for number, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a.shape != b.shape:
            raise RuntimeError(f"result {number} of {name} has shape {tuple(b.shape)}, {first} {tuple(a.shape)}")
        if not a.is_floating_point() and not a.is_complex():
            if not torch.equal(a, b):
                raise RuntimeError(f"result {number} of {name} differs from {first}")
            continue
        kind = torch.complex128 if a.is_complex() else torch.float64
        error, largest = (a.to(kind) - b.to(kind)).abs().max().item(), a.to(kind).abs().max().item()
        # False for NaN.
        if not error <= tolerance * largest:
            raise RuntimeError(
                f"result {number} of {name} differs from {first} by {error:.3g}; at most {tolerance:g} of "
                f"the largest value {largest:.3g} is allowed"
            )


def check_agreement(contenders: Mapping[str, Call], tolerance: float) -> dict[str, float]:
    """Call each contender once and compare its results with those of the first.

    Args:
        contenders: Calls by name; one that returns an empty tuple is not compared.
        tolerance: Largest difference relative to the largest value; integers must be equal.

    Returns:
        Seconds of these first calls.

    Raises:
        RuntimeError: Results differ.
    """
    (first, call), *others = contenders.items()
    taken, expected = _timed(call, 1)
    seconds = {first: taken}
    for name, other in others:
        seconds[name], found = _timed(other, 1)
        if found:
            _check_one((first, name), expected, found, tolerance)
    return seconds


def race(
    contenders: Mapping[str, Call], first_calls: Mapping[str, float], repetitions: int, turn: float
) -> dict[str, list[float]]:
    """Seconds per call of each contender in each repetition; the contenders alternate.

    Args:
        contenders: Calls by name.
        first_calls: Seconds of the first call of each, from `check_agreement`.
        repetitions: Turns of each contender; the first one rotates.
        turn: Least duration of a turn in seconds; short calls are repeated, and their mean is used.
    """
    numbers = {}
    for name, call in contenders.items():
        seconds = first_calls[name] if first_calls[name] > _SLOW else _timed(call, 1)[0]
        numbers[name] = max(1, math.ceil(turn / max(seconds, 1e-9)))
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    # Garbage of one contender must not be collected in the turn of the next; older objects are not searched.
    gc.freeze()
    try:
        for repetition in range(repetitions):
            shift = repetition % len(names)
            for name in names[shift:] + names[:shift]:
                gc.collect()
                times[name].append(_timed(contenders[name], numbers[name])[0])
    finally:
        gc.unfreeze()
    return times


def ratios(times: Mapping[str, Sequence[float]], above: Sequence[str], below: Sequence[str]) -> list[float]:
    """`Σ above / Σ below` within each repetition."""
    tops, bottoms = (zip(*(times[name] for name in names), strict=True) for names in (above, below))
    return [sum(top) / sum(bottom) for top, bottom in zip(tops, bottoms, strict=True)]
