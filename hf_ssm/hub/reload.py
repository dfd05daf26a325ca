"""Proof that a saved model loads with equal results, bit for bit, in a new process that cannot import hf_ssm.

No Python file found in a folder is run, and the process has no access to tokens.
"""

import copy
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_ssm.checkpoint import write_code
from hf_ssm.hub.clean_process import token_ids, training_step
from hf_ssm.models.registry import HEADS
from hf_ssm.ops.backends import use_backend
from hf_ssm.ops.context import plain_operations
from hf_ssm.utils.evaluation import evaluating
from hf_ssm.utils.isolation import run_python

__all__ = ["probe_inputs", "prove_export"]

# The batch of a proof: long enough for every branch of the convolutions.
_ROWS, _LENGTH = 2, 48
_TEXTS = ["ACGTNACGT", "A state space model, saved and loaded.", ""]
# What loading a model reads from a folder; code is not among it.
_DATA = frozenset({".bin", ".jinja", ".json", ".model", ".safetensors", ".txt"})


def prove_export(
    folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, auto_class: str
) -> None:
    """Compare a model in memory with its saved copy in a new process that cannot import hf_ssm.

    The process gets a copy of weights, configuration and tokenizer, and code bundled from the installed package. It
    computes the logits before and after saving the model again, one training step (both on the CPU by plain operations
    of torch) and the ids of `tokenizer`, and imports all classes of `auto_map`.

    Args:
        folder: Folder with model and tokenizer.
        model: The model in memory; it is not changed.
        tokenizer: Its tokenizer, if it has one.
        auto_class: Name of the Auto class of its head.

    Raises:
        OSError: A step failed or a result differs; the message names the step and the last line of the process.
    """
    inputs = probe_inputs(model.config, auto_class)
    texts = None if tokenizer is None else _TEXTS
    with tempfile.TemporaryDirectory() as name:
        scratch, saved = Path(name), Path(name, "model")
        saved.mkdir()
        for path in Path(folder).iterdir():
            if path.suffix in _DATA and path.is_file():
                shutil.copyfile(path, saved / path.name)
        # Writes the code, and `auto_map` in place of what the file may contain.
        config: Any = AutoConfig.from_pretrained(saved, trust_remote_code=False)
        write_code(config, saved)
        config.save_pretrained(saved)
        logits = _logits(model, inputs)
        labels = _labels(model.config, auto_class, inputs, logits)
        with use_backend("torch"), plain_operations(), torch.random.fork_rng(devices=[]):
            trained = training_step(type(model).from_pretrained(saved), inputs, labels)
        expected = {"first.logits": logits, "second.logits": logits}
        expected |= {f"trained.{name}": value for name, value in trained.items()}
        expected |= {} if tokenizer is None else token_ids(tokenizer, _TEXTS)
        tensors = inputs | {f"labels.{name}": value for name, value in labels.items()}
        _compare(expected, _run(saved, scratch, auto_class, tensors, texts))


