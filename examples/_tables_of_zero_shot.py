"""Tables of the zero-shot recipes; see `tables.py`."""

import statistics
from typing import Any

from _tables import grid, load, table, trivial

MODELS = {"selective": "Mamba blocks", "hyena": "Hyena"}


def measured(found: dict[str, float], digits: int = 3) -> str:
    """Mean ± standard error."""
    return f"{found['mean']:.{digits}f} ± {found['standard_error']:.{digits}f}"


def best(chains: dict[str, Any], measure: str) -> Any:
    """The Markov chain with the highest mean of a measure, and its name."""
    name = max((name for name in chains if name.startswith("Markov")), key=lambda name: chains[name][measure]["mean"])
    return name, chains[name][measure]


@table
def zero_shot_recovery() -> str:
    found = {name: load(f"zero_shot_recovery_{key}") for key, name in MODELS.items()}
    rows = [
        [name, *(measured(own["accuracy"]["model"][measure]) for measure in ("recovery", "next_base"))]
        for name, own in found.items()
    ]
    chains = next(iter(found.values()))["accuracy"]
    rows.append(["most frequent base", *(measured(part) for part in chains["Markov chain, order 0"].values())])
    tops = [best(chains, measure) for measure in ("recovery", "next_base")]
    cells = [f"{measured(own)} (order {name.rsplit(maxsplit=1)[1]})" for name, own in tops]
    windows = next(iter(found.values()))["windows"]
    return grid(
        ["", "30 bases, generated", "next base"],
        [*rows, ["Markov chain, best of orders 0 to 11", *cells]],
        f"{windows} windows; chance level 0.25. The order of the Markov chain is the best one on these windows, which "
        "favours the chain.",
    )


@table
def zero_shot_pairs() -> str:
    found = {name: load(f"zero_shot_pairs_{key}")["pairs"] for key, name in MODELS.items()}
    first = next(iter(found.values()))
    rows = []
    for kind, scorers in first.items():
        own = [found[name][kind]["model"]["preferred"] for name in found]
        chains = [part["preferred"] for name, part in scorers.items() if name.startswith("Markov")]
        rows.append([kind, scorers["model"]["pairs"], *(measured(part) for part in [*own, *chains])])
    orders = [name for name in first["synonymous"] if name.startswith("Markov")]
    return grid(["perturbation", "pairs", *found, *orders], rows, "A guess prefers half of the natural sequences.")


@table
def zero_shot_needle() -> str:
    rows = []
    for key, name in MODELS.items():
        cells = load(f"zero_shot_needle_{key}")["cells"]
        for length in dict.fromkeys(cell["length"] for cell in cells):
            own = [cell for cell in cells if cell["length"] == length]
            means = {measure: statistics.fmean(cell[measure]["mean"] for cell in own) for measure in ("base", "rank")}
            # Depths have equal numbers of independent trials.
            errors = {
                measure: sum(cell[measure]["standard_error"] ** 2 for cell in own) ** 0.5 / len(own)
                for measure in means
            }
            cells_of_row = [f"{means[measure]:.3f} ± {errors[measure]:.3f}" for measure in means]
            exact = sum(cell["exact"]["mean"] for cell in own) / len(own)
            rows.append([name, f"{length:,}", f"{exact:.2f}", *cells_of_row])
    header = ["model", "length of the prompt", "exact values", "bases (chance 0.25)", "decoys beaten (0.5)"]
    return grid(header, rows, "Means over five depths, ten prompts each.")


@table
def zero_shot_variants() -> str:
    rows = []
    for key, name in MODELS.items():
        for own in load(f"zero_shot_variants_{key}")["metrics"]:
            cell = f"{own['value']:.3f} ± {own['standard_error']:.3f}"
            rows.append([name, f"`{own['score']}`", own["metric"].upper(), cell, own["variants"]])
            variants = own["variants"]
    for order, areas in trivial("zero_shot_variants").items():
        words = f"Markov chain, {order}" + (" (counts of bases)" if order == "order 0" else "")
        rows += [[words, "`llr`", name.upper(), f"{area:.3f}", variants] for name, area in areas.items()]
    note = (
        "A guess has 0.5 in both. The chains count words of `runs/train.fa` "
        "(`python examples/baselines.py zero_shot_variants`)."
    )
    return grid(["model", "score", "metric", "", "variants"], rows, note)
