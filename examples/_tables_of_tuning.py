"""Tables of the tuner's benchmark and of the learning rates of recall; see `tables.py`."""

import statistics
from collections.abc import Sequence
from typing import Any

from _tables import NOT_RUN, ROOT, grid, is_stored, load, span, table

BENCHMARK, RECALL = "tuning_benchmark", "recall_learning_rates"
FAMILIES = {"s4": "S4D", "s5": "S5", "hyena": "Hyena", "selective": "Mamba"}
AIMS = {
    "near_best": "tune is within one standard error of the grid",
    "above_default": "tune is better than the default by more than one standard error",
    "abstention": "on the other tasks tune keeps the default, and the grid gains no more than one standard error",
}
NEEDED = {"near_best": "at least 5 tasks", "above_default": "at least 5 tasks", "abstention": "all their splits"}


def not_run() -> str:
    return f"{NOT_RUN}\n"


def picture(name: str, words: str) -> str:
    """The figure, if it has been drawn."""
    drawn = (ROOT / "docs" / "assets" / f"{name}.png").is_file()
    return f"\n![{words}](../assets/{name}.png)\n" if drawn else ""


def with_error(pair: Sequence[float], form: str = ".3f") -> str:
    return f"{pair[0]:{form}} ± {pair[1]:.3f}"


@table
def tuning_benchmark() -> str:
    """Test errors of all methods on all tasks."""
    if not is_stored(BENCHMARK):
        return not_run()
    found = load(BENCHMARK)
    tasks, splits = found["summary"]["tasks"], len({unit["split"] for unit in found["units"]})
    rows = []
    for name, task in tasks.items():
        title, family = found["titles"][name]
        means = {method: pair[0] for method, pair in task["error"].items()}
        least = min(means.values())
        cells = [
            f"**{with_error(task['error'][m])}**" if means[m] == least else with_error(task["error"][m]) for m in means
        ]
        trivial = [f"{task[guess]:.3f}" for guess in ("constant", "linear")]
        rows.append([f"{title} ({FAMILIES[family]})", *trivial, *cells, f"{task['kept']} of {splits}"])
    header = ["task", "constant", "linear", *next(iter(tasks.values()))["error"], "tune kept the default"]
    seeds = len(found["units"][0]["methods"]["default"]["errors"])
    notes = [
        "Test errors: 1 - accuracy, for the bytes nats, for the pendulum the mean squared error. Means over "
        f"{splits} splits, {seeds} seeds each, ± the standard error of the mean over the splits. The smallest mean of "
        "a row is bold."
    ]
    notes += [f"Left out, as a file was missing: {', '.join(found['skipped'])}." for _ in [0] if found["skipped"]]
    words = "Test error of each method, relative to the calibrated default, on the tasks"
    return grid(header, rows, *notes) + picture("tuning", words)


@table
def tuning_aims() -> str:
    """What the tuner should reach, and whether it does."""
    if not is_stored(BENCHMARK):
        return not_run()
    aims = load(BENCHMARK)["summary"]["aims"]
    rows = []
    for name, (count, total, met) in aims.items():
        verdict = ("met" if met else "not met") if total else "no such split"
        rows.append([AIMS[name], NEEDED[name], f"{count} of {total}", verdict])
    return grid(["aim", "needed", "reached", ""], rows)


@table
def tuning_methods() -> str:
    """Cost and wins of the methods."""
    if not is_stored(BENCHMARK):
        return not_run()
    found = load(BENCHMARK)
    summary, units = found["summary"], len(found["units"])
    rows = []
    for method, cost in summary["cost"].items():
        runs = cost["runs"] / units
        wins = [summary[what][method] for what in ("near grid", "better than default")]
        minutes = f"{cost['seconds'] / units / 60:.1f}"
        failed = f"{cost['failed while choosing']} of {cost['runs']}"
        rows.append(
            [
                method,
                f"{runs:.1f}",
                minutes,
                failed,
                cost["failed"],
                *(f"{count} of {len(summary['tasks'])}" for count in wins),
            ]
        )
    header = [
        "method",
        "runs to choose",
        "minutes",
        "failed of them",
        "failed seeds of the choice",
        "near the grid",
        "better",
    ]
    note = (
        "Runs and minutes of processor time are means over tasks and splits; runs that methods share count for each. "
        f'{found["different runs"]:,} different runs were trained. "Near the grid" and "better" (than the default) '
        "count tasks, as in the aims. A run fails if it diverges or is no better than a constant prediction on the "
        "validation split."
    )
    return grid(header, rows, note)


