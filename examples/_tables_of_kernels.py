"""Tables of the Triton kernels: resources, and predicted times; see `tables.py`."""

from _tables import code, grid, load, table


@table
def kernel_resources() -> str:
    found = load("kernel_resources", "benchmarks/results")
    gpus = list(dict.fromkeys(row["gpu"] for row in found["rows"]))
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in found["rows"]:
        name = row["kernel"] + ("" if row["default"] else " (alternative)")
        line = cells.setdefault((f"`{name}`", row["example"], row["configuration"]), {})
        line[row["gpu"]] = f"{row['registers']} / {row['spilled bytes']} / {row['shared memory']:,}"
    rows = [[*key, *(line[gpu] for gpu in gpus)] for key, line in cells.items()]
    return grid(
        ["kernel", "types", "configuration", *gpus],
        rows,
        f"Cells: registers of a thread / bytes spilled / bytes of shared memory. Triton {found['triton']}. "
        f"Command: {code(found['command'])}",
    )


@table
def kernel_predictions() -> str:
    found = load("kernel_predictions", "benchmarks/results")
    gpus = list(found["rows"][0]["microseconds"])
    rows = []
    for row in found["rows"]:
        times = [f"{row['microseconds'][gpu]:,.0f} ({row['bound'][gpu]})" for gpu in gpus]
        ratios = [f"{row['ratio to limit'][gpu]:.2f}" for gpu in gpus]
        rows.append([row["operation"], row["sizes"], f"{row['megabytes']:,.0f}", *times, *ratios])
    header = ["operation", "sizes", "MB moved", *(f"{g}, µs" for g in gpus), *(f"{g}, times the limit" for g in gpus)]
    return grid(header, rows, f"Predictions, nothing was measured. Command: {code(found['command'])}")
