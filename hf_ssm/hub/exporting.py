"""Checkpoints that load without this package: weights, configuration, tokenizer, card, and the code of the model.

The code lies beside the weights as flat files (`hf_ssm.hub.flatten`), and `auto_map` in `config.json` says which class
is in which. `AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)` then needs torch and transformers
only. With hf_ssm imported its own classes are taken, and no remote code is run.

Every `save_pretrained` of a model writes the code; `export` is for what is handed to others: a folder of its own, whole
or not there at all, and proved.
"""

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME

from hf_ssm.hub.card import write_default_card
from hf_ssm.hub.flatten import HEADER, flatten
from hf_ssm.models.registry import FAMILIES, HEADS

__all__ = ["add_code", "auto_class_of", "auto_map_of", "export", "write_code"]


def auto_map_of(config: PreTrainedConfig) -> dict[str, str]:
    """Auto class -> file and class in the exported code, for the configuration and all heads of its family.

    Raises:
        ValueError: The configuration of another library, or of a class derived from one of ours.
    """
    for family in FAMILIES.values():
        if type(config) is family.config_class:
            module = family.config_class.__module__.rpartition(".")[2]
            code = family.modeling.__name__.rpartition(".")[2]
            own = {"AutoConfig": f"{module}.{family.config_class.__name__}"}
            return own | {HEADS[head]: f"{code}.{cls.__name__}" for head, cls in family.model_classes.items()}
    raise ValueError(
        f"only models of hf_ssm itself can travel with their code, not one with a {type(config).__module__}."
        f"{type(config).__name__}"
    )


def auto_class_of(model: PreTrainedModel) -> str:
    """The Auto class that loads a model with its head.

    Raises:
        ValueError: A model of another library, or of a class derived from one of ours.
    """
    kind = type(model)
    for family in FAMILIES.values():
        for head, model_class in family.model_classes.items():
            if kind is model_class:
                return HEADS[head]
    raise ValueError(
        f"only models of hf_ssm itself can be exported, not a {kind.__module__}.{kind.__name__}"
        + (" (of PEFT: export what `merge_and_unload` gives)" if kind.__module__.startswith("peft.") else "")
    )


def add_code(config: PreTrainedConfig, folder: str | os.PathLike[str]) -> None:
    """Put the code of a family into `folder`, and what is in it into `config.auto_map`, before that is saved there.

    A configuration of a derived class has code that nobody here knows; it is left alone.

    Raises:
        FileExistsError: A file of the same name is there that is none of ours.
    """
    if type(config) not in [family.config_class for family in FAMILIES.values()]:
        return
    config.auto_map = auto_map_of(config)
    _put_code(config, folder)


def write_code(model_or_config: PreTrainedModel | PreTrainedConfig, folder: str | os.PathLike[str]) -> Path:
    """Put code and `auto_map` into the folder of a checkpoint; `config.json` is written if there is none.

    Args:
        model_or_config: Of hf_ssm.
        folder: Made if need be; all else in it stays as it is.

    Returns:
        The folder.

    Raises:
        ValueError: A model of another library; a `config.json` that is no JSON, or of another family.
        FileExistsError: A file of the same name is there that is none of ours.
    """
    config: Any = model_or_config.config if isinstance(model_or_config, PreTrainedModel) else model_or_config
    config.auto_map = auto_map_of(config)
    path = Path(folder, CONFIG_NAME)
    if not path.exists():
        config.save_pretrained(folder)
        return Path(folder)
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is no JSON file: {error}") from error
    if not isinstance(stored, dict) or stored.get("model_type") != config.model_type:
        raise ValueError(f"{str(path)!r} is not the configuration of a {config.model_type!r} model")
    _put_code(config, folder)
    stored["auto_map"] = config.auto_map
    part = path.with_name(f".{CONFIG_NAME}.part")
    try:
        part.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return Path(folder)


def _put_code(config: Any, folder: str | os.PathLike[str]) -> None:
    files = flatten(type(config).__module__.replace("configuration_", "modeling_"))
    for name in files:
        path = Path(folder, name)
        if path.exists() and not path.read_bytes().startswith(HEADER.encode()):
            raise FileExistsError(f"{str(path)!r} is in the way of the model's code: save to a folder of its own")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, source in files.items():
        Path(folder, name).write_bytes(source.encode())


def export(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    folder: str | os.PathLike[str],
    *,
    prove: bool = True,
) -> Path:
    """Write a checkpoint that loads where hf_ssm is not installed; whole, or not at all.

    Args:
        model: Of hf_ssm, with any head; it stays as it is.
        tokenizer: Its tokenizer; `None` for models of continuous signals.
        folder: To be made, or empty.
        prove: Load it in a new process in which hf_ssm cannot be imported, save it from there, load that, and compare
            the logits of both with those of `model` (by plain torch, on the CPU), bit for bit. Takes some ten seconds.

    Returns:
        The folder.

    Raises:
        ValueError: A model of another library; a tokenizer that does not fit the model.
        FileExistsError: The folder is not empty.
        NotADirectoryError: It is a file.
        OSError: It cannot be written; or the proof fails, and then the message says in which step.
    """
    target = Path(folder).absolute()
    auto_class = auto_class_of(model)
    config: Any = model.config
    _check_tokenizer(model, tokenizer)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{str(target)!r} is a file: give the name of a folder")
    if target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{str(target)!r} is not empty: give the name of a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        whole = Path(scratch, "whole")
        model.save_pretrained(whole)
        if tokenizer is not None:
            _limited(tokenizer, config.longest_input).save_pretrained(whole)
        write_default_card(whole, model, tokenizer, name=target.name)
        if prove:
            from hf_ssm.hub.reload import prove_export

            prove_export(whole, model, tokenizer, auto_class)
        # An empty folder gives way.
        whole.rename(target)
    return target


def _limited(tokenizer: PreTrainedTokenizerBase, longest: int | None) -> PreTrainedTokenizerBase:
    """A tokenizer that knows what the model can read at most, so that pipelines and `truncation=True` cut there."""
    if longest is None or tokenizer.model_max_length <= longest:
        return tokenizer
    limited = copy.deepcopy(tokenizer)
    limited.model_max_length = longest
    return limited


def _check_tokenizer(model: PreTrainedModel, tokenizer: Any) -> None:
    """Refuse a tokenizer whose ids the model does not have, and the lack of one."""
    config: Any = model.config
    if config.num_input_channels is not None:
        if tokenizer is not None:
            raise ValueError("a model of continuous signals has no use for a tokenizer: give None")
        return
    if tokenizer is None:
        raise ValueError("`tokenizer` is None, but the model reads tokens: give the one it was trained with")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ValueError(f"`tokenizer` must be a tokenizer of transformers, got {type(tokenizer).__name__}")
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= config.vocab_size:
        raise ValueError(
            f"`tokenizer` has ids up to {highest}, but the model's `vocab_size` is {config.vocab_size}: give the "
            "tokenizer it was trained with, or `model.resize_token_embeddings`"
        )
