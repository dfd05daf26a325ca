"""The table of forecasts; see `tables.py`."""

from _tables import console, grid, load, pm, table

METRICS = {"mae": "MAE", "mase": "MASE", "quantile_loss": "quantile loss", "coverage": "between 0.1 and 0.9"}


@table
def forecasting() -> str:
    found = load("forecasting")
    rows = []
    for data in found["runs"][0]:
        for who in ("model", "seasonal naive"):
            runs = [run[data][who] for run in found["runs"]]
            # That of a seasonal-naive forecast has no seed.
            runs = runs if who == "model" else runs[:1]
            rows.append([data, who, *(pm([run[name] for run in runs]) if name in runs[0] else "" for name in METRICS)])
    sizes = found["arguments"]
    note = (
        f"{sizes['series']} series of {sizes['length']} hours, {sizes['context']} of which a forecast of "
        f"{sizes['horizon']} reads; {found['parameters']:,} parameters, {sizes['steps']} steps, {sizes['seeds']} "
        f"seeds, {found['processor_minutes']:g} minutes of processor time."
    )
    command = "OMP_NUM_THREADS=1 python examples/forecasting.py --output examples/results/forecasting.json"
    return grid(["values", "forecast", *METRICS.values()], rows, note) + console(command)
