"""The proof that a folder holds a model: a new process loads it and gives the same logits, bit for bit.

`check_reload` is for what a run has left: the process imports hf_ssm. `prove_export` is for what others shall load: the
process cannot import it.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_ssm.ops.backends import use_backend
from hf_ssm.utils.evaluation import evaluating

__all__ = ["check_reload", "logits_of", "probe_inputs", "prove_export", "reload_logits"]

# The batch of a proof: long enough for every branch of the convolutions, short enough for any machine.
_ROWS, _LONGEST = 2, 48
_TEXTS = ("ACGTNACGT", "A state space model, saved and loaded.", "")

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


def prove_export(
    folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, auto_class: str
) -> None:
    """Load an exported folder where hf_ssm cannot be imported, save it from there, load that, and compare.

    Both must give the logits of `model` by plain torch on a CPU, bit for bit, and the ids of `tokenizer`; and all
    classes in `auto_map` must be there.

    Args:
        folder: as `hf_ssm.hub.exporting.export` wrote it.
        model: the model in memory; it stays as it is.
        tokenizer: its tokenizer, if it has one.
        auto_class: name of the Auto class of its head.

    Raises:
        OSError: if a step fails; the message names the step, and ends with the last line the process wrote.
    """
    inputs = probe_inputs(model.config)
    expected = {"logits": _plain_output(model, inputs)}
    if tokenizer is not None:
        expected |= {str(i): torch.tensor(tokenizer(text)["input_ids"]).long() for i, text in enumerate(_TEXTS)}
    with tempfile.TemporaryDirectory() as scratch:
        found = _in_clean_process(Path(folder).resolve(), Path(scratch), auto_class, inputs, tokenizer is not None)
    for copy_name, whose in (("first", "the exported folder"), ("second", "a folder saved by a process without it")):
        for name, here in expected.items():
            what = "other logits than the model" if name == "logits" else "other ids than the tokenizer"
            there = found[f"{copy_name}.{name}"]
            if not _same_bits(here, there):
                raise OSError(f"the proof of the export failed: without hf_ssm, {whose} gives {what} in memory")


def probe_inputs(config: Any) -> dict[str, Tensor]:
    """A padded batch that a model of this configuration can read, the same at each call.

    Returns:
        `input_ids` `(2, L)`, or `input_values` `(2, L, num_input_channels)`, and `attention_mask` `(2, L)`.
    """
    length = min(_LONGEST, config.longest_input or _LONGEST)
    generator = torch.Generator().manual_seed(0)
    mask = torch.ones(_ROWS, length, dtype=torch.long)
    mask[1, max(1, 2 * length // 3) :] = 0
    if config.num_input_channels is None:
        ids = torch.randint(config.vocab_size, (_ROWS, length), generator=generator)
        return {"input_ids": ids, "attention_mask": mask}
    values = torch.randn(_ROWS, length, config.num_input_channels, generator=generator)
    return {"input_values": values, "attention_mask": mask}


def _plain_output(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Logits (of a backbone: hidden states) on the CPU, in evaluation mode, by plain torch."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        model = copy.deepcopy(model).cpu()
    with use_backend("torch"), evaluating(model):
        return model(**inputs, return_dict=False)[0]


def _in_clean_process(
    folder: Path, scratch: Path, auto_class: str, inputs: dict[str, Tensor], with_tokenizer: bool
) -> dict[str, Tensor]:
    save_file(inputs, scratch / "inputs.safetensors")
    job = {
        "folder": str(folder),
        "again": str(scratch / "again"),
        "auto_class": auto_class,
        "inputs": str(scratch / "inputs.safetensors"),
        "texts": list(_TEXTS) if with_tokenizer else None,
        "threads": torch.get_num_threads(),
        "results": str(scratch / "results.safetensors"),
    }
    # Nothing may be fetched, and no code be left in the user's cache.
    own = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(scratch / "modules"), "HF_SSM_KERNELS": "torch"}
    script = Path(__file__).with_name("clean_process.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(job),
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, **own},
        cwd=scratch,
    )
    if done.returncode != 0:
        step = (done.stdout.strip().splitlines() or ["starting it"])[-1]
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OSError(f"the proof of the export failed in a process without hf_ssm, at {step}: {last}")
    return load_file(scratch / "results.safetensors")


def _same_bits(here: Tensor, there: Tensor) -> bool:
    if here.dtype != there.dtype or here.shape != there.shape:
        return False
    return torch.equal(here.contiguous().view(torch.uint8), there.contiguous().view(torch.uint8))
