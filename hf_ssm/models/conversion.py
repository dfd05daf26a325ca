"""Checkpoints of other libraries as ours.

Legend: `V` vocabulary, `D` channels, `N` states.
"""

import shutil
import tempfile
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.utils import has_file

from .configuration_selective import SelectiveSSMConfig
from .modeling_selective import SelectiveSSMForCausalLM, SelectiveSSMForSequenceClassification

# Shapes of a state dict of Honarpisheh et al.
_PLAIN_SHAPES: dict[str, tuple[str | int, ...]] = {
    "embedding.weight": ("V", "D"),
    "SSM.ssm.A": ("D", "N"),
    "SSM.ssm.W_B": ("N", "D"),
    "SSM.ssm.W_C": ("N", "D"),
    "SSM.ssm.q_delta": ("D",),
    "SSM.ssm.p_delta": (1,),
    "SSM.w": ("D",),
}


def plain_classifier_from_state_dict(state_dict: dict[str, Tensor]) -> SelectiveSSMForSequenceClassification:
    """The classifier of a state dict that the authors of *Generalization Error Analysis* trained.

    It has one logit (of class 1 against class 0), stores A as it is, and reads the last position of the row where no
    mask is given. Its precision is that of the embedding, float32 at least.

    Args:
        state_dict: `embedding.weight` `(V, D)`, `SSM.ssm.A` `(D, N)`, `SSM.ssm.W_B` and `SSM.ssm.W_C` `(N, D)`,
            `SSM.ssm.q_delta` `(D,)`, `SSM.ssm.p_delta` `(1,)`, `SSM.w` `(D,)`.

    Raises:
        ValueError: Tensors are missing, too many, of types or shapes that do not fit, or not finite.

    Source: Honarpisheh et al. 2025, eqs. (8), (13), (14), (21).
    """
    sizes = _check_plain(state_dict)
    # One logit with a sigmoid; without the problem type, transformers would take a single output for a regression.
    one_logit: dict[str, Any] = {"num_labels": 1, "problem_type": "multi_label_classification"}
    config = SelectiveSSMConfig(
        block="plain",
        state_matrix="raw",
        vocab_size=sizes["V"],
        hidden_size=sizes["D"],
        state_size=sizes["N"],
        **one_logit,
    )
    model = SelectiveSSMForSequenceClassification(config)
    if state_dict["embedding.weight"].dtype == torch.float64:
        model.double()
    projections = (state_dict["SSM.ssm.q_delta"].unsqueeze(0), state_dict["SSM.ssm.W_B"], state_dict["SSM.ssm.W_C"])
    model.load_state_dict(
        {
            "model.embed_tokens.weight": state_dict["embedding.weight"],
            "model.layers.0.mixer.scan.A": state_dict["SSM.ssm.A"],
            "model.layers.0.mixer.scan.x_proj.weight": torch.cat(projections),
            "model.layers.0.mixer.scan.dt_bias": state_dict["SSM.ssm.p_delta"],
            "classifier.weight": state_dict["SSM.w"].unsqueeze(0),
        }
    )
    return model.eval()


def _check_plain(state_dict: dict[str, Tensor]) -> dict[str, int]:
    """Sizes by their letters."""
    missing, foreign = _PLAIN_SHAPES.keys() - state_dict.keys(), state_dict.keys() - _PLAIN_SHAPES.keys()
    if missing or foreign:
        raise ValueError(
            "not a state dict of the plain selective model: "
            + "; ".join(
                f"{what} {', '.join(sorted(map(str, names)))}"
                for what, names in (("missing", missing), ("unknown", foreign))
                if names
            )
        )
    sizes: dict[str, int] = {}
    for name, letters in _PLAIN_SHAPES.items():
        shape = tuple(state_dict[name].shape)
        expected = tuple(letter if isinstance(letter, int) else sizes.get(letter) for letter in letters)
        fits = len(shape) == len(expected) and all(e in (None, s) for e, s in zip(expected, shape, strict=True))
        if not fits:
            raise ValueError(f"{name} has the shape {shape}, which does not fit {letters} with {sizes}")
        tensor = state_dict[name]
        if tensor.is_meta or tensor.layout != torch.strided or not tensor.is_floating_point():
            raise ValueError(f"{name} must be a dense tensor of real floating point numbers, got {tensor.dtype}")
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds NaN or infinite values")
        sizes |= {letter: s for letter, s in zip(letters, shape, strict=True) if isinstance(letter, str)}
    return sizes


