"""The shapes of the weights that a checkpoint holds, and whether they fit its configuration; no numbers are read."""

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers import initialization as init
from transformers.modeling_utils import load_state_dict as load_weights
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
    is_peft_available,
)
from transformers.utils.hub import get_checkpoint_shard_files

# Arguments of `from_pretrained` that say where files are and how they are fetched.
FETCHING = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


class MismatchedSizesError(ValueError, RuntimeError):
    """Weights of other shapes than the configuration asks for; a `RuntimeError`, too, as transformers raises one."""


class Fit(NamedTuple):
    """Comparison of a configuration with stored weights; all names are those of the files.

    Attributes:
        missing: Weights that the files lack, on the meta device. Tied weights are not missing.
        reshaped: Weights of other shapes: the stored one, and the one that the configuration asks for.
        retyped: As `reshaped`, weights whose types are not of the same kind (floating point or not).
        unknown: Names of the tensors that the model does not have.
    """

    missing: dict[str, Tensor]
    reshaped: dict[str, tuple[Tensor, Tensor]]
    retyped: dict[str, tuple[Tensor, Tensor]]
    unknown: list[str]


def find_file(source: str | Path, name: str, **fetching: Any) -> Path | None:
    """Path of a file of a folder or Hub id, fetched if necessary; `None` if there is no such file."""
    try:
        return Path(str(cached_file(source, name, **fetching)))
    except OSError:
        return None
    except Exception as error:  # of the HTTP library
        raise OSError(f"{name} of {str(source)!r} cannot be fetched: {error}") from error


def weight_names(variant: str | None = None, use_safetensors: bool | None = None) -> list[str]:
    """Names of the files or indices of weights that `from_pretrained` looks for, in this order."""
    names = [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME] if use_safetensors is not False else []
    names += [] if use_safetensors else [WEIGHTS_NAME, WEIGHTS_INDEX_NAME]
    return names if variant is None else [f".{variant}.".join(name.rsplit(".", 1)) for name in names]


def weight_files(source: str | Path, names: Iterable[str], **fetching: Any) -> list[Path]:
    """Files with the weights of a folder or Hub id, fetched if necessary; empty if there are none.

    Args:
        source: Folder or Hub id.
        names: Files or indices to look for, in this order.
        fetching: Arguments of `cached_file`.
    """
    for name in names:
        path = find_file(source, name, **fetching)
        if path is not None:
            is_index = path.suffix == ".json"
            files = get_checkpoint_shard_files(source, path, **fetching)[0] if is_index else [path]
            return [Path(file) for file in files]
    return []


def read_shapes(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name, on the meta device; `ValueError` for an unknown type of numbers."""
    try:
        return dict(load_weights(path, map_location="meta"))
    except ValueError as error:  # a type of numbers that transformers does not know
        raise ValueError(f"{str(path)!r} cannot be read: {error}") from error


def compare(model_class: Any, config: Any, stored: Mapping[str, Tensor]) -> Fit:
    """Compare the weights of a model with stored ones; the model is built without memory.

    Args:
        model_class: A model class.
        config: Its configuration; not changed.
        stored: Tensors by name, of this class, of its backbone or of a model with a head, on any device.
    """
    with torch.device("meta"), init.no_init_weights():
        model = model_class(copy.deepcopy(config))
    prefix = f"{model.base_model_prefix}."
    has_head = any(name.startswith(prefix) for name in stored)

    def as_stored(name: str) -> str:
        if not has_head:
            return name.removeprefix(prefix)
        return f"{prefix}{name}" if model.base_model is model else name

    expected = {as_stored(name): tensor for name, tensor in model.state_dict().items()}
    tied = {as_stored(name) for name in model.all_tied_weights_keys}
    pairs = {name: (stored[name], tensor) for name, tensor in expected.items() if name in stored}
    return Fit(
        missing={name: tensor for name, tensor in expected.items() if name not in stored and name not in tied},
        reshaped={name: (found, wanted) for name, (found, wanted) in pairs.items() if found.shape != wanted.shape},
        retyped={
            name: (found, wanted)
            for name, (found, wanted) in pairs.items()
            if (found.is_floating_point(), found.is_complex()) != (wanted.is_floating_point(), wanted.is_complex())
        },
        unknown=[name for name in stored if name not in expected],
    )


def check_fit(model_class: Any, source: Any, arguments: Mapping[str, Any]) -> None:
    """Check that the weights of a checkpoint have the shapes that its configuration asks for, before they are loaded.

    Args:
        model_class: A model class.
        source: Folder or Hub id.
        arguments: Keyword arguments of `from_pretrained`.

    Raises:
        MismatchedSizesError: Weights of other shapes, without `ignore_mismatched_sizes=True`.
        ValueError: A damaged file.
    """
    fetching = {name: arguments[name] for name in FETCHING if name in arguments}
    base = None if source is None or arguments.get("gguf_file") else _base_checkpoint(source, fetching)
    if base is None:
        return
    config = arguments.get("config")
    if not isinstance(config, PreTrainedConfig):
        config_class = model_class.config_class
        # The argument dtype="auto" (the type of the file) is no value of a configuration.
        known = config_class.known_arguments()
        changes = {name: value for name, value in arguments.items() if name in known and value != "auto"}
        config = config_class.from_pretrained(base if config is None else config, **fetching, **changes)
    names = weight_names(arguments.get("variant"), arguments.get("use_safetensors"))
    files = weight_files(base, names, **fetching)
    if not files:
        return  # Reported by transformers.
    stored = {name: tensor for file in files for name, tensor in read_shapes(file).items()}
    model_class.expect(config)
    fit = compare(model_class, config, stored)
    # Quantised weights have shapes of their own.
    is_quantised = getattr(config, "quantization_config", None) or arguments.get("quantization_config")
    if fit.reshaped and not is_quantised and not arguments.get("ignore_mismatched_sizes"):
        name, (found, wanted) = next(iter(fit.reshaped.items()))
        more = f" (and {len(fit.reshaped) - 1} more)" if len(fit.reshaped) > 1 else ""
        raise MismatchedSizesError(
            f"the weights of {str(source)!r} do not fit the configuration: {name} has the shape "
            f"{tuple(found.shape)}, but the configuration asks for {tuple(wanted.shape)}{more}: correct the "
            "configuration, or set `ignore_mismatched_sizes=True` to initialise these weights anew."
        )


def _base_checkpoint(source: Any, fetching: Mapping[str, Any]) -> Any:
    """The checkpoint of a model: `source` itself, or the one that an adapter belongs to; `None` if it names none."""
    if Path(source, "config.json").is_file() or not is_peft_available():
        return source
    adapter = find_file(source, "adapter_config.json", **fetching)
    if adapter is None:
        return source
    try:
        return json.loads(adapter.read_bytes())["base_model_name_or_path"]
    except (KeyError, TypeError, ValueError):
        return None  # Reported by transformers.


__all__ = [
    "FETCHING",
    "Fit",
    "MismatchedSizesError",
    "check_fit",
    "compare",
    "find_file",
    "read_shapes",
    "weight_files",
    "weight_names",
]
