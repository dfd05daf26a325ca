"""The tables of `compression.py`: see `tables.py`."""

import statistics
from typing import Any

from _tables import NOT_RUN, console, grid, is_stored, load, pm, span, table

NAME = "compression"
COMMAND = "python examples/compression.py --output examples/results/compression.json"
KINDS = {"plain": "without τ", "τ": "with τ", "16 states": "16 states from the start"}
BASELINES = {"linear": "linear model", "most frequent class": "most frequent class"}
# Largest loss of accuracy that the aim allows, and the factor that it is about.
AIM, FACTOR = 0.01, 4


def runs_by_task() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The runs of each task and kind, over the seeds."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in load(NAME)["runs"]:
        found.setdefault(run["task"], {}).setdefault(run["kind"], []).append(run)
    return found


def sizes_of(runs: list[dict[str, Any]], entry: str = "accuracy") -> dict[int, list[Any]]:
    """The values of all seeds by state size."""
    found: dict[int, list[Any]] = {}
    for run in runs:
        for size in run["sizes"]:
            found.setdefault(size["state_size"], []).append(size[entry])
    return found


@table
def compression() -> str:
    if not is_stored(NAME):
        return NOT_RUN + "\n" + console(COMMAND)
    tasks = runs_by_task()
    sizes = sorted({size for kinds in tasks.values() for size in sizes_of(kinds["plain"])}, reverse=True)
    rows, within = [], dict.fromkeys(("plain", "τ"), 0)
    for task, kinds in tasks.items():
        for kind, name in KINDS.items():
            if kind in kinds:
                accuracy = sizes_of(kinds[kind])
                rows.append([task, name, *(pm(accuracy[size]) if size in accuracy else "" for size in sizes)])
            if kind in within and kind in kinds:
                lost = statistics.fmean(accuracy[sizes[0]]) - statistics.fmean(accuracy[sizes[0] // FACTOR])
                within[kind] += lost <= AIM
        for key, name in BASELINES.items():
            values = [run["baselines"][key] for run in kinds["plain"]]
            rows.append([task, name, pm(values), *[""] * (len(sizes) - 1)])
    counts = " and ".join(f"{count} of {len(tasks)} tasks {KINDS[kind]}" for kind, count in within.items())
    seconds = sum(run["seconds"] for run in load(NAME)["runs"])
    note = f"A fourfold smaller state loses at most one point on {counts}. All runs took {seconds / 60:.0f} minutes."
    return grid(["task", "training", *(f"N = {size}" for size in sizes)], rows, note) + console(COMMAND)


@table
def compression_bounds() -> str:
    if not is_stored(NAME):
        return NOT_RUN + "\n"
    rows = []
    for task, kinds in runs_by_task().items():
        for kind in ("plain", "τ"):
            layers = sizes_of(kinds.get(kind, []), "layers")
            largest = max(layers, default=0)
            for size in (largest // FACTOR, largest // 16):
                if size not in layers:
                    continue
                # The layer of each seed with the largest relative error.
                worst = [max(seed, key=lambda layer: layer["relative_error"]) for seed in layers[size]]
                columns = ("relative_bound", "bound", "gain", "relative_error")
                shown = [span([layer[name] for layer in worst], ".3g") for name in columns]
                rows.append([task, KINDS[kind], size, *shown])
    header = ["task", "training", "N", "share dropped", "bound on the gain", "measured gain", "relative error"]
    return grid(header, rows, "Of the layer with the largest relative error, over the seeds.")