def convert_checkpoint(source: str | Path, target: str | Path, *, overwrite: bool = False) -> PreTrainedModel:
    """Write a foreign checkpoint as one of ours, whole or not at all.

    Args:
        source: A `.pth` or `.pt` file with a state dict of Honarpisheh et al.; or a folder or Hub id with a checkpoint
            of transformers' `MambaForCausalLM` (its tokenizer, if it has one, comes along).
        target: The folder to make.
        overwrite: Replace a `target` that exists.

    Returns:
        The model that was written.

    Raises:
        OSError: `source` is not there, or `target` exists and `overwrite` is false.
        ValueError: `source` is neither kind of checkpoint, or not a whole one.
    """
    target = Path(target).resolve()
    if target.is_file():
        raise NotADirectoryError(f"{str(target)!r} is a file: give the name of a folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{str(target)!r} is not empty: choose another folder, or replace it (overwrite=True, --overwrite-output)"
        )
    model, tokenizer = _load(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        whole = Path(scratch, "whole")
        model.save_pretrained(whole)
        if tokenizer is not None:
            tokenizer.save_pretrained(whole)
        _put(whole, target)
    return model


def _put(whole: Path, target: Path) -> None:
    """Move a finished folder to its place; what was there is deleted when that is done, and not before."""
    replaced = target.with_name(f".{target.name}-replaced") if target.exists() else None
    if replaced is not None:
        target.rename(replaced)
    try:
        whole.rename(target)
    except BaseException:
        if replaced is not None:
            replaced.rename(target)
        raise
    if replaced is not None:
        shutil.rmtree(replaced)


def _load(source: str | Path) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer (or `None`) of a foreign checkpoint."""
    if Path(source).is_file():
        return plain_classifier_from_state_dict(_load_state_dict(source)), None
    try:
        found, _ = PreTrainedConfig.get_config_dict(source)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{str(source)!r} is neither a file nor a folder with a checkpoint, nor can it be had from the Hub: {error}"
        ) from error
    kind = found.get("model_type")
    if kind is None:
        raise ValueError(f"{str(source)!r} has no config.json with a `model_type`: give the folder of a checkpoint")
    if kind == SelectiveSSMConfig.model_type:
        raise ValueError(f"{str(source)!r} is a checkpoint of hf_ssm already")
    if kind != "mamba":
        raise ValueError(f"{str(source)!r} is a model of type {kind!r}: only 'mamba' and .pth files can be converted")
    try:
        model, report = SelectiveSSMForCausalLM.from_pretrained(source, output_loading_info=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"the weights of {str(source)!r} cannot be read: {error}") from error
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if lacking:
        raise ValueError(f"{str(source)!r} is no whole `MambaForCausalLM`: it lacks {', '.join(lacking)}")
    # Without these files, transformers would make up a tokenizer.
    if not any(has_file(source, name) for name in ("tokenizer.json", "tokenizer_config.json")):
        return model, None
    try:
        return model, AutoTokenizer.from_pretrained(source)
    except Exception as error:
        # It can be broken in as many ways as there are tokenizers.
        raise ValueError(f"the tokenizer of {str(source)!r} cannot be read: {error}") from error


def _load_state_dict(path: str | Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise ValueError(f"{str(path)!r} is no file of tensors that torch can load safely") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"{str(path)!r} holds no state dict (names and tensors)")
    return found


__all__ = ["convert_checkpoint", "plain_classifier_from_state_dict"]
