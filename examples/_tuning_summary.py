"""Means, comparisons and aims of `tuning_benchmark.py`."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from _experiment import print_table

METHODS = ("default", "tune", "random", "TPE", "learning rate", "grid")


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over the splits and its standard error; 0 for a single split."""
    if len(values) < 2:
        return statistics.fmean(values), 0.0
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))


def summarise(units: Sequence[Mapping[str, Any]], aims: Mapping[str, int]) -> dict[str, Any]:
    """Mean errors of tasks and methods, differences from the grid and the default, abstentions, and the aims."""
    tasks: dict[str, Any] = {}
    for name in dict.fromkeys(unit["task"] for unit in units):
        splits = [unit["methods"] for unit in units if unit["task"] == name]
        errors = {method: [statistics.fmean(each[method]["errors"]) for each in splits] for method in METHODS}
        tasks[name] = {
            "constant": statistics.fmean(each["default"]["constant"] for each in splits),
            "linear": statistics.fmean(unit["linear"] for unit in units if unit["task"] == name),
            "error": {method: mean_and_error(values) for method, values in errors.items()},
            # Positive: worse than the grid, and better than the default.
            "to grid": {method: mean_and_error(_differences(errors["grid"], errors[method])) for method in METHODS},
            "gain": {method: mean_and_error(_differences(errors[method], errors["default"])) for method in METHODS},
            "kept": sum(not each["tune"]["changes"] for each in splits),
            "kept rightly": sum(not each["tune"]["changes"] and _is_near_grid(each) for each in splits),
        }
    near, better = {}, {}
    for method in METHODS:
        near[method] = sum(mean <= error for mean, error in (task["to grid"][method] for task in tasks.values()))
        better[method] = sum(_exceeds_error(task["gain"][method]) for task in tasks.values())
    cost = {
        method: {
            key: sum(unit["methods"][method][key] for unit in units)
            for key in ("runs", "seconds", "failed while choosing", "failed")
        }
        for method in METHODS
    }
    # Settings that were adopted without a gain count against the tuner, too.
    elsewhere = [name for name, task in tasks.items() if not _exceeds_error(task["gain"]["tune"])]
    rightly = sum(tasks[name]["kept rightly"] for name in elsewhere)
    number = sum(unit["task"] in elsewhere for unit in units)
    reached = {
        "near_best": [near["tune"], len(tasks), near["tune"] >= aims["near_best"]],
        "above_default": [better["tune"], len(tasks), better["tune"] >= aims["above_default"]],
        "abstention": [rightly, number, rightly == number],
    }
    return {"tasks": tasks, "near grid": near, "better than default": better, "cost": cost, "aims": reached}


def _exceeds_error(pair: tuple[float, float]) -> bool:
    return pair[0] > pair[1]


def _differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(first, second, strict=True)]


def _is_near_grid(methods: Mapping[str, Any]) -> bool:
    """Whether the default of a split is within one standard error, over the seeds, of the choice of the grid."""
    mean, error = mean_and_error(_differences(methods["grid"]["errors"], methods["default"]["errors"]))
    return mean <= error


def print_summary(frozen: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """The tables of the page, as plain text."""
    rows = []
    for name, task in summary["tasks"].items():
        cells = [f"{mean:.3f} ± {error:.3f}" for mean, error in task["error"].values()]
        trivial = [f"{task[guess]:.3f}" for guess in ("constant", "linear")]
        rows.append([frozen["tasks"][name]["title"], *trivial, *cells, task["kept"]])
    print_table(["task", "constant", "linear", *METHODS, "kept the default"], rows)
    for name, (count, total, met) in summary["aims"].items():
        print(f"{name}: {count} of {total}, {'met' if met else 'not met'}")
