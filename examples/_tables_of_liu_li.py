"""Tables of the trend over λ and of the initial scale, Liu & Li 2024; see `tables.py`."""

from pathlib import Path
from typing import Any

from _tables import NOT_RUN, ROOT, grid, load, names, pm, table, trivial

KERNELS = {"s4d": "S4D-LegS", "s4": "S4-LegS"}


def trend(task: str) -> str:
    """Test accuracy and gap of each row, for both models; or that there is no result."""
    found: dict[str, Any] = {
        kernel: load(f"regulariser_trend_{task}_{kernel}")
        for kernel in KERNELS
        if f"regulariser_trend_{task}_{kernel}" in names("regulariser_trend_*")
    }
    if not found:
        return f"{NOT_RUN}\n"
    rows: dict[str, list[str]] = {}
    for place, result in enumerate(found.values()):
        by_row: dict[str, list[dict[str, Any]]] = {}
        for name, run in result["runs"].items():
            by_row.setdefault(name.partition(" (seed")[0], []).append(run)
        for name, runs in by_row.items():
            tests, gaps = [run["test"] for run in runs], [run["train"] - run["test"] for run in runs]
            rows.setdefault(name, [""] * (2 * len(found)))[2 * place : 2 * place + 2] = [pm(tests), pm(gaps)]
    baselines = next(iter(found.values()))["baselines"]
    shown = [[name, *cells] for name, cells in rows.items()]
    shown += [[name, f"{value:.3f}", *[""] * (2 * len(found) - 1)] for name, value in baselines.items()]
    header = ["", *(f"{KERNELS[kernel]}: {what}" for kernel in found for what in ("test accuracy", "gap"))]
    notes = [
        f"{KERNELS[kernel]}: {len(result['runs'])} runs; training with λ > 0 takes {result['overhead']:.2f} times as "
        "long as with λ = 0."
        for kernel, result in found.items()
        if result.get("overhead") is not None
    ]
    return grid(header, shown, *notes)


@table
def regulariser_trend_images() -> str:
    return trend("images")


@table
def regulariser_trend_listops() -> str:
    return trend("listops")


@table
def start_scales() -> str:
    if not Path(ROOT, "examples/results/gaussian_process_start.json").exists():
        return f"{NOT_RUN}\n"
    found, paper = load("gaussian_process_start")["start_scales"], load("gaussian_process")["paper"]["table_1"]
    theirs = paper["w/o (7, 8)"]
    rows = []
    for start, by_scale in found.items():
        for b, values in by_scale.items():
            rows.append([start, b, *(pm(numbers, 2) for numbers in values.values())])
    for b, values in trivial("gaussian_process").items():
        rows.append(["constant", b, "", pm(values["test MSE"][:3], 2), ""])
    for place, b in enumerate(("1", "0.1", "0.01")):
        rows.append(["paper", b, "", *(f"{theirs[name][place]:g}" for name in ("test MSE", "ψ²/√n"))])
    return grid(["start", "b", "ψ²/√n at the start", "test MSE", "ψ²/√n after training"], rows)
