"""The table of irregularly sampled oscillations; see `tables.py`."""

from _tables import by_seed, console, grid, load, pm, span, table


@table
def irregular_oscillations() -> str:
    found = load("irregular_oscillations")
    several = by_seed(found["runs"])
    rows = [
        [name, f"{runs[0]['parameters']:,.0f}", pm([run["accuracy"] for run in runs], 3)]
        for name, runs in several.items()
    ]
    guess = max(run["trivial"] for run in found["runs"].values())
    rows.append(["most frequent class", "", f"{guess:.3f}"])
    minutes = span((run["minutes"] for run in found["runs"].values()), ".1f")
    note = (
        f"Seeds of each model: {max(map(len, several.values()))}; {found['settings']['steps']:,} steps, {minutes} "
        "minutes for each run on one thread of a shared machine."
    )
    path = "examples/results/irregular_oscillations.json"
    command = f"OMP_NUM_THREADS=1 python examples/irregular_oscillations.py --output {path}"
    return grid(["model", "parameters", "test accuracy"], rows, note) + console(command)
