"""The output folder of a run: what it holds, when it may be used, where a run can go on."""

import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_ssm.models.bundle import HEADER

SETTINGS_NAME = "train_config.yaml"
LOG_NAME = "training_log.json"
PICTURE_NAME = "training_log.png"
RESPONSE_NAME = "frequency_response.json"
RESPONSE_PICTURE_NAME = "frequency_response.png"

# What a run writes, and so all that --overwrite-output may remove.
_FILES = (
    *(SETTINGS_NAME, LOG_NAME, PICTURE_NAME, RESPONSE_NAME, RESPONSE_PICTURE_NAME),
    *("README.md", "config.json", "generation_config.json"),
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors", "training_args.bin"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "preprocessor_config.json"),
)
_CHECKPOINTS = "checkpoint-*"
_STATE_NAME = "trainer_state.json"


def check_output(
    folder: Path,
    overwrite: bool,
    mend: str = "choose another folder, go on with its run (--resume), or replace it (--overwrite-output)",
) -> None:
    """Refuse a folder that a new run could not use; nothing is made yet, as the run may still be refused.

    Args:
        folder: for the results.
        overwrite: whether it may hold something.
        mend: what to do if it holds something.

    Raises:
        OSError: if it could not be made or written, is a file, or holds something and `overwrite` is false.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"--output {str(folder)!r} is a file: give the name of a folder")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise FileExistsError(f"--output {str(folder)!r} is not empty: {mend}")
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise PermissionError(
            f"--output {str(folder)!r}: nothing can be written in {str(existing)!r}; choose another folder"
        )


def clear_output(folder: Path) -> None:
    """Remove what an earlier run left in `folder`; other files stay."""
    for checkpoint in folder.glob(_CHECKPOINTS):
        if (checkpoint / _STATE_NAME).is_file():
            shutil.rmtree(checkpoint)
    for pattern in _FILES:
        for path in folder.glob(pattern):
            path.unlink()
    # The code that was saved with the model; code of others begins otherwise.
    for path in folder.glob("*.py"):
        if path.read_bytes().startswith(HEADER.encode()):
            path.unlink()


def last_checkpoint(folder: Path) -> Path:
    """The newest whole checkpoint in `folder`; one cut off while it was written does not count.

    Raises:
        ValueError: if there is none.
    """
    # The Trainer writes its state last.
    found = [path for path in folder.glob(_CHECKPOINTS) if (path / _STATE_NAME).is_file()]
    numbers = [re.fullmatch(r"checkpoint-(\d+)", path.name) for path in found]
    steps = {int(match[1]): path for match, path in zip(numbers, found, strict=True) if match}
    if not steps:
        raise ValueError(
            f"--resume: {str(folder)!r} holds no checkpoint: give the --output of the interrupted run, "
            "or start anew without --resume"
        )
    return steps[max(steps)]


def write_log(folder: Path, log_history: Sequence[Mapping[str, Any]]) -> None:
    """Write the log of a run as JSON; NaN and infinities, which JSON has not, become null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    entries = [{key: finite(value) for key, value in entry.items()} for entry in log_history]
    (folder / LOG_NAME).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
