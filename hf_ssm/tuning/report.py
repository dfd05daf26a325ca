"""The table of a tuning: printed, as `table.csv`, and with everything else as `results.json`."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hf_ssm.tuning.plan import DEFAULT
from hf_ssm.tuning.runs import Outcome
from hf_ssm.tuning.tuner import Trial, TuningResult
from hf_ssm.utils.files import staged_files

__all__ = ["rows_of", "table_lines", "write_report"]

RESULTS_NAME, TABLE_NAME, PICTURE_NAME = "results.json", "table.csv", "tuning.png"


def rows_of(result: TuningResult) -> list[dict[str, Any]]:
    """The table: a row for each candidate, its numbers unrounded, None where there is none.

    `difference` is the gain over the default with the seed of the settings, `gain` and `standard_error` those of the
    fresh seeds (see `hf_ssm.tuning.decision.Decision`); `tau_before` and `tau_after` are the sums over the layers.
    """
    default = result.trial(DEFAULT).outcome
    rows = []
    for trial in result.trials:
        outcome, is_compared = trial.outcome, trial.candidate.name == result.compared and result.decision is not None
        runs = [run for run in (outcome, *trial.fresh) if run is not None]
        rows.append(
            {
                "candidate": trial.candidate.name,
                "changes": trial.candidate.describe(),
                result.metric: _finite(None if outcome is None else outcome.score),
                "difference": _difference(default, outcome) if trial.candidate.name != DEFAULT else None,
                "fresh_seeds_mean": _finite(fmean(run.score for run in trial.fresh) if trial.fresh else None),
                "gain": _finite(result.decision.gain) if is_compared and result.decision else None,
                "standard_error": _finite(result.decision.standard_error) if is_compared and result.decision else None,
                "failed": sum(run.failed for run in runs),
                "runs": len(runs),
                "baseline": result.chance,
                "tau_before": _total(outcome, "tau_before"),
                "tau_after": _total(outcome, "tau_after"),
                "penalty_share": None if outcome is None else outcome.penalty_share,
                "seconds": sum(run.seconds for run in runs),
            }
        )
    return rows


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _difference(default: Outcome | None, outcome: Outcome | None) -> float | None:
    if default is None or outcome is None:
        return None
    return _finite(outcome.benefit - default.benefit)


def _total(outcome: Outcome | None, name: str) -> float | None:
    values: Sequence[float] = () if outcome is None else getattr(outcome, name)
    return _finite(sum(values)) if values else None


def table_lines(result: TuningResult) -> list[str]:
    """The table for a terminal, and the decision."""
    head = ("", result.metric, "gain", "fresh seeds: gain ± s.e.", "failed", "Σ τ", "λ Σ τ / loss", "seconds")
    cells = [
        head,
        *(_cells(trial, row, result.metric) for trial, row in zip(result.trials, rows_of(result), strict=True)),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for number, row in enumerate(cells):
        text = "  ".join(
            [f"{row[0]:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        lines.append(text.rstrip())
        if number:
            lines.append(f"    {result.trials[number - 1].candidate.describe()}")
    constant = "unknown" if result.chance is None else f"{result.chance:.4g}"
    linear = result.diagnosis.baseline.linear
    return [
        *lines,
        f"Baselines, {result.metric}: a constant prediction {constant}; a linear model "
        f"{linear if isinstance(linear, str) else f'{linear:.4g}'}.",
        f"Cost: {result.runs} runs, {result.seconds:.0f} seconds of training and evaluation.",
        f"Decision: {result.reason}.",
    ]


def _cells(trial: Trial, row: dict[str, Any], metric: str) -> tuple[str, ...]:
    if trial.outcome is None:
        return (row["candidate"], *(7 * ("-",)))
    fresh = "-"
    if row["gain"] is not None:
        fresh = f"{row['gain']:+.4g} ± {row['standard_error']:.2g}"
    tau = "-" if row["tau_after"] is None else f"{_number(row['tau_before'])} → {_number(row['tau_after'])}"
    return (
        row["candidate"],
        "diverged" if row[metric] is None else f"{row[metric]:.4f}",
        "-" if row["difference"] is None else f"{row['difference']:+.4f}",
        fresh,
        f"{row['failed']}/{row['runs']}",
        tau,
        f"{row['penalty_share']:.2%}" if row["penalty_share"] else "-",
        f"{row['seconds']:.0f}",
    )


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def write_report(result: TuningResult, folder: Path) -> None:
    """Write `table.csv` and `results.json`, which also has the diagnosis and the outcome of each run."""
    rows = rows_of(result)
    decision = None if result.decision is None else {**vars(result.decision)}
    content = {
        "winner": result.winner,
        "reason": result.reason,
        "decision": decision,
        "metric": result.metric,
        "baseline": result.chance,
        "runs": result.runs,
        "seconds": result.seconds,
        "table": rows,
        "outcomes": {
            trial.candidate.name: {
                "changes": trial.candidate.changes,
                "missing": trial.candidate.missing,
                "seed_of_the_settings": None if trial.outcome is None else trial.outcome.to_dict(),
                "fresh_seeds": [outcome.to_dict() for outcome in trial.fresh],
            }
            for trial in result.trials
        },
        "diagnosis": result.diagnosis.to_dict(),
    }
    with staged_files(folder) as scratch:
        (scratch / RESULTS_NAME).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        with (scratch / TABLE_NAME).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
