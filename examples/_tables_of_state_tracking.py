"""The table of state tracking; see `tables.py`."""

from _tables import by_seed, console, grid, load, pm, span, table


@table
def state_tracking() -> str:
    found = load("state_tracking")
    several = by_seed(found["runs"])
    rows = []
    for name, runs in several.items():
        task, _, model = name.partition(", ")
        cells = [pm([run[column] for run in runs], 3) for column in ("within", "beyond")]
        rows.append([task, model, f"{runs[0]['parameters']:,.0f}", *cells, f"{runs[0]['trivial']:.3f}"])
    minutes = span((run["minutes"] for run in found["runs"].values()), ".1f")
    length, steps = found["settings"]["length"], found["settings"]["steps"]
    note = (
        f"Seeds of each model: {max(map(len, several.values()))}. Training rows have up to {length} positions; "
        f"{steps:,} steps, {minutes} minutes for each run on one thread of a shared machine."
    )
    header = ["task", "model", "parameters", "within the training length", "beyond it", "constant"]
    command = "OMP_NUM_THREADS=1 python examples/state_tracking.py --output examples/results/state_tracking.json"
    return grid(header, rows, note) + console(command)
