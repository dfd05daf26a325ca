"""One training run, from resolved settings to a trained model and its measurements."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_ssm.data import with_random_reverse_complement
from hf_ssm.training import folder
from hf_ssm.training.build import (
    TASKS,
    build_collator,
    build_model,
    load_data,
    load_tokenizer,
)
from hf_ssm.training.settings import RunSettings
from hf_ssm.training.trainer import SSMTrainer, SSMTrainingArguments

_PROBE_ROWS = 64


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        model: the trained model: the best checkpoint on the validation split where there is one.
        tokenizer: its tokenizer.
        splits: sequences per split.
        dataset_description: what a generator says about its data.
        results: for "validation" and "test", as far as they exist, the metrics and the `loss`.
        tau: τ per layer on one batch of training data, at the moments it was measured.
        log_history: of the Trainer.
        steps: optimizer steps done, those before a resumption included.
        seconds: wall time of training and evaluation.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    splits: dict[str, int]
    dataset_description: str
    results: dict[str, dict[str, float]]
    tau: dict[str, list[float]]
    log_history: list[dict[str, Any]]
    steps: int
    seconds: float


class _TauBeforeTraining(TrainerCallback):
    """Measures τ between the Trainer's rescaling, if any, and the first step."""

    def __init__(self, batch: dict[str, torch.Tensor]):
        self.batch = batch
        self.tau: list[float] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.tau = measure_tau(kwargs["model"], self.batch)


@torch.no_grad()
def measure_tau(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> list[float]:
    """τ of each layer (Liu & Li 2024, eq. (6)) on a batch of the model's keyword inputs, dropout off."""
    was_training = model.training
    model.eval()
    tau = model(**{name: value.to(model.device) for name, value in batch.items()}, output_tau=True).tau
    model.train(was_training)
    return [float(value) for value in tau]


def train(settings: RunSettings, output: Path, resume: bool = False, overwrite: bool = False) -> RunResult:
    """Train, measure the test split once, and save model, tokenizer, settings and log.

    The checkpoint is chosen on the validation split; the test split is looked at once, at the end.

    Args:
        settings: what to do.
        output: folder for the result and the checkpoints, already accepted by `folder.check_output`.
        resume: go on from the last checkpoint in `output`.
        overwrite: remove what an earlier run left in `output`, once data and model are there.

    Raises:
        ValueError: if settings, data and model do not fit together, or there is no checkpoint to resume from.
        OSError: if something cannot be read or written.
    """
    checkpoint = folder.last_checkpoint(output) if resume else None
    set_seed(int(settings.training["seed"]))
    tokenizer = load_tokenizer(settings)
    loaded = load_data(settings, tokenizer)
    data = loaded.tokens
    model = build_model(settings, tokenizer, loaded, checkpoint)
    trainer = _build_trainer(settings, output, model, tokenizer, data)
    if overwrite and not resume:
        folder.clear_output(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / folder.SETTINGS_NAME).write_text(settings.to_yaml(), encoding="utf-8")

    started = time.perf_counter()
    tau = _train_and_measure_tau(trainer, _probe_batch(data["train"], tokenizer), checkpoint)
    results = {split: _evaluate(trainer, data[split], split) for split in ("validation", "test") if split in data}
    seconds = time.perf_counter() - started

    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        (output / "training_args.bin").unlink(missing_ok=True)  # a pickle with local paths
        folder.write_log(output, trainer.state.log_history)
    return RunResult(
        model=trainer.accelerator.unwrap_model(trainer.model),
        tokenizer=tokenizer,
        splits={name: len(split) for name, split in data.items()},
        dataset_description=loaded.description,
        results=results,
        tau=tau,
        log_history=trainer.state.log_history,
        steps=trainer.state.global_step,
        seconds=seconds,
    )


def _build_trainer(
    settings: RunSettings,
    output: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: DatasetDict,
) -> SSMTrainer:
    task = TASKS[settings.task]
    training: dict[str, Any] = {
        "metric_for_best_model": task.best_metric,
        "greater_is_better": task.greater_is_better,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        **settings.training,
    }
    train_dataset = data["train"]
    if settings.data["reverse_complement"]:
        train_dataset = with_random_reverse_complement(train_dataset, tokenizer)
    if "validation" not in data:
        training.update(eval_strategy="no", load_best_model_at_end=False)
    return SSMTrainer(
        model=model,
        args=SSMTrainingArguments(output_dir=str(output), **training),
        train_dataset=train_dataset,
        eval_dataset=data.get("validation"),
        data_collator=build_collator(settings, tokenizer),
        processing_class=tokenizer,
        compute_metrics=task.compute_metrics,
        preprocess_logits_for_metrics=task.preprocess,
    )


def _probe_batch(train: Dataset, tokenizer: PreTrainedTokenizerBase) -> dict[str, torch.Tensor]:
    """The first training sequences, padded: what τ is measured on."""
    rows = [{"input_ids": row} for row in train[:_PROBE_ROWS]["input_ids"]]
    return dict(DataCollatorWithPadding(tokenizer)(rows))


def _train_and_measure_tau(
    trainer: SSMTrainer, batch: dict[str, torch.Tensor], checkpoint: Path | None
) -> dict[str, list[float]]:
    """Train; τ per layer before and after, and between rescaling and training where there is a rescaling."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    before = _TauBeforeTraining(batch)
    trainer.add_callback(before)
    tau: dict[str, list[float]] = {}
    if checkpoint is None:
        tau["at initialisation"] = measure_tau(model, batch)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if trainer.rescale_tau is not None:
        tau["after rescaling"] = before.tau
    return {**tau, "after training": measure_tau(model, batch)}


def _evaluate(trainer: SSMTrainer, split: Dataset, name: str) -> dict[str, float]:
    """Metrics and loss of a split, without the Trainer's timings."""
    found = trainer.evaluate(split, metric_key_prefix=name)
    prefix, timings = f"{name}_", ("runtime", "per_second", "time")
    return {
        key.removeprefix(prefix): float(value)
        for key, value in found.items()
        if key.startswith(prefix) and not key.endswith(timings)
    }
