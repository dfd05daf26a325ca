"""Models as programs of other runtimes: `torch.export` and ONNX, through the exporters of transformers.

Batch size and length are dynamic. A program computes in real arithmetic with operators of PyTorch or ONNX only, so that
neither hf_ssm nor (for ONNX) torch is needed to run it.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers import PreTrainedModel
from transformers.exporters import DynamoConfig, DynamoExporter, ExportedModel, OnnxConfig, OnnxExporter

from hf_ssm.hub.exporting import auto_class_of
from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.registry import HEADS
from hf_ssm.utils.files import scratch_folder

__all__ = ["FORMATS", "export_program"]

FORMATS = {"onnx": (OnnxExporter, OnnxConfig), "torch": (DynamoExporter, DynamoConfig)}
"""Exporter and its configuration for each format."""

# Sizes of the example that is traced.
_BATCH, _LENGTH = 3, 12


def export_program(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    *,
    format: str = "onnx",
    with_cache: bool = False,
) -> ExportedModel:
    """Write a model as a program that runs without hf_ssm; the folder appears complete or not at all.

    The inputs are `input_ids` `(batch, length)`, or `input_values` `(batch, length, channels)`, and `attention_mask`
    `(batch, length)`, all with a second dimension of size 2 for pairs of sequences; a model of videos has
    `pixel_values` `(batch, length, *config.frame_shape)` instead. The outputs are those of the model. With a cache
    there are two programs: `prefill` reads a prompt, without padding, and also returns the states; `decode` reads one
    token and the states, and returns both again. The names of states are those of `SSMCache.named_tensors`, with
    `past_key_values.` before them. The file of a program is `<program>.onnx` or
    `<program>.pt2`; without a cache there is one, `model`. `export.json` describes them, and
    `transformers.exporters.ExportedModel.from_pretrained(folder)` loads and runs them.

    Args:
        model: A model of a registered family, with any head.
        folder: A folder that is empty or does not exist.
        format: `"onnx"` (needs onnx, onnxscript and, to run it, onnxruntime: `pip install 'hf_ssm[export]'`) or
            `"torch"`, a program of `torch.export`, which takes sequences of at least two positions.
        with_cache: Whether to export the two programs for generation, of a causal language model.

    Returns:
        The programs.

    Raises:
        ImportError: A package of the format is not installed.
        ValueError: Unknown format; `with_cache` for a model without a cache; a class that is not registered.
        FileExistsError: The folder is not empty.
        NotADirectoryError: `folder` is a file.
    """
    if format not in FORMATS:
        raise ValueError(f"`format` must be one of {', '.join(FORMATS)}, got {format!r}")
    kind = auto_class_of(model)
    if with_cache and kind != "AutoModelForCausalLM":
        raise ValueError(f"`with_cache` needs a causal language model, got a {type(model).__name__}")
    target = Path(folder).absolute()
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{str(target)!r} is a file: choose the name of a folder")
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{str(target)!r} is not empty: choose the name of a new folder")
    exporter_class, config_class = FORMATS[format]
    exporter: Any = exporter_class()
    was_training = model.training
    model.eval()
    try:
        exported = _with_cache(model, exporter, config_class) if with_cache else _whole(model, exporter, config_class)
    finally:
        model.train(was_training)
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent) as scratch:
        whole = scratch / "whole"
        exported.save_pretrained(whole)
        # Replaces an empty folder.
        whole.rename(target)
    return exported


def _length(model: Any) -> Any:
    longest = model.config.longest_input
    return Dim("length") if longest is None else Dim("length", max=longest)


def _example(model: Any) -> dict[str, Any]:
    longest = model.config.longest_input
    shape = _BATCH, _LENGTH if longest is None else min(_LENGTH, longest)
    if model.config.frame_shape is not None:
        return {"pixel_values": torch.zeros(*shape, *model.config.frame_shape).to(model.device)}
    channels = model.config.num_input_channels
    name, value = "input_ids", torch.ones(shape, dtype=torch.long)
    if channels is not None:
        name, value = "input_values", torch.zeros(*shape, channels)
    mask = torch.ones(shape, dtype=torch.long)
    return {name: value.to(model.device), "attention_mask": mask.to(model.device)}


def _whole(model: Any, exporter: Any, config_class: Any) -> ExportedModel:
    inputs = _example(model)
    batch, length = Dim("batch"), _length(model)
    shape = {0: batch, 1: length}
    if auto_class_of(model) == HEADS["ForSequencePairClassification"]:
        inputs = {name: torch.stack([value, value], dim=1) for name, value in inputs.items()}
        shape = {0: batch, 2: length}
    config = config_class(dynamic=True, dynamic_shapes={name: dict(shape) for name in inputs})
    return exporter.export(model, inputs | {"use_cache": False}, config)


def _with_cache(model: Any, exporter: Any, config_class: Any) -> ExportedModel:
    ids = _example(model)["input_ids"]
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    batch = Dim("batch")
    # All inputs of streaming convolutions, `(batch, positions, channels)`, grow, up to one position before the last.
    longest = model.config.longest_input
    positions = Dim("positions") if longest is None else Dim("positions", max=longest - 1)
    shapes = [
        {} if name.endswith("length") else {0: batch, 1: positions} if ".streams." in name else {0: batch}
        for name in cache.named_tensors()
    ]
    configs = {
        "prefill": config_class(
            dynamic=True, dynamic_shapes={"input_ids": {0: batch, 1: _length(model)}, "past_key_values": []}
        ),
        "decode": config_class(dynamic=True, dynamic_shapes={"input_ids": {0: batch}, "past_key_values": shapes}),
    }
    examples = {
        "prefill": {"input_ids": ids, "past_key_values": SSMCache(model.config)},
        "decode": {"input_ids": ids[:, :1], "past_key_values": cache},
    }
    components = {}
    for name, inputs in examples.items():
        exported = exporter.export(model, inputs, configs[name])
        components[name] = exported.components["model"]
        if isinstance(exported.program, ExportedProgram):
            # torch stores the examples as a pickle, and refuses to read the class of the cache from one.
            exported.program.example_inputs = None
    return ExportedModel(components, exporter.export_format, config=model.config)
