"""Runs of the Trainer of `test_context_trainer.py`, in one process or in several that share the sequences.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=... python context_trainer_worker.py FOLDER CASE...

The first process writes what it has measured, by case, into FOLDER/measured.pt.
"""

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from context_worker import build
from torch import Tensor
from transformers import DataCollatorWithFlattening

import hf_ssm
from hf_ssm.training.trainer import SSMTrainingArguments

ROWS, BATCH, STEPS = 12, 4, 3
# Model, layout of the rows, and arguments of the Trainer or changes of the configuration.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "S4D": ("S4D", "right", {"tau_weight": 0.1, "gradient_accumulation_steps": 2}),
    "S4D, pooled": ("S4", "left", {"tau_weight": 0.1, "gradient_accumulation_steps": 2, "rescale_init": True}),
    "S4D, batch norm": ("S4D, batch norm", "right", {}),
    "Hyena": ("Hyena", "packed", {"label_smoothing_factor": 0.1, "tau_weight": 0.1}),
    "Hyena, own loss": ("Hyena", "right", {"compute_loss_func": "mean", "gradient_accumulation_steps": 2}),
    "S5": ("S5", "right", {"max_grad_norm": 1e-3, "rescale_init": True}),
    "S5, pooled": ("S5, bilinear", "right", {"average_tokens_across_devices": False}),
    "Mamba": ("Mamba", "packed", {"tau_weight": 0.1, "gradient_accumulation_steps": 2}),
    "Mamba, pooled": ("Mamba, complex", "left", {"label_smoothing_factor": 0.1, "model_init": True}),
    "Mamba-2": ("Mamba-2", "left", {"label_smoothing_factor": 0.1}),
    "Mamba-2, masked": ("Mamba-2, rotated", "packed", {"rescale_init": False}),
    "Mamba-2, AdamW": ("Mamba-2", "right", {"optim": "adamw_torch", "learning_rate": 1e-3}),
    "float32": ("Mamba", "right", {"tau_weight": 0.1, "dtype": torch.float32}),
}


class Rows(torch.utils.data.Dataset):
    """Rows of 9 to 21 tokens, with the labels of a head."""

    def __init__(self, head: str, count: int = ROWS):
        generator = torch.Generator().manual_seed(1)
        self.rows = []
        for index in range(count):
            ids = torch.randint(7, 11, (int(torch.randint(9, 22, (), generator=generator)),), generator=generator)
            labels = index % 2 if head == "ForSequenceClassification" else ids.tolist()
            self.rows.append({"input_ids": ids.tolist(), "labels": labels})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def padded(rows: list[dict[str, Any]], side: str) -> dict[str, Tensor]:
    """Rows padded on one side."""
    longest = max(len(row["input_ids"]) for row in rows)

    def pad(values: list[int], value: int) -> list[int]:
        padding = [value] * (longest - len(values))
        return values + padding if side == "right" else padding + values

    batch = {
        "input_ids": [pad(row["input_ids"], 0) for row in rows],
        "attention_mask": [pad([1] * len(row["input_ids"]), 0) for row in rows],
        "labels": [pad(row["labels"], -100) if isinstance(row["labels"], list) else row["labels"] for row in rows],
    }
    return {name: torch.tensor(value) for name, value in batch.items()}


def mean_loss(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """A loss of a user's own, of the probabilities of all positions."""
    chosen = outputs.logits.softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -torch.where(labels < 0, 0, chosen).sum() / num_items_in_batch


def trainer_of(case: str, folder: Path, world: int, cp_size: int, **more: Any) -> Any:
    """The Trainer of a case; all processes together read BATCH rows in a step."""
    name, layout, options = CASES[case]
    options = {**options, **more}
    model_fields = {key: options.pop(key) for key in ("tau_weight", "rescale_init") if key in options}
    dtype = options.pop("dtype", torch.float64)

    def fresh() -> Any:
        model = build(name, dtype)
        for key, value in model_fields.items():
            setattr(model.config, key, value)
        return model

    head = type(fresh()).__name__.partition("For")[2]
    collator: Callable = functools.partial(padded, side=layout)
    if layout == "packed":
        collator = DataCollatorWithFlattening(return_seq_idx=True, return_position_ids=False, separator_id=-100)
    own_loss, model_init = options.pop("compute_loss_func", None), options.pop("model_init", False)
    rows = BATCH * cp_size // world
    args = SSMTrainingArguments(
        **{"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_steps": STEPS, **options},
        **({"cp_size": cp_size} if cp_size > 1 else {}),
        **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), rows),
        **{"output_dir": str(folder), "use_cpu": not torch.cuda.is_available(), "report_to": "none", "seed": 3},
        **{"logging_steps": 1, "save_steps": 2, "disable_tqdm": True, "save_strategy": "steps"},
        remove_unused_columns=False,
    )
    return hf_ssm.SSMTrainer(
        **{"model_init": fresh} if model_init else {"model": fresh()},
        args=args,
        train_dataset=Rows(f"For{head}"),
        eval_dataset=Rows(f"For{head}", 8),
        data_collator=collator,
        compute_loss_func=mean_loss if own_loss else None,
        compute_metrics=lambda results: {
            "right": float(np.mean((results.predictions.argmax(-1) == results.label_ids)[results.label_ids >= 0])),
            "count": float((results.label_ids >= 0).sum()),
        },
    )


def measure(case: str, folder: Path, world: int = 1, cp_size: int = 1) -> dict[str, Any]:
    """Logs, weights, evaluation and predictions of a run, and the weights of one that is resumed."""
    trainer = trainer_of(case, folder, world, cp_size)
    trainer.train()
    measured: dict[str, Any] = {
        **{f"log {key} {number}": value for number, entry in enumerate(trainer.state.log_history)
           for key, value in entry.items() if key.startswith(("loss", "grad", "tau", "task"))},
        **{f"weight {name}": value.detach().clone() for name, value in trainer.model.named_parameters()},
        "tau before the rescaling": trainer.rescale_tau,
        "rows of a step": trainer.get_total_train_batch_size(trainer.args),
    }  # fmt: skip
    metrics = trainer.evaluate()
    measured |= {f"evaluation {key}": metrics[f"eval_{key}"] for key in ("loss", "right", "count")}
    # The last batch of 5 rows is not full.
    if CASES[case][1] != "packed":
        head = "For" + type(trainer.model).__name__.partition("For")[2]
        predicted = trainer.predict(Rows(head, 5))
        measured["predictions"] = torch.tensor(predicted.predictions[predicted.label_ids >= 0])
        measured["labels"] = torch.tensor(predicted.label_ids)
    if case in ("S4D", "Mamba-2, AdamW"):
        resumed = trainer_of(case, folder, world, cp_size)
        resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
        measured |= {f"resumed {name}": value.detach().clone() for name, value in resumed.model.named_parameters()}
        trainer.save_model(str(folder / "saved"))
        if trainer.is_world_process_zero():
            saved = type(trainer.model).from_pretrained(folder / "saved", dtype=torch.float64)
            measured |= {f"saved {name}": value.detach().clone() for name, value in saved.named_parameters()}
    return measured


def main(folder: str, cp_size: str, *cases: str) -> None:
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    results = {}
    for case in cases:
        results[case] = measure(case, Path(folder, case), world, int(cp_size))
        if "-v" in sys.argv and rank == 0:
            print(case, flush=True)
    if rank == 0:
        torch.save(results, Path(folder, "measured.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*[argument for argument in sys.argv[1:] if argument != "-v"])
