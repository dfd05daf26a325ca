"""Checkpoints of other libraries as ours.

Legend: `V` vocabulary, `D` channels, `N` states.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file, has_file

from hf_ssm.models.base.files import check_folder, read_json
from hf_ssm.models.base.state_dicts import check_names, check_tensors, load_state_dict
from hf_ssm.models.hyena import convert_hyenadna
from hf_ssm.models.registry import FAMILIES
from hf_ssm.models.s4 import convert_s4
from hf_ssm.models.s4.configuration_s4 import S4Config
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.selective.modeling_selective import SelectiveSSMForCausalLM, SelectiveSSMForSequenceClassification
from hf_ssm.tokenization import build_dna_tokenizer

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
    check_names(state_dict, _PLAIN_SHAPES, "the plain selective model")
    sizes = check_tensors(state_dict, _PLAIN_SHAPES)
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


def convert_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    overwrite: bool = False,
    norm_first: bool | None = None,
    discretization: str | None = None,
) -> PreTrainedModel:
    """Write a foreign checkpoint as one of ours, whole or not at all.

    Nothing of what the files of the checkpoint hold is run.

    Args:
        source: A file with a state dict of Honarpisheh et al. or of the example of `state-spaces/s4`; or a folder or
            Hub id with a checkpoint of transformers' `MambaForCausalLM` or of HyenaDNA, or the `weights.ckpt` in it. A
            tokenizer comes along, if there is one; that of HyenaDNA, which is code, as ours with the same ids.
        target: The folder to make.
        overwrite: Replace a `target` that exists.
        norm_first, discretization: Of a state dict of `state-spaces/s4`, which does not say: see
            `hf_ssm.models.s4.convert_s4.converted`.

    Returns:
        The model that was written.

    Raises:
        OSError: `source` is not there, or `target` exists and `overwrite` is false.
        ValueError: `source` is no such checkpoint, not a whole one, or has files that are not what they claim to be.
    """
    target = Path(target).resolve()
    if target.is_file():
        raise NotADirectoryError(f"{str(target)!r} is a file: give the name of a folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise FileExistsError(
            f"{str(target)!r} is not empty: choose another folder, or replace it (overwrite=True, --overwrite-output)"
        )
    options = {"norm_first": norm_first, "discretization": discretization}
    model, tokenizer = _load(source, {name: value for name, value in options.items() if value is not None})
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


def _load(source: str | Path, options: Mapping[str, Any]) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer (or `None`) of a foreign checkpoint; `options` are those of S4."""
    try:
        if Path(source).is_file():
            return _from_file(Path(source), options)
        return _from_folder(source, options)
    except (OSError, ValueError):
        raise
    except Exception as error:
        # Values of a configuration that nobody could foresee, deep in transformers.
        why = str(error).strip().partition("\n")[0][:300]
        raise ValueError(f"{str(source)!r} cannot be read: {type(error).__name__}: {why}") from error


def _from_file(path: Path, options: Mapping[str, Any]) -> tuple[PreTrainedModel, Any]:
    state_dict = load_state_dict(path)
    if convert_s4.recognises(state_dict):
        return convert_s4.converted(state_dict, **options), None
    _refuse(options)
    beside = path.with_name("config.json")
    if beside.is_file():
        config = read_json(beside)
        if convert_hyenadna.recognises(config):
            return _from_hyenadna(state_dict, config)
        if not state_dict.keys() & _PLAIN_SHAPES.keys():
            raise ValueError(f"{str(path)!r} belongs to the config.json beside it: give their folder")
    return plain_classifier_from_state_dict(state_dict), None


def _refuse(options: Mapping[str, Any]) -> None:
    if options:
        raise ValueError(
            f"{', '.join(options)}: for state dicts of state-spaces/s4 alone; other checkpoints say it themselves"
        )


def _from_hyenadna(weights: str | Path | dict[str, Tensor], config: dict[str, Any]) -> tuple[PreTrainedModel, Any]:
    model, arguments = convert_hyenadna.converted(weights, config), convert_hyenadna.tokenizer_arguments(config)
    return model, None if arguments is None else build_dna_tokenizer(**arguments)


def _from_folder(source: str | Path, options: Mapping[str, Any]) -> tuple[PreTrainedModel, Any]:
    _refuse(options)
    if Path(source).is_dir():
        check_folder(Path(source))
    config = _config(source)
    kind = config.get("model_type")
    if has_file(source, "adapter_config.json"):
        # transformers would read the model that it names, wherever that is.
        raise ValueError(f"{str(source)!r} holds an adapter of PEFT: put it together with its model, and convert that")
    if convert_hyenadna.recognises(config):
        # The original layout has its weights in a file of its own.
        weights = source if kind is not None else load_state_dict(_file(source, "weights.ckpt"))
        return _from_hyenadna(weights, config)
    if kind is None:
        raise ValueError(f"the config.json of {str(source)!r} has no `model_type`: give the folder of a checkpoint")
    if kind in [family.config_class.model_type for family in FAMILIES.values()]:
        raise ValueError(f"{str(source)!r} is a checkpoint of hf_ssm already")
    if kind != "mamba":
        raise ValueError(
            f"{str(source)!r} is a model of type {kind!r}: only 'mamba', 'hyenadna' and files with state dicts can be "
            "converted"
        )
    model, report = SelectiveSSMForCausalLM.from_pretrained(source, output_loading_info=True)
    lacking = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    parts = [
        f"it {what} {', '.join(names)}"
        for what, names in (("lacks", lacking), ("has unknown", sorted(report["unexpected_keys"])))
        if names
    ]
    if parts:
        raise ValueError(f"{str(source)!r} is no whole `MambaForCausalLM`: {'; '.join(parts)}")
    return model, _tokenizer(source)


def _config(source: str | Path) -> dict[str, Any]:
    """The `config.json` of a folder or Hub id."""
    folder = Path(source)
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"{str(source)!r} has no config.json: give the folder of a checkpoint, or a file of tensors")
    try:
        return read_json(_file(source, "config.json"))
    except OSError as error:
        raise FileNotFoundError(
            f"{str(source)!r} is neither a file nor a folder with a checkpoint, nor can it be had from the Hub: {error}"
        ) from error


def _file(source: str | Path, name: str) -> Path:
    """A file of a folder or Hub id."""
    return Path(str(cached_file(source, name)))


def _tokenizer(source: str | Path) -> Any:
    # Without these files, transformers would make up a tokenizer.
    if not any(has_file(source, name) for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        # It can be broken in as many ways as there are tokenizers.
        raise ValueError(f"the tokenizer of {str(source)!r} cannot be read: {error}") from error


def conversion_notes(model: PreTrainedModel) -> list[str]:
    """Remarks on the values of a converted model that its files do not contain."""
    config = model.config
    if not isinstance(config, S4Config):
        return []
    return [
        f"Assumed, as the file does not contain them: norm_first={config.norm_first} (--norm-first), "
        f"discretization={config.discretization!r} (--discretization), no dropout"
    ]


__all__ = ["conversion_notes", "convert_checkpoint", "plain_classifier_from_state_dict"]
