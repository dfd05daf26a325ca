"""The run on a stream of `test_streaming.py`, and what one of several processes does in it.

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=... python streaming_worker.py FOLDER DEVICE

Trains without an interruption, and with two of them, for each number of workers; writes the weights into FOLDER.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import DataCollatorForLanguageModeling, TrainerCallback
from transformers.utils import logging

import hf_ssm
from hf_ssm.data import stream_sequences
from hf_ssm.tokenization import build_byte_tokenizer
from hf_ssm.training.streaming import StreamCollator
from hf_ssm.training.trainer import SSMTrainingArguments

STEPS, BATCH = 12, 4
SHARDS = (7, 3, 11)


def write_shards(folder: Path) -> Path:
    """Files with other numbers of rows each, of which neither 2 nor 4 processes or workers can take equal parts."""
    for number, count in enumerate(SHARDS):
        rows = [{"text": f"row {number} {row} " * (1 + row % 3)} for row in range(count)]
        (folder / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder / "*.jsonl"


class Recorder(StreamCollator):
    """Keeps the texts of each batch; None for rows that are skipped."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.batches: list[list[str | None]] = []

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        self.batches.append([row.get("text") for row in rows])
        return super().__call__(rows)


class StopAt(TrainerCallback):
    """Ends the training after a step."""

    def __init__(self, step: int | None):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def train(
    shards: Path, output: Path, stop: int | None = None, resume: int | None = None, masked: bool = True, **changes: Any
) -> tuple[dict[str, Any], Recorder]:
    """Weights after a run, and its collator; `stop`: after this step; `resume`: from the checkpoint of this step."""
    tokenizer = build_byte_tokenizer(model_max_length=32)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    torch.manual_seed(0)
    # Masks and dropout are random.
    config = hf_ssm.S4Config(**sizes, bidirectional=masked, hidden_dropout=0.2 if masked else 0.0)
    model = (hf_ssm.S4ForMaskedLM if masked else hf_ssm.S4ForCausalLM)(config)
    settings = {
        **{"max_steps": STEPS, "per_device_train_batch_size": BATCH, "learning_rate": 1e-2, "save_steps": 3},
        **{"lr_scheduler_type": "linear", "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False},
        **{"use_cpu": True, "logging_steps": 4},
    }
    collator = Recorder(tokenizer, DataCollatorForLanguageModeling(tokenizer, mlm=masked), ["text"], seed=3)
    trainer = hf_ssm.SSMTrainer(
        model=model,
        args=SSMTrainingArguments(output_dir=str(output), **(settings | changes)),
        train_dataset=stream_sequences(shards, "text", shuffle_buffer=8, seed=1),
        data_collator=collator,
        callbacks=[StopAt(stop)],
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(output / f"checkpoint-{resume}"))
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}, collator


def interrupted(shards: Path, output: Path, **changes: Any) -> tuple[dict[str, Any], Recorder]:
    """The same as `train` with two interruptions, each after steps that are done again."""
    train(shards, output, stop=5, **changes)
    train(shards, output, stop=8, resume=3, **changes)
    return train(shards, output, resume=6, **changes, save_strategy="no")


def main(folder: Path, device: str) -> None:
    logging.set_verbosity_error()
    shards = folder / "*.jsonl"
    changes = {"use_cpu": device == "cpu", "per_device_train_batch_size": BATCH // 2}
    found: dict[str, Any] = {}
    found["plain"], collator = train(shards, folder / "plain", masked=False, save_strategy="no", **changes)
    found["rows"] = collator.batches
    found["whole"], _ = train(shards, folder / "whole", save_strategy="no", **changes)
    for workers in (0, 2):
        output = folder / f"workers-{workers}"
        found[f"{workers}"], _ = interrupted(shards, output, dataloader_num_workers=workers, **changes)
    torch.save(found, folder / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
