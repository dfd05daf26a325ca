"""The table of state tracking, whose results may not be there yet; see `tables.py`."""

from _tables import RESULTS, ROOT, console, grid, load, pm, span, table


@table
def state_tracking() -> str:
    is_measured = (ROOT / RESULTS / "state_tracking.json").is_file()
    found = load("state_tracking") if is_measured else {"runs": {}, "settings": {}}
    several: dict[str, list[dict[str, float]]] = {}
    for name, run in found["runs"].items():
        several.setdefault(name.rpartition(", seed ")[0], []).append(run)
    rows = []
    for name, runs in several.items():
        task, _, model = name.partition(", ")
        cells = [pm([run[column] for run in runs], 3) for column in ("within", "beyond")]
        rows.append([task, model, f"{runs[0]['parameters']:,.0f}", *cells, f"{runs[0]['trivial']:.3f}"])
    notes = ["Not run yet."]
    if rows:
        minutes = span((run["minutes"] for runs in several.values() for run in runs), ".1f")
        length, steps = found["settings"]["length"], found["settings"]["steps"]
        notes = [
            f"Seeds of each model: {max(map(len, several.values()))}. Training rows have up to {length} positions; "
            f"{steps:,} steps, {minutes} minutes for each run on one thread of a shared machine."
        ]
    header = ["task", "model", "parameters", "within the training length", "beyond it", "constant"]
    command = "OMP_NUM_THREADS=1 python examples/state_tracking.py --output examples/results/state_tracking.json"
    return grid(header, rows, *notes) + console(command)
