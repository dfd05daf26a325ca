"""Tables of selection of tokens (Nishikawa & Suzuki 2025) whose results may not be there yet; see `tables.py`."""

import statistics
from typing import Any

from _tables import RESULTS, ROOT, console, grid, load, percent, pm, table, trivial


def stored(name: str) -> Any:
    """The contents of a file of results, or None if it does not exist yet."""
    return load(name) if (ROOT / RESULTS / f"{name}.json").is_file() else None


@table
def in_context_neighbours() -> str:
    guesses = trivial("in_context_neighbours")
    rows = [[name.removesuffix(" nearest"), f"{value:.3f}"] for name, value in guesses.items()]
    return grid(["neighbours that are averaged", "R²"], rows) + console(
        "python examples/baselines.py in_context_neighbours"
    )


@table
def gated_convolution() -> str:
    runs: dict[str, dict[int, list[dict[str, float]]]] = {}
    found = stored("gated_convolution")
    for name, run in (found["runs"] if found else {}).items():
        target, count, _ = name.replace(" n = ", "").replace(" seed ", "").split(",")
        runs.setdefault(target, {}).setdefault(int(count), []).append(run)
    rows = []
    for target, by_count in runs.items():
        for count, several in sorted(by_count.items()):
            cells = [pm([run[column] for run in several], 4) for column in ("error", "linear", "constant")]
            r2 = 1 - statistics.fmean(run["error"] / run["constant"] for run in several)
            rows.append([target, f"{count:,}", len(several), *cells, f"{r2:.3f}"])
    header = ["target", "n", "seeds", "test error", "linear regression", "constant", "R²"]
    rates = [
        f"{target}: {fitted['slope']:.2f} ± {fitted['standard error']:.2f} (theorem: {fitted['mixed']:.2f} for mixed, "
        f"{fitted['anisotropic']:.2f} for anisotropic smoothness)"
        for target, fitted in (found or {}).get("rates", {}).items()
        if "slope" in fitted
    ]
    if not rates:
        return grid(header, rows, "The slopes against n have not been measured yet.")
    return grid(header, rows, f"Slope of log error against log n ± its standard error: {'; '.join(rates)}.")


@table
def gated_convolution_causes() -> str:
    found = stored("gated_convolution_causes")
    runs = found["runs"] if found else {}
    rows = [[name, f"{run['error']:.3f}", f"{run['constant']:.3f}"] for name, run in runs.items()]
    command = "python examples/gated_convolution.py --causes --output examples/results/gated_convolution_causes.json"
    shown = grid(["initialisation", "test error", "constant"], rows, *([] if rows else ["Not run yet."]))
    return shown + console(command)


LONGER = {
    "longer_masking_enhancers": ("enhancers", "human_enhancers_cohn_official_test.csv.gz"),
    "longer_masking_worm": ("human or worm", "human_or_worm_mini.csv.gz"),
    "longer_masking_next_token": ("next base", None),
}


@table
def masking_longer() -> str:
    rows, missing = [], []
    for name, (words, path) in LONGER.items():
        if path is None:
            guesses = {key: value for key, value in trivial("masking_next_token").items() if key != "uniform"}
            baselines = {
                "best Markov chain": min(guesses.values()),
                "frequencies of the bases": guesses["order 0"],
            }
        else:
            guesses = load("kmer_baseline")["accuracy"][path]
            baselines = {"4-mer counts": guesses["test"], "most frequent class": guesses["most frequent class"]}
        rows += [[words, label, f"{value:.3f}", *[""] * 5] for label, value in baselines.items()]
        found = stored(name)
        if found is None:
            missing.append(words)
            continue
        test = found["test"]["perplexity" if path is None else "accuracy"]
        reached = f"{found['sequences_at_threshold']} of {found['sequences_of_class']}" if path else ""
        model = [words, f"Hyena, {found['test']['epochs']:g} epochs", f"{test:.3f}", reached]
        rows += [[*model, "chosen", *curve(found["chosen"])], ["", "", "", "", "others", *curve(found["others"])]]
    header = ["data", "model", "test", "at probability 0.95", "", "area", "until nine tenths", "until half"]
    notes = [f"Not run yet: {', '.join(missing)}."] if missing else []
    return grid(header, rows, *notes)


def curve(found: dict[str, Any]) -> list[str]:
    """Area, and the shares masked until nine tenths and half of the probability."""
    area, until = found["area"], found["masked_until"]
    shares = [f"{100 * until[key]['mean']:.0f} ± {percent(until[key]['deviation'])}" for key in ("0.9", "0.5")]
    return [f"{area['mean']:.3f} ± {area['deviation']:.3f}", *shares]