@table
def tuning_candidates() -> str:
    """What each of the tuner's changes does by itself."""
    if not is_stored(BENCHMARK):
        return not_run()
    found = load(BENCHMARK)
    singles = {"rescale": "rescale", "time_steps": "step sizes", "learning_rate_x3": "3 x learning rate"}
    rows = []
    for name in found["summary"]["tasks"]:
        units = [unit["candidates"] for unit in found["units"] if unit["task"] == name]
        cells = [ratios([(unit.get(change), unit["default"]) for unit in units]) for change in singles]
        # λ is added to the best of the other runs.
        others = [[error for change, error in unit.items() if change != "penalty" and error] for unit in units]
        penalties = [(unit.get("penalty"), min(errors)) for unit, errors in zip(units, others, strict=True)]
        rows.append([found["titles"][name][0], *cells, ratios(penalties)])
    note = (
        "Validation error with the change, divided by that without it: of the default for the first three, of the best "
        "other run for λ. One seed; mean (smallest to largest) of the splits. -: no such run, or it diverged."
    )
    return grid(["task", *singles.values(), "λ of 1 % of the loss"], rows, note)


def ratios(pairs: Sequence[tuple[float | None, float]]) -> str:
    """Mean and range of ratios; those that do not exist are left out."""
    values = [changed / base for changed, base in pairs if changed is not None]
    if not values:
        return "-"
    return f"{statistics.fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


@table
def tuning_calibration() -> str:
    """Validation errors of the default by its learning rate."""
    if not is_stored(BENCHMARK):
        return not_run()
    found = load(BENCHMARK)
    calibration = found["calibration"]
    rows = [
        [found["titles"][name][0], *(f"{value:.2f}" for value in calibration["errors"][name])]
        for name in found["summary"]["tasks"]
    ]
    rows.append(["**mean**", *(f"{value:.2f}" for value in calibration["mean error"])])
    note = (
        "Validation errors of the first split, in units of that of the constant prediction. The calibrated default has "
        f"the learning rate {calibration['chosen']:g}. The command started from 0.001 at the time of the benchmark; "
        "since then it starts fresh models from 0.003, and checkpoints from 0.001."
    )
    return grid(["task", *(f"{rate:g}" for rate in calibration["rates"])], rows, note)


@table
def tuning_grid() -> str:
    """Mean validation errors of the grid, by learning rate and range of step sizes."""
    if not is_stored(BENCHMARK):
        return not_run()
    found = load(BENCHMARK)
    rates, ranges, tasks = (found["grid"][key] for key in ("rates", "values", "tasks"))
    errors = [unit["grid"] for unit in found["units"] if unit["task"] in tasks]
    means = [statistics.fmean(column) for column in zip(*errors, strict=True)]
    rows = []
    for place, ends in enumerate(ranges):
        of_range = means[place * len(rates) : (place + 1) * len(rates)]
        cells = [f"**{value:.2f}**" if value == min(means) else f"{value:.2f}" for value in of_range]
        rows.append([f"{ends['time_step_min']:g} to {ends['time_step_max']:g}", *cells])
    note = (
        f"Means over the {len(tasks)} tasks whose models have step sizes, and over the splits, in the same units. The "
        "default step sizes of the command are 0.001 to 0.1."
    )
    return grid(["step sizes", *(f"{rate:g}" for rate in rates)], rows, note)


@table
def recall_learning_rates() -> str:
    """Best accuracies and windows of learning rates."""
    if not is_stored(RECALL):
        return not_run()
    found: Any = load(RECALL)
    rows = []
    for name, initialisations in found["summary"].items():
        widths = {key: value["width"] for key, value in initialisations.items()}
        for initialisation, values in initialisations.items():
            low, high = values["window"]
            ratio = widths[initialisation] / widths["default"]
            failed = found["failed"][f"{name}, {initialisation}"]
            cells = [
                f"{values['best']:.3f}",
                f"{low:.2g} to {high:.2g}",
                f"{values['width']:.1f}",
                f"{ratio:.1f}",
                failed,
            ]
            rows.append([name, initialisation, *cells])
    rows.append(["constant", "", f"{found['constant']:.3f}", "", "", "", ""])
    # A model that recalls nothing has equal accuracies, and the widest window of all.
    level = 1 / found["arguments"]["pairs"]
    wider = [
        name
        for name, both in found["summary"].items()
        if both["rescaled"]["width"] >= 2 * both["default"]["width"]
        and both["rescaled"]["best"] >= max(level, 0.95 * both["default"]["best"])
    ]
    seeds = found["arguments"]["seeds"]
    note = (
        f"Mean of {seeds} seeds, learning rates {span(found['arguments']['rates'], 'g')}. The aim, a window that is at "
        "least twice as wide with rescaling (where the best accuracy is above that of guessing among the values of the "
        f"row, {level:g}, and not 5 % below that of the default), is met for {' and '.join(wider) or 'no model'}."
    )
    header = ["model", "initialisation", "best accuracy", "window", "width", "width / default", "diverged runs"]
    words = "Accuracy of recall against the learning rate, with and without rescaling"
    return grid(header, rows, note) + picture(RECALL, words)
