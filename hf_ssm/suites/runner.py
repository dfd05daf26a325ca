"""All tasks of a suite for several models and baselines; each measurement is stored as soon as it is there."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from hf_ssm.data.genome import Genome
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.parts import file_facts
from hf_ssm.suites.data import NO_LIMITS, Limits, TaskData, load_task
from hf_ssm.suites.supervised import (
    PENALTIES,
    embeddings,
    fine_tune,
    kmer_classifier,
    linear_classifier,
    untrained,
    with_random_weights,
)
from hf_ssm.suites.task import Suite, Task
from hf_ssm.suites.variants import score_task
from hf_ssm.tuning.runs import without_progress_bars
from hf_ssm.utils.files import write_text_atomically

__all__ = ["BASELINE", "Contender", "Run", "run_suite"]

BASELINE = "k-mers"
"""Name of the baseline in the table."""


@dataclasses.dataclass(frozen=True)
class Contender:
    """A model of a suite.

    Attributes:
        name: Its name in the table.
        load: Loads a checkpoint; `None` for a model that is trained from scratch.
        settings: Settings (sections model, data and training) of runs that train it; `None` for a checkpoint whose
            embeddings are read as they are.
        facts: What identifies the model and its settings, in JSON types: with other facts, it is measured again.
    """

    name: str
    load: Callable[[], SequenceModel] | None = None
    settings: Mapping[str, Mapping[str, Any]] | None = None
    facts: Any = None

    def __post_init__(self) -> None:
        if self.load is None and self.settings is None:
            raise ValueError(f"the model {self.name!r} needs `load`, or the `settings` of its training")


@dataclasses.dataclass(frozen=True)
class Run:
    """The measurements of a model on a task.

    Attributes:
        task: Name of the task.
        model: Name of the model in the table.
        how: `"words"` (the baseline), `"linear probe"`, `"fine-tuned"`, `"trained"` or `"zero-shot"`.
        is_random: Whether the weights are random.
        metric: Name of the metric.
        seeds: The seeds; empty for what has none.
        results: What was measured, one for each seed, or a single one: `value`, `standard_error` (over test rows),
            `chance`, `metrics`, `chosen`, `seconds`, `parameters`, and for classifiers `validation`.
        rows: Rows of each split of the task.
        problem: Why the model has no result; "" if it has.
    """

    task: str
    model: str
    how: str
    is_random: bool
    metric: str
    seeds: tuple[int, ...]
    results: tuple[dict[str, Any], ...]
    rows: Mapping[str, int]
    problem: str = ""

    @property
    def value(self) -> float:
        """Mean of the metric over seeds; NaN without a result."""
        return float(np.mean([result["value"] for result in self.results])) if self.results else float("nan")

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; `None` for a single measurement."""
        values = [result["value"] for result in self.results]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None

    @property
    def standard_error(self) -> float | None:
        """Standard error over the test rows, the mean over seeds."""
        errors = [result["standard_error"] for result in self.results if result["standard_error"] is not None]
        return float(np.mean(errors)) if errors else None

    @property
    def seconds(self) -> float:
        """Wall time of all measurements."""
        return float(sum(result["seconds"] for result in self.results))


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A measurement: what identifies it, and the function that makes it."""

    how: str
    seed: int | None
    facts: Any
    measure: Callable[[TaskData], dict[str, Any]]


def run_suite(
    suite: Suite,
    contenders: Sequence[Contender],
    output: Path,
    *,
    seeds: int = 3,
    with_random: bool = True,
    genome: Path | None = None,
    mirror: Path | None = None,
    limits: Limits = NO_LIMITS,
    both_strands: bool = False,
    report: Callable[[Run], None] = lambda run: None,
) -> list[Run]:
    """Measure models and baselines on the tasks of a suite.

    Classifications: a linear probe of the embeddings of a checkpoint, or a run for a contender with settings; beside
    them logistic regression on counts of words, and linear probes of random weights. Variants: scores without training,
    beside those of words and of random weights.

    Args:
        suite: The suite.
        contenders: The models; none for the baseline only.
        output: Folder of the rows, the measurements and the runs. A call with the same arguments continues.
        seeds: Number of seeds, from 0, of runs and of random weights.
        with_random: Whether random weights of the configuration of each checkpoint, and of the models that settings
            train, are measured, too.
        genome: Reference of the variants of tasks without one.
        mirror: As for `load_task`.
        limits: Limits of the data of all tasks.
        both_strands: Average embeddings and predictions of classifications over both strands; variants always are.
        report: Called with each result.

    Returns:
        The results in the order of the tasks.

    Raises:
        ValueError: A task needs a genome, or a model that is trained here has a task of variants; two models have one
            name; the data of a task are unfit.
    """
    _check(suite, contenders, genome, seeds)
    with without_progress_bars():
        loaded = {task.name: load_task(task, output / "data", mirror, limits) for task in suite.tasks}
    runs = []
    for name, is_random, cells_of in _rows(contenders, output, range(seeds), with_random, both_strands):
        for task in suite.tasks:
            reference = Path(task.genome or str(genome)) if task.kind == "variants" else None
            run = _measured(name, is_random, loaded[task.name], cells_of(task, reference), output)
            report(run)
            runs.append(run)
    order = [task.name for task in suite.tasks]
    return sorted(runs, key=lambda run: order.index(run.task))


def _check(suite: Suite, contenders: Sequence[Contender], genome: Path | None, seeds: int) -> None:
    if seeds < 1:
        raise ValueError(f"`seeds`={seeds}: give a positive number")
    names = [BASELINE, *(contender.name for contender in contenders)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(
            f"two models of the table are named {twice[0]!r}: give each model once, and different models under "
            "different names"
        )
    for task in suite.tasks:
        if task.kind != "variants":
            continue
        if task.genome is None and genome is None:
            raise ValueError(f"task {task.name!r} has variants: give their reference genome (--genome FASTA)")
        if trained := [contender.name for contender in contenders if contender.settings is not None]:
            raise ValueError(
                f"task {task.name!r} scores variants without training, but {trained[0]!r} would be trained: give a "
                "checkpoint, without --fine-tune, or choose other tasks (--tasks)"
            )


# Of a task, and of the reference genome of its variants.
_CellsOf = Callable[[Task, Path | None], list[_Cell]]
# Of the data of a task, and of a seed; without a seed, of the weights of a checkpoint.
_ModelOf = Callable[[TaskData, int | None], SequenceModel]


def _rows(
    contenders: Sequence[Contender], output: Path, seeds: Sequence[int], with_random: bool, both_strands: bool
) -> Iterator[tuple[str, bool, _CellsOf]]:
    """Name of each row of the table of a task, whether its weights are random, and its measurements."""
    yield BASELINE, False, _baseline_cells
    for contender in contenders:
        model_of = _model_of(contender, output)
        if contender.settings is not None:
            yield contender.name, False, partial(_training_cells, contender, seeds, both_strands, output)
        else:
            yield contender.name, False, partial(_cells, model_of, contender.facts, [None], both_strands)
        if with_random:
            facts = {"random weights": contender.facts}
            if contender.load is None:
                facts["settings"] = contender.settings
            name = f"{contender.name} (random weights)"
            yield name, True, partial(_cells, model_of, facts, list(seeds), both_strands)


def _model_of(contender: Contender, output: Path) -> _ModelOf:
    """The checkpoint (seed `None`), or a model with random weights: of its configuration, or of the settings."""
    if contender.load is None:
        settings = contender.settings or {}
        # The folder is only compared with the inputs.
        return lambda data, seed: untrained(data, settings, int(seed or 0), output / "runs" / data.task.name)
    load = cache(contender.load)
    return lambda data, seed: load() if seed is None else with_random_weights(load(), seed)


def _baseline_cells(task: Task, genome: Path | None) -> list[_Cell]:
    def measure(data: TaskData) -> dict[str, Any]:
        if genome is None:
            return kmer_classifier(data) | {"parameters": None}
        with Genome(genome) as reference:
            return score_task(data, reference, None) | {"parameters": None}

    return [_Cell("words", None, {"genome": genome and file_facts(genome), "penalties": PENALTIES}, measure)]


def _cells(
    model_of: _ModelOf,
    facts: Any,
    seeds: Sequence[int | None],
    both_strands: bool,
    task: Task,
    genome: Path | None,
) -> list[_Cell]:
    """Linear probes, or scores of variants, of a model as it is (seed `None`) or with random weights."""

    def measure(data: TaskData, seed: int | None) -> dict[str, Any]:
        model = model_of(data, seed)
        count = sum(parameter.numel() for parameter in model.model.parameters())
        if genome is not None:
            with Genome(genome) as reference:
                return score_task(data, reference, model) | {"parameters": count}
        splits = data.splits()
        vectors = {name: embeddings(model, sequences, both_strands) for name, (sequences, _) in splits.items()}
        return linear_classifier(data, vectors) | {"parameters": count}

    how = "linear probe" if genome is None else "zero-shot"
    facts = {"model": facts, "both_strands": both_strands, "genome": genome and file_facts(genome)}
    facts |= {} if genome is not None else {"penalties": PENALTIES}
    return [_Cell(how, seed, facts, partial(measure, seed=seed)) for seed in seeds]


def _training_cells(
    contender: Contender, seeds: Sequence[int], both_strands: bool, output: Path, task: Task, genome: Path | None
) -> list[_Cell]:
    """Runs that train a model, one for each seed."""
    settings = contender.settings or {}
    facts = {"model": contender.facts, "settings": settings, "both_strands": both_strands}

    def measure(data: TaskData, seed: int) -> dict[str, Any]:
        folder = output / "runs" / task.name / f"{_slug(contender.name)}-{_digest([facts, data.digest])}-{seed}"
        result, count = fine_tune(data, settings, seed, folder, both_strands)
        return result | {"parameters": count}

    how = "trained" if contender.load is None else "fine-tuned"
    return [_Cell(how, seed, facts, partial(measure, seed=seed)) for seed in seeds]


def _measured(name: str, is_random: bool, data: TaskData, cells: Sequence[_Cell], output: Path) -> Run:
    """The results of the cells, from their files or measured now."""
    task, results, problem = data.task, [], ""
    for cell in cells:
        facts = {"task": task.to_dict(), "data": data.digest, "how": cell.how, "seed": cell.seed, "facts": cell.facts}
        path = output / "cells" / task.name / f"{_slug(name)}-{_digest(facts)}.json"
        if path.is_file():
            results.append(json.loads(path.read_text(encoding="utf-8"))["result"])
            continue
        started = time.perf_counter()
        try:
            result = cell.measure(data)
        except (ValueError, FloatingPointError) as error:
            # Other models and tasks do not depend on it.
            results, problem = [], " ".join(str(error).split())
            break
        results.append(result | {"seconds": round(time.perf_counter() - started, 3)})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps({"facts": facts, "result": results[-1]}, indent=1, default=str) + "\n")
    seeds = tuple(cell.seed for cell in cells if cell.seed is not None)
    return Run(task.name, name, cells[0].how, is_random, task.metric, seeds, tuple(results), data.rows, problem)


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[-60:]


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
