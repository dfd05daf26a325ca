"""Conversion of other libraries' checkpoints to folders that the Auto classes load."""

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml
from transformers import PreTrainedModel
from transformers.utils import cached_file

from hf_ssm.models.base.converter import Converter, load_state_dict
from hf_ssm.models.base.loading import converters_of, one_line_errors
from hf_ssm.models.registry import FAMILIES
from hf_ssm.utils.files import check_not_input, scratch_folder

__all__ = ["convert_checkpoint"]


def convert_checkpoint(
    source: str | Path, target: str | Path, *, overwrite: bool = False, **options: Any
) -> PreTrainedModel:
    """Convert a checkpoint of another library and save the result.

    No code of the checkpoint is run, and a failed conversion leaves `target` as it was.

    Args:
        source: A file with a state dict, or a folder or Hub id with a `config.json`, in a format for which a family has
            a converter (`convert_*.py` in its folder). The tokenizer of a folder is saved with the model.
        target: The folder to write.
        overwrite: Replace an existing model in `target`, with all files of the folder.
        **options: Settings that the files of the format do not record, such as `norm_first` for `state-spaces/s4`, see
            the `options` of its converter. Those that are `None` are ignored.

    Returns:
        The converted model.

    Raises:
        OSError: `source` does not exist, or `target` does and `overwrite` is false.
        ValueError: `target` is `source` or contains it; `source` has an unknown format, is incomplete or damaged, or
            does not take one of the options.
    """
    check_not_input(target, source, name="target")
    target = Path(target).resolve()
    replaced = target.with_name(f".{target.name}.replaced")
    if replaced.is_dir() and not target.exists():
        # An earlier call was killed between the two moves.
        replaced.rename(target)
    if target.is_file():
        raise NotADirectoryError(f"{str(target)!r} is a file: give the name of a folder")
    if target.is_dir() and any(target.iterdir()):
        if not overwrite:
            raise FileExistsError(
                f"{str(target)!r} is not empty: choose another folder, or replace it (overwrite=True, "
                "--overwrite-output)"
            )
        if not (target / "config.json").is_file():
            raise FileExistsError(f"{str(target)!r} holds no model, so it is not replaced: choose another folder")
    model, tokenizer = _load(source, {name: value for name, value in options.items() if value is not None})
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target.parent) as scratch:
        whole = scratch / "whole"
        model.save_pretrained(whole)
        if tokenizer is not None:
            tokenizer.save_pretrained(whole)
        _replace(target, whole, replaced)
    return model


def _replace(target: Path, whole: Path, replaced: Path) -> None:
    """Move a finished folder to `target`, whose former content stays in `replaced` until then."""
    if replaced.exists():
        shutil.rmtree(replaced)
    if target.exists():
        target.rename(replaced)
    try:
        whole.rename(target)
    except BaseException:
        if replaced.exists():
            replaced.rename(target)
        raise
    if replaced.exists():
        shutil.rmtree(replaced)


def _load(source: str | Path, options: Mapping[str, Any]) -> tuple[PreTrainedModel, Any]:
    """Model and tokenizer (or `None`)."""
    try:
        with one_line_errors(source):
            is_file = Path(source).is_file()
            folder = Path(source).parent if is_file else source
            state_dict = load_state_dict(source) if is_file else None
            config = {} if is_file and not Path(folder, "config.json").is_file() else _read_config(folder)
            converter = _find_converter(source, config, state_dict or {}, is_file)
            for name in options:
                if name not in converter.options:
                    raise ValueError(f"`{name}` is not an option for checkpoints of {converter.name}: leave it out")
            if state_dict is None:
                state_dict = converter.read(source, config)
            model = converter.convert(state_dict, config, **options)
            return model, converter.load_tokenizer(folder, config) if config else None
    except (OSError, ValueError):
        raise
    except Exception as error:
        # Values of a configuration of another library can fail anywhere in transformers.
        why = str(error).strip().partition("\n")[0][:300]
        raise ValueError(f"{str(source)!r} cannot be converted: {type(error).__name__}: {why}") from error


def _find_converter(source: str | Path, config: Mapping[str, Any], names: Collection[str], is_file: bool) -> Converter:
    own = [family.config_class for family in FAMILIES.values()]
    known = [converter for config_class in own for converter in converters_of(config_class)]
    for converter in known:
        if converter.recognises(config, names):
            return converter
    kind = config.get("model_type")
    if kind in [config_class.model_type for config_class in own]:
        raise ValueError(f"{str(source)!r} is already a checkpoint of hf_ssm")
    formats = f"checkpoints of {', '.join(converter.name for converter in known)} can be converted"
    if is_file:
        raise ValueError(f"{str(source)!r} is a state dict of an unknown model: {formats}")
    if kind is None:
        raise ValueError(f"the config.json of {str(source)!r} has no `model_type`: {formats}")
    raise ValueError(f"{str(source)!r} is a model of type {kind!r}: {formats}")


def _read_config(source: str | Path) -> dict[str, Any]:
    """Content of the `config.json` of a folder or Hub id; of a folder without it, that of Mistral's `params.json`."""
    if Path(source, "params.json").is_file() and not Path(source, "config.json").is_file():
        # Its `model_type` is none of transformers.
        return {name: value for name, value in _read_json(Path(source, "params.json")).items() if name != "model_type"}
    if Path(source).is_dir() and not Path(source, "config.json").is_file():
        yaml_files = sorted(path for ending in ("yml", "yaml") for path in Path(source).glob(f"*.{ending}"))
        if len(yaml_files) == 1:
            return _read_yaml(yaml_files[0])
        raise ValueError(f"{str(source)!r} has no config.json: give the folder of a checkpoint, or a file of tensors")
    try:
        path = Path(str(cached_file(source, "config.json")))
    except OSError as error:
        raise FileNotFoundError(f"{str(source)!r} is not a file or folder, and not on the Hub: {error}") from error
    return _read_json(path, source)


def _read_yaml(path: Path) -> dict[str, Any]:
    """Content of the configuration of a checkpoint (Evo 2) whose library writes YAML."""
    try:
        found = yaml.safe_load(path.read_bytes())
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{str(path)!r} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} must hold a mapping of fields, got {type(found).__name__}")
    return found


def _read_json(path: Path, source: str | Path | None = None) -> dict[str, Any]:
    """Content of a file of a checkpoint `source`."""
    of = str(path.parent if source is None else source)
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"the {path.name} of {of!r} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the {path.name} of {of!r} must hold an object, got {type(found).__name__}")
    return found
