"""Progress of a training run: a bar with the loss and the time left, and a line for each evaluation."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerState, TrainingArguments
from transformers.utils import logging

from hf_ssm.training.run import RunProgress

# Parts of the names of measurements of time.
_TIMINGS = ("runtime", "per_second", "preparation_time")


class TrainingProgress(RunProgress):
    """A line for each evaluation during training, below one of chance, and in a terminal a bar, which the end of the
    context closes.

    Without a validation split there is a line for each epoch.
    """

    def __init__(self) -> None:
        # Jupyter sets FORCE_COLOR, by which rich takes a pipe for a terminal.
        self.console = Console(file=sys.stdout, force_terminal=sys.stdout.isatty())
        self.bar: Progress | None = None
        self.loss: float | None = None
        self.columns: list[str] | None = None

    def __enter__(self) -> "TrainingProgress":
        # The bars of saving a checkpoint would overwrite this one.
        self.others_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        if self.others_enabled:
            logging.enable_progress_bar()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loss, self.columns = None, None
        if self._has_bar(args, state):
            self._start("training", state.max_steps, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loss = kwargs["logs"].get("loss", self.loss)
        if self.bar is not None and self.loss is not None and self.bar.tasks[0].description == "training":
            self.bar.update(self.bar.task_ids[0], loss=f"loss {self.loss:.4g}")

    def on_prediction_step(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        batches: Any = kwargs.get("eval_dataloader")
        if not self._has_bar(args, state) or not hasattr(batches, "__len__"):
            return
        if self.bar is None:  # evaluation after training
            self._start("evaluating", len(batches))
        elif len(self.bar.task_ids) == 1 and self.bar.tasks[0].description == "training":
            self.bar.add_task("evaluating", total=len(batches), loss="")
        assert self.bar is not None
        self.bar.advance(self.bar.task_ids[-1])

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None and self.bar.tasks[-1].description == "evaluating":
            if len(self.bar.task_ids) == 1:
                self._stop()
            else:
                self.bar.remove_task(self.bar.task_ids[-1])
        # Evaluations after training have other prefixes; their results are printed with those of the run.
        metrics = {name.removeprefix("eval_"): v for name, v in kwargs["metrics"].items() if name.startswith("eval_")}
        if metrics and state.is_world_process_zero:
            self._line(state, metrics)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.eval_strategy == "no" and state.is_world_process_zero:
            self._line(state, {})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._stop()

    def _has_bar(self, args: TrainingArguments, state: TrainerState) -> bool:
        return self.console.is_terminal and not args.disable_tqdm and state.is_world_process_zero

    def _start(self, what: str, total: int, completed: int = 0) -> None:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.bar.add_task(what, total=total, completed=completed, loss="")
        self.bar.start()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _line(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Print a row of the table of evaluations, and before the first one its head."""
        values = {name: value for name, value in metrics.items() if not name.endswith(_TIMINGS)}
        names = ["validation loss" if name == "loss" else name for name in values]
        if names != self.columns:
            self.columns = names
            self._row(["epoch", "step", "train loss", *names])
            if self.chance and values:
                shown = (f"{self.chance[name]:.4f}" if name in self.chance else "-" for name in values)
                self._row(["chance", "-", "-", *shown])
        loss = "-" if self.loss is None else f"{self.loss:.4f}"
        shown = (f"{value:.4f}" for value in values.values())
        self._row([f"{state.epoch or 0:.2f}", str(state.global_step), loss, *shown])

    def _row(self, cells: Sequence[str]) -> None:
        names = ("epoch", "step", "train loss", *(self.columns or ()))
        line = "".join(f"{cell:>{max(len(name), 7) + 2}}" for name, cell in zip(names, cells, strict=True))
        if self.bar is None:
            print(line, flush=True)
        else:
            self.console.print(line, highlight=False, markup=False, soft_wrap=True)
