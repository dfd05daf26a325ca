"""Results of a suite as a table, as JSON, and as evaluation results of the Hub."""

import dataclasses
import datetime
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from hf_ssm.suites.data import NO_LIMITS, Limits
from hf_ssm.suites.runner import Run
from hf_ssm.suites.task import Suite, Task
from hf_ssm.utils.files import write_text_atomically

__all__ = ["RESULTS_NAME", "TABLE_NAME", "table_lines", "write_results"]

RESULTS_NAME, TABLE_NAME = "results.json", "results.md"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HEADER = ("task", "model", "how", "metric", "value", "± seeds", "± rows", "chance", "seeds", "seconds", "parameters")


def table_lines(runs: Sequence[Run]) -> list[str]:
    """A table in Markdown, with a note for each model that could not be measured.

    "± seeds" is the standard deviation over seeds, "± rows" the standard error of one measurement over the test rows,
    "chance" the metric of the most frequent class, or of random scores of variants.
    """
    rows = [_HEADER, ("---",) * 4 + ("---:",) * 7]
    for run in runs:
        parameters, chance = (run.results[0][key] if run.results else None for key in ("parameters", "chance"))
        rows.append(
            (
                *(run.task, run.model, run.how, run.metric, _number(run.value)),
                *(_number(run.deviation), _number(run.standard_error), _number(chance)),
                *(str(max(1, len(run.seeds))), f"{run.seconds:.0f}", "" if parameters is None else f"{parameters:,}"),
            )
        )
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    problems = [f"- {run.task}, {run.model}: {run.problem}" for run in runs if run.problem]
    return [*lines, *(["", "Not measured:", "", *problems] if problems else [])]


def write_results(suite: Suite, runs: Sequence[Run], output: Path, limits: Limits = NO_LIMITS) -> list[Path]:
    """Write `results.json`, `results.md`, and for each model of tasks on the Hub `.eval_results/SUITE.yaml`.

    Args:
        suite: The suite.
        runs: The results.
        output: The folder.
        limits: Limits of the data. With any, there are no evaluation results for the Hub: they are not those of the
            data set.

    Returns:
        The files of evaluation results, `OUTPUT/eval_results/MODEL/.eval_results/SUITE.yaml`: copy the folder
        `.eval_results` into the repository of the model.
    """
    content = {
        "suite": suite.name,
        "source": suite.source,
        "tasks": {task.name: task.to_dict() for task in suite.tasks},
        "runs": [
            dataclasses.asdict(run)
            | {"value": run.value, "deviation": run.deviation, "standard_error": run.standard_error}
            for run in runs
        ],
    }
    text = json.dumps(_without_nan(content), indent=1, ensure_ascii=False, allow_nan=False)
    write_text_atomically(output / RESULTS_NAME, f"{text}\n")
    write_text_atomically(output / TABLE_NAME, "\n".join([f"# {suite.name}", "", *table_lines(runs)]) + "\n")
    tasks = {task.name: task for task in suite.tasks}
    written: list[Path] = []
    if limits != NO_LIMITS:
        return written
    for model in dict.fromkeys(run.model for run in runs if run.how not in ("words", "trained") and not run.is_random):
        chosen = [run for run in runs if run.model == model and run.results]
        entries = [entry for run in chosen if (entry := _entry(suite, tasks[run.task], run)) is not None]
        if entries:
            folder = output / "eval_results" / re.sub(r"[^A-Za-z0-9._-]+", "_", model).strip("._") / ".eval_results"
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{suite.name}.yaml")
            write_text_atomically(
                written[-1], yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)
            )
    return written


def _entry(suite: Suite, task: Task, run: Run) -> EvalResultEntry | None:
    """The entry of a result; `None` for data that are not on the Hub, and without a result."""
    if not _HUB_ID.fullmatch(task.dataset) or Path(task.dataset).suffix or math.isnan(run.value):
        return None
    spread = f", standard deviation {run.deviation:.4f} over {len(run.seeds)} seeds" if run.deviation else ""
    rows = f", test rows: {run.rows.get('test', run.rows.get(task.split))}"
    is_commit = re.fullmatch(r"[0-9a-f]{40}", task.revision or "") is not None
    return EvalResultEntry(
        dataset_id=task.dataset,
        task_id=task.config or str(next(iter(task.where.values()), "default")),
        value=round(run.value, 6),
        dataset_revision=task.revision if is_commit else None,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        notes=f"{task.metric}, {run.how}{spread}{rows}, measured by `hf-ssm benchmark {suite.name}`",
    )


def _number(value: float | None) -> str:
    return "" if value is None else "-" if math.isnan(value) else f"{value:.4f}"


def _without_nan(content: Any) -> Any:
    """The same for JSON, which has no NaN: null."""
    if isinstance(content, dict):
        return {key: _without_nan(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_without_nan(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
