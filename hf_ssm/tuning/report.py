"""The table of a tuning, and `results.json` with the outcome of each run."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from hf_ssm.tuning.tuner import Trial, TuningResult
from hf_ssm.utils.files import write_text_atomically


def lines_of(result: TuningResult) -> list[str]:
    """The table for a terminal, the changes of each trial, and the decision."""
    runs = [run for trial in result.trials for run in trial.outcomes]
    return [
        *_table(result).to_string(index=False, na_rep="-", float_format="{:.4g}".format).splitlines(),
        "",
        *(f"{trial.name}: {_describe(trial)}" for trial in result.trials),
        f"Cost: {len(runs)} runs, {sum(run.seconds for run in runs):.0f} seconds of training and evaluation.",
        f"Decision: {result.reason}.",
    ]


def write_report(result: TuningResult, folder: Path) -> None:
    """Write `results.json`: the decision, the outcome of each run and the diagnosis."""
    content = {
        **{"winner": result.winner, "compared": result.compared, "reason": result.reason},
        "decision": None if result.decision is None else vars(result.decision),
        "trials": [
            {"name": trial.name, "changes": trial.changes, "runs": [run.to_dict() for run in trial.outcomes]}
            for trial in result.trials
        ],
        "diagnosis": result.diagnosis.to_dict(),
    }
    write_text_atomically(folder / "results.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _table(result: TuningResult) -> pd.DataFrame:
    """A row for each trial: `gain` and `s.e.` are those of `hf_ssm.tuning.decision.Decision`, with the fresh seeds."""
    rows = []
    for trial in result.trials:
        runs, decision = trial.outcomes, result.decision if trial.name == result.compared else None
        row: dict[str, Any] = {"trial": trial.name, trial.outcome.metric: trial.outcome.score}
        row |= {"gain": decision and decision.gain, "s.e.": decision and decision.standard_error}
        row |= {"failed": f"{sum(run.failed for run in runs)}/{len(runs)}", "seconds": sum(run.seconds for run in runs)}
        rows.append(row)
    return pd.DataFrame(rows).astype({"gain": float, "s.e.": float})


def _describe(trial: Trial) -> str:
    fields = [
        f"{section}.{name}={f'{value:.4g}' if isinstance(value, float) else str(value).lower()}"
        for section, values in trial.changes.items()
        for name, value in values.items()
    ]
    return " ".join(fields) or "the settings without changes"
