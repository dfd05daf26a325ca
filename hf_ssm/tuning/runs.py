"""Ordinary training runs in the subfolders of a folder, each of which is done once."""

import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging

from hf_ssm.training import folder as run_folder
from hf_ssm.training import launch
from hf_ssm.training import run as training_run
from hf_ssm.training.metrics import beats_chance
from hf_ssm.training.run import RunProgress, RunResult
from hf_ssm.training.settings import SECTIONS, RunSettings
from hf_ssm.training.tasks import TASKS
from hf_ssm.training.tracking import measure_tau
from hf_ssm.tuning.decision import Decision, decide
from hf_ssm.utils.files import write_text_atomically

__all__ = ["Outcome", "Runner", "Runs", "outcome_of", "run_in_process"]

OUTCOMES_NAME = "outcomes.json"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run is judged by.

    Attributes:
        score: Metric of the validation split that selects the checkpoint; NaN for a run that diverged.
        metric: Its name.
        greater_is_better: Whether a larger score is better.
        failed: Whether the run diverged, or is no better than a constant prediction.
        seconds: Wall time of training and evaluation; for a resumed run, since it was resumed.
        tau_before: τ of each layer before the first step, after any rescaling; empty if unknown (a resumed run with a
            rescaled initialisation).
        tau_after: τ of each layer after training.
        penalty_share: Σ over the log of λ Σ τ, divided by that of the task loss; 0 without regulariser.
        train_loss: Mean over the log of the task loss on training rows; None if unknown.
        chance: The metric of the best constant prediction; None if unknown.
        problem: Why the run diverged; empty for other runs.
    """

    score: float
    metric: str
    greater_is_better: bool
    failed: bool = False
    seconds: float = 0.0
    tau_before: tuple[float, ...] = ()
    tau_after: tuple[float, ...] = ()
    penalty_share: float = 0.0
    train_loss: float | None = None
    chance: float | None = None
    problem: str = ""

    @property
    def benefit(self) -> float:
        """The score with the sign that makes more better; -∞ for a run that diverged."""
        if not math.isfinite(self.score):
            return -math.inf
        return self.score if self.greater_is_better else -self.score

    def to_dict(self) -> dict[str, Any]:
        """The attributes for JSON, which has no NaN: null."""
        content = dataclasses.asdict(self)
        return {**content, "score": self.score if math.isfinite(self.score) else None}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Outcome":
        """The inverse of `to_dict`."""
        score = math.nan if content["score"] is None else float(content["score"])
        taus = {name: tuple(content[name]) for name in ("tau_before", "tau_after")}
        return cls(**{**content, **taus, "score": score})


Runner = Callable[[RunSettings, Path], Outcome]
"""Trains with settings, with a folder as output, and tells how it went."""


def run_in_process(settings: RunSettings, output: Path) -> Outcome:
    """Train as `hf-ssm train` does, from the newest complete checkpoint in `output` if there is one.

    The folder gets what the command writes but card and figures: settings, log, weights, tokenizer.

    Raises:
        ValueError: Settings and data do not fit together, or there is no validation split.
        OSError: A file cannot be read or written.
    """
    launch.begin(settings)
    started = time.perf_counter()
    with launch.locked(output), without_progress_bars():
        is_resumed = can_resume(output)
        try:
            result = training_run.train(
                settings, output, resume=is_resumed, overwrite=True, progress=RunProgress(), choose=True
            )
        except FloatingPointError as error:
            return diverged(settings, str(error), time.perf_counter() - started)
        outcome = outcome_of(result)
        if is_resumed and not result.model.config.rescale_init:
            # λ depends on it, and should not depend on interruptions.
            fresh = training_run.plan(settings, output, choose=True)
            outcome = dataclasses.replace(
                outcome, tau_before=tuple(measure_tau(fresh.model, training_run.probe_batch(fresh)))
            )
    return outcome


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """No bars of datasets and transformers, which many short runs would fill a terminal with."""
    shown = not are_progress_bars_disabled(), logging.is_progress_bar_enabled()
    disable_progress_bars()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown[0]:
            enable_progress_bars()
        if shown[1]:
            logging.enable_progress_bar()


def can_resume(output: Path) -> bool:
    """Whether a folder has a complete checkpoint, from which an interrupted run continues."""
    try:
        run_folder.last_checkpoint(output)
    except ValueError:
        return False
    return True


def metric_of(settings: RunSettings) -> tuple[str, bool]:
    """The metric that selects a checkpoint, and whether a larger value is better."""
    task, training = TASKS[settings.task], settings.training
    name = str(training.get("metric_for_best_model") or task.best_metric).removeprefix("eval_")
    greater = training.get("greater_is_better")
    return name, task.greater_is_better if greater is None else bool(greater)


def diverged(settings: RunSettings, problem: str, seconds: float) -> Outcome:
    """The outcome of a run that stopped because a loss was not finite."""
    return Outcome(math.nan, *metric_of(settings), failed=True, seconds=seconds, problem=problem)


def check_validation(settings: RunSettings, splits: Container[str]) -> None:
    """Raise `ValueError` if there is no validation split, which compares runs."""
    if "validation" not in splits:
        raise ValueError(
            f"data.dataset={settings.data['dataset']!r} has no validation split, but runs are compared on this "
            "split: give --validation-file, or a data.validation_fraction above 0"
        )


def outcome_of(result: RunResult) -> Outcome:
    """The outcome of a finished run.

    Raises:
        ValueError: There is no validation split, or it lacks the metric that selects a checkpoint.
    """
    metric, greater_is_better = metric_of(result.settings)
    check_validation(result.settings, result.results)
    values, chance = result.results["validation"], result.chance["validation"]
    if metric not in values:
        raise ValueError(
            f"training.metric_for_best_model={metric!r} is not a metric of the validation split: choose from "
            f"{', '.join(values)}"
        )
    losses = [entry for entry in result.log_history if "loss" in entry]
    task_loss = sum(entry.get("task_loss", entry["loss"]) for entry in losses)
    penalty = sum(entry.get("tau_loss", 0.0) for entry in losses)
    before = result.tau.get("after rescaling") or result.tau.get("at initialisation") or ()
    return Outcome(
        score=values[metric],
        metric=metric,
        greater_is_better=greater_is_better,
        failed=not math.isfinite(values[metric]) or (bool(chance) and not beats_chance(values, chance)),
        seconds=result.seconds,
        tau_before=tuple(before),
        tau_after=tuple(result.tau["after training"]),
        penalty_share=penalty / task_loss if task_loss > 0 else 0.0,
        train_loss=task_loss / len(losses) if losses else None,
        chance=chance.get(metric),
    )


def known_chance(outcomes: Iterable[Outcome]) -> float | None:
    """The trivial baseline, which is not known from a run that diverged."""
    return next((outcome.chance for outcome in outcomes if outcome.chance is not None), None)


def decide_outcomes(default: Sequence[Outcome], candidate: Sequence[Outcome]) -> Decision:
    """`hf_ssm.tuning.decision.decide` for the outcomes of two settings, with the same seed at the same place."""
    return decide(
        [outcome.score for outcome in default],
        [outcome.score for outcome in candidate],
        greater_is_better=default[0].greater_is_better,
        failed_default=[outcome.failed for outcome in default],
        failed_candidate=[outcome.failed for outcome in candidate],
        baseline=known_chance([*default, *candidate]),
    )


class Runs:
    """The runs in the subfolders of a folder. `outcomes.json` has those that are finished, which are not repeated.

    A context manager, at whose end processes of its own end.

    Args:
        folder: The folder.
        run: What trains.
        jobs: Runs side by side, each in a process of its own with an equal share of the threads. With 1, the runs are
            in this process.
        report: Is called with the name of each run and its outcome, as soon as the outcome is known.

    Raises:
        ValueError: `jobs` is not positive, or `outcomes.json` is damaged.
    """

    def __init__(
        self,
        folder: Path,
        run: Runner = run_in_process,
        jobs: int = 1,
        report: Callable[[str, Outcome], None] | None = None,
    ):
        if jobs < 1:
            raise ValueError(f"`jobs` must be a positive number of processes, got {jobs}.")
        self._folder, self._run, self._jobs = folder, run, jobs
        self._report = report or (lambda name, outcome: None)
        self._entries: dict[str, dict[str, Any]] = {}
        self._pool: ProcessPoolExecutor | None = None
        path = folder / OUTCOMES_NAME
        if path.is_file():
            try:
                self._entries = json.loads(path.read_text(encoding="utf-8"))
                for entry in self._entries.values():
                    if entry["outcome"] is not None:
                        Outcome.from_dict(entry["outcome"])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{str(path)!r} is damaged ({error}): delete the file to repeat the runs") from error

    def __enter__(self) -> "Runs":
        if self._jobs > 1:
            # Forked processes would inherit locks that threads of torch hold.
            context = multiprocessing.get_context("spawn")
            threads = max(1, torch.get_num_threads() // self._jobs)
            self._pool = ProcessPoolExecutor(self._jobs, context, _begin_process, (threads,))
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error[0] is None, cancel_futures=True)
            self._pool = None

    def outcomes(self, settings: Mapping[str, RunSettings]) -> dict[str, Outcome]:
        """The outcomes of runs by their names, which are those of the subfolders; what is not finished is run."""
        done = {name: outcome for name, run in settings.items() if (outcome := self._stored(name, run)) is not None}
        for name, outcome in done.items():
            self._report(name, outcome)
        missing = {name: run for name, run in settings.items() if name not in done}
        for name, run in missing.items():
            self._begin(name, run)
        for name, outcome in self._outcomes_of_new(missing):
            done[name] = outcome
            self._write({name: {"settings": digest(missing[name]), "outcome": outcome.to_dict()}})
            self._report(name, outcome)
        return {name: done[name] for name in settings}

    def _stored(self, name: str, settings: RunSettings) -> Outcome | None:
        entry = self._entries.get(name)
        if entry is None or entry["outcome"] is None or entry["settings"] != digest(settings):
            return None
        return Outcome.from_dict(entry["outcome"])

    def _begin(self, name: str, settings: RunSettings) -> None:
        """Note the settings of a run, and delete what a run with others has left: it would be continued."""
        if self._entries.get(name, {}).get("settings") != digest(settings):
            run_folder.clear_output(self._folder / name)
        self._write({name: {"settings": digest(settings), "outcome": None}})

    def _write(self, entries: Mapping[str, Any]) -> None:
        self._entries.update(entries)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(self._folder / OUTCOMES_NAME, json.dumps(self._entries, indent=1) + "\n")

    def _outcomes_of_new(self, settings: Mapping[str, RunSettings]) -> Iterator[tuple[str, Outcome]]:
        if self._pool is None:
            for name, run in settings.items():
                yield name, self._run(run, self._folder / name)
            return
        futures = {self._pool.submit(self._run, run, self._folder / name): name for name, run in settings.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _begin_process(threads: int) -> None:
    """Limit the threads of a process, and let it end with the process that started it, also where that is killed."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinels: Sequence[int] = [parent.sentinel]

    def end_with_parent() -> None:
        wait(sentinels)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def digest(settings: RunSettings) -> str:
    """A short hash of all settings of a run."""
    content = json.dumps([getattr(settings, section) for section in SECTIONS], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
