"""The proof that a folder holds a model: a new process loads it and gives the same logits, bit for bit."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What a user would write, and no more than that; the threads are those of the parent, as the order of a sum
# may depend on their number.
_SCRIPT = """
import json, sys
import torch, transformers
import hf_ssm
from safetensors.torch import save_file
job = json.load(sys.stdin)
torch.set_num_threads(job["threads"])
model = getattr(transformers, job["auto_class"]).from_pretrained(job["folder"]).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(job["folder"])
with torch.no_grad():
    logits = model(**tokenizer(job["texts"], padding=True, return_tensors="pt")).logits
save_file({"logits": logits}, job["result"])
"""


def logits_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> torch.Tensor:
    """Logits of a padded batch of texts, on the CPU and in evaluation mode; `(B, ...)` as the head has it."""
    model = model.cpu().eval()
    with torch.no_grad():
        return model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits


def reload_logits(folder: str | Path, auto_class: str, texts: Sequence[str]) -> torch.Tensor:
    """Logits of the same batch from a new process that loads model and tokenizer from `folder`.

    Args:
        folder: as `save_pretrained` left it.
        auto_class: name of the Auto class, such as "AutoModelForSequenceClassification".
        texts: the batch.

    Raises:
        OSError: if the process fails; the message ends with the last line it wrote.
    """
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "logits.safetensors"
        job = {
            "folder": str(Path(folder).resolve()),
            "auto_class": auto_class,
            "texts": list(texts),
            "threads": torch.get_num_threads(),
            "result": str(result),
        }
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            input=json.dumps(job),
            text=True,
            capture_output=True,
            check=False,
            # The folder must be enough: nothing may be fetched.
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise OSError(f"the model in {str(folder)!r} cannot be loaded in a new process: {last}")
        return load_file(result)["logits"]


def check_reload(
    folder: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    auto_class: str,
    texts: Sequence[str],
) -> None:
    """Compare the logits of a model in memory with those of its saved copy in a new process.

    Raises:
        OSError: if the folder cannot be loaded, or the logits differ in any bit.
    """
    here, there = logits_of(model, tokenizer, texts), reload_logits(folder, auto_class, texts)
    if here.dtype != there.dtype or not torch.equal(here, there):
        difference = (here.double() - there.double()).abs().max().item()
        raise OSError(f"the model in {str(folder)!r} gives other logits in a new process, by up to {difference:g}")