def probe_inputs(
    config: Any, auto_class: str = "AutoModel", rows: int = _ROWS, length: int = _LENGTH
) -> dict[str, Tensor]:
    """A padded batch that a model of this configuration with the head of an Auto class can read, the same at each call.

    Returns:
        `input_ids` `(B, L)`, or `input_values` `(B, L, num_input_channels)`, and `attention_mask` `(B, L)`; for pairs
        each row with another one as a pair, `(B, 2, L)`; of a model of videos `pixel_values` `(B, L, H, W, C)`; of a
        forecaster `past_values` `(B, L)`. `L` is at most the longest input of the model.
    """
    length = min(length, config.longest_input or length)
    generator = torch.Generator().manual_seed(0)
    if config.frame_shape is not None:
        return {"pixel_values": torch.rand(rows, length, *config.frame_shape, generator=generator)}
    if config.reads_series and auto_class == HEADS["ForPrediction"]:
        return {"past_values": torch.randn(rows, length, generator=generator)}
    if config.num_input_channels is None:
        inputs = {"input_ids": torch.randint(config.vocab_size, (rows, length), generator=generator)}
    else:
        inputs = {"input_values": torch.randn(rows, length, config.num_input_channels, generator=generator)}
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, max(1, 2 * length // 3) :] = 0
    inputs["attention_mask"] = mask
    if auto_class == HEADS["ForSequencePairClassification"]:
        # Products of a matrix and a single row may differ in the last bit with the place of the weights in memory.
        inputs = {name: torch.stack([value, value.flip(0)], dim=1) for name, value in inputs.items()}
    return inputs


def _labels(config: Any, auto_class: str, inputs: dict[str, Tensor], logits: Tensor) -> dict[str, Tensor]:
    """Labels that a head accepts for a batch; empty for a backbone."""
    if auto_class == "AutoModel":
        return {}
    if config.reads_series:
        return {"future_values": torch.zeros_like(logits)}
    if auto_class in ("AutoModelForCausalLM", "AutoModelForMaskedLM"):
        return {"labels": inputs["input_ids"].clone()}
    kind = config.problem_type or ("single_label_classification" if config.num_labels > 1 else "regression")
    if auto_class == "AutoModelForTokenClassification" or (
        auto_class in (HEADS["ForSequenceClassification"], HEADS["ForSequencePairClassification"])
        and kind == "single_label_classification"
    ):
        return {"labels": torch.zeros(logits.shape[:-1], dtype=torch.long)}
    return {"labels": torch.zeros_like(logits)}


def _logits(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Logits (of a backbone: hidden states) on the CPU, in evaluation mode, without compiled kernels."""
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        model = copy.deepcopy(model).cpu()
    with use_backend("torch"), plain_operations(), evaluating(model):
        return model(**inputs, return_dict=False)[0]


def _run(
    folder: Path, scratch: Path, auto_class: str, inputs: dict[str, Tensor], texts: list[str] | None
) -> dict[str, Tensor]:
    """Results of `clean_process.py`."""
    save_file(inputs, scratch / "inputs.safetensors")
    job = {
        "folder": str(folder),
        "again": str(scratch / "again"),
        "auto_class": auto_class,
        "inputs": str(scratch / "inputs.safetensors"),
        "texts": texts,
        "threads": torch.get_num_threads(),
        "results": str(scratch / "results.safetensors"),
    }
    # With these, nothing can be downloaded and all caches are empty.
    places = {"HF_HOME": "home", "HF_HUB_CACHE": "hub", "HF_MODULES_CACHE": "modules", "HF_TOKEN_PATH": "token"}
    environment = {name: str(scratch / place) for name, place in places.items()} | {"HF_HUB_OFFLINE": "1"}
    done = run_python(
        Path(__file__).with_name("clean_process.py").read_text(encoding="utf-8"),
        input=json.dumps(job),
        environment=environment | {"HF_SSM_KERNELS": "torch"},
        cwd=scratch,
    )
    if done.returncode != 0:
        step = (done.stdout.strip().splitlines() or ["starting the process"])[-1]
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise OSError(f"loading the export without hf_ssm failed while {step}: {last}")
    return load_file(scratch / "results.safetensors")


_STAGES = {"first": "loaded", "second": "saved and loaded again", "trained": "trained for one step"}


def _compare(expected: dict[str, Tensor], computed: dict[str, Tensor]) -> None:
    """Raise `OSError` at the first result that differs in a bit."""
    for name, here in expected.items():
        there = computed[name]
        if (here.dtype, here.shape) == (there.dtype, there.shape) and torch.equal(_bytes(here), _bytes(there)):
            continue
        stage, _, what = name.partition(".")
        if stage == "ids":
            raise OSError("the exported folder without hf_ssm gives other token ids than the tokenizer in memory")
        difference = f", by up to {(here.double() - there.double()).abs().max():g}" if here.shape == there.shape else ""
        raise OSError(
            f"the exported folder, {_STAGES[stage]} without hf_ssm, gives a different `{what}` than the model in memory"
            f"{difference}"
        )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(torch.uint8)
