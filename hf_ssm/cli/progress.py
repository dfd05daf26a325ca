"""Progress of a training run: a bar with the loss and the time left, and a line for each evaluation."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm
from transformers import TrainerState, TrainingArguments
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging

from hf_ssm.training.run import RunProgress

# Parts of the names of measurements of time.
_TIMINGS = ("runtime", "per_second", "preparation_time")


class TrainingProgress(RunProgress, ProgressCallback):
    """A line for each evaluation during training, below one of chance, and in a terminal the bars of transformers.

    Without a validation split there is a line for each epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_terminal = sys.stderr.isatty()
        self.loss: float | None = None
        self.columns: list[str] | None = None

    def __enter__(self) -> "TrainingProgress":
        # The bars of saving a checkpoint would overwrite this one.
        self.others_enabled = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        return self

    def __exit__(self, *error: object) -> None:
        for bar in (self.training_bar, self.prediction_bar):
            if bar is not None:
                bar.close()
        if self.others_enabled:
            logging.enable_progress_bar()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.loss, self.columns = None, None
        if self._has_bars(args):
            super().on_train_begin(args, state, control, **kwargs)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_step_end(args, state, control, **kwargs)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any
    ) -> None:
        self.loss = logs.get("loss", self.loss)
        if self.training_bar is not None and self.loss is not None:
            self.training_bar.set_postfix_str(f"loss {self.loss:.4g}")

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: Any, eval_dataloader: Any = None, **kwargs: Any
    ) -> None:
        if self._has_bars(args):
            super().on_prediction_step(args, state, control, eval_dataloader, **kwargs)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        super().on_evaluate(args, state, control, **kwargs)
        # Evaluations after training have other prefixes; their results are printed with those of the run.
        metrics = {name.removeprefix("eval_"): v for name, v in kwargs["metrics"].items() if name.startswith("eval_")}
        if metrics and state.is_world_process_zero:
            self._line(state, metrics)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if args.eval_strategy == "no" and state.is_world_process_zero:
            self._line(state, {})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.training_bar is not None:
            super().on_train_end(args, state, control, **kwargs)

    def _has_bars(self, args: TrainingArguments) -> bool:
        return self.is_terminal and not args.disable_tqdm

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
        # Above the bars, if there are any.
        tqdm.write("".join(f"{cell:>{max(len(name), 7) + 2}}" for name, cell in zip(names, cells, strict=True)))
        sys.stdout.flush()
