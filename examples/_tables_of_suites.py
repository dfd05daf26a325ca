"""Tables of `hf-ssm benchmark` on real DNA, from one file of results for each task; see `tables.py`."""

from typing import Any

from _tables import NOT_RUN, console, grid, is_stored, load, percent, pm, span, table

TASKS = {
    "human_or_worm": "human or worm",
    "promoters": "promoters without TATA box",
    "enhancers": "enhancers",
}
SEEDS = 3
COMMAND = (
    "OMP_NUM_THREADS=1 hf-ssm benchmark examples/suites/real_dna.yml examples/suites/real_dna/{0}.yaml --tasks {0} "
    f"--data data --seeds {SEEDS} --output runs/real-dna/{{0}}"
)


def row(name: str, run: dict[str, Any]) -> list[str]:
    """A line of the table: a model, or a baseline, on a task."""
    results = run["results"]
    value, validation = ([result[key] for result in results] for key in ("value", "validation"))
    size = results[0]["parameters"]
    k = results[0]["chosen"].get("k")
    if run["how"] == "words":
        model = f"{k}-mer counts"
    else:
        model = "**two-sided Mamba**" if run["how"] == "trained" else "its random weights"
    minutes = span((result["seconds"] / 60 for result in results), ".1f")
    cells = [pm(validation, 4), pm(value, 4), f"{run['standard_error']:.4f}", len(results), minutes]
    return [TASKS[name], model, *map(str, cells), "" if size is None else f"{size:,}"]


@table
def real_dna_suite() -> str:
    rows, missing, fewer = [], [], []
    for name in TASKS:
        if not is_stored(f"real_dna_{name}"):
            missing.append(TASKS[name])
            continue
        runs = load(f"real_dna_{name}")["runs"]
        rows += [row(name, run) for run in runs]
        if any(run["how"] == "trained" and len(run["results"]) < SEEDS for run in runs):
            fewer.append(TASKS[name])
        chance = runs[0]["results"][0]["chance"]
        rows.append([TASKS[name], "most frequent class", "", f"{chance:.4f}", *[""] * 4])
    header = ["data", "model", "validation", "test accuracy", "± rows", "seeds", "minutes", "parameters"]
    notes = [
        "± after a value is the standard deviation over seeds, ± rows the standard error of one value over the test "
        "rows. Minutes of wall time for each seed, on one thread of a shared machine."
    ]
    if fewer:
        notes.append(f"The commands below train {SEEDS} seeds; fewer have been run so far for: {', '.join(fewer)}.")
    if missing:
        notes.append(f"{', '.join(missing).capitalize()}: {NOT_RUN}")
    return grid(header, rows, *notes) + console(*map(COMMAND.format, TASKS))


@table
def real_dna_errors() -> str:
    if not is_stored("real_dna_errors"):
        return f"{NOT_RUN}\n"
    found = load("real_dna_errors")["errors"]
    rows, differences = [], []
    for name in filter(found.__contains__, TASKS):
        one = found[name]
        for part, values in one["parts"].items():
            cells = [f"{values[column]:.4f}" for column in ("words", "model", "only model", "only words")]
            rows.append([TASKS[name], part, percent(values["CG"]), values["rows"], *cells])
        difference = f"{one['difference']:+.4f} ± {one['standard error']:.4f}"
        differences.append(f"{TASKS[name]} {difference} ({one['seeds']} seed{'s' * (one['seeds'] > 1)})")
    header = ["data", "share of C and G", "its mean", "rows", "words", "Mamba", "only Mamba", "only words"]
    note = f"Accuracy of the Mamba minus that of the words, ± the paired standard error: {'; '.join(differences)}."
    return grid(header, rows, note) + console("python examples/real_dna_errors.py")
