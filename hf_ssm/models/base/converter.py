"""Base classes of the converters of other libraries' checkpoints, and their checks of state dicts.

A family has its converters in modules `convert_<library>.py` in its folder, each with a tuple `CONVERTERS`, where
`hf_ssm.models.base.loading.converters_of` finds them. No model imports this module, so that it is not exported with
checkpoints.
"""

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel
from transformers.modeling_utils import load_state_dict as load_weights

from hf_ssm.models.base.weights import compare, find_file, weight_files, weight_names

__all__ = [
    "CheckpointConverter",
    "Converter",
    "are_equal",
    "check_names",
    "check_tensor",
    "check_tensors",
    "load_state_dict",
    "rename",
    "widest",
]

# Keys of training checkpoints that hold the state dict.
_NESTED = ("state_dict", "model_state_dict", "model")


class Converter(ABC):
    """A converter of state dicts.

    Attributes:
        name: What messages call the checkpoints.
        model_type: `model_type` of the checkpoints' `config.json`; `None` if they have none.
        options: Keyword arguments of `convert`: settings that the files do not record.
    """

    name: ClassVar[str]
    model_type: ClassVar[str | None] = None
    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        """Whether a checkpoint is one that this converter reads.

        Args:
            config: Content of the `config.json`; empty if there is none.
            names: Names of the tensors; empty for a folder.
        """

    @abstractmethod
    def convert(self, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], **options: Any) -> PreTrainedModel:
        """Convert all tensors of a checkpoint to a model in evaluation mode.

        Raises:
            ValueError: Tensors that are missing, unknown, of another shape or not finite, each named; a configuration
                that the models of the family cannot represent.
        """

    def read(self, source: str | Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
        """Read the tensors of a folder or Hub id."""
        return _read_weights(source)

    def load_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Any | None:
        """Load the tokenizer of a folder or Hub id; `None` if it has none."""
        return None


class CheckpointConverter(Converter):
    """A converter of checkpoints with a `config.json`, which `from_pretrained` of the family reads too.

    A subclass sets the attributes, and defines `convert_config` and `convert_weights`.

    Attributes:
        heads: Names in `architectures` of the checkpoints, and the model classes here. The first is the default.
        backbone_class: The backbone of these classes.
        reads_untyped: Whether `from_pretrained` reads folders without a `model_type` that `recognises` accepts.
    """

    reads_untyped: ClassVar[bool] = False

    heads: ClassVar[Mapping[str, type[PreTrainedModel]]]
    backbone_class: ClassVar[type[PreTrainedModel]]

    @abstractmethod
    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the family's configuration, from the content of a `config.json`."""

    def read_config(self, source: str | Path, config: Mapping[str, Any], **fetching: Any) -> dict[str, Any]:
        """As `convert_config`, of a folder or Hub id, for formats whose configuration lacks sizes that tensors have."""
        return self.convert_config(config)

    def sized_config(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """As `convert_config`, with all tensors of the checkpoint."""
        return self.convert_config(config)

    @abstractmethod
    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: Any
    ) -> dict[str, Tensor]:
        """Weights by their names in a model with a head. Unknown tensors pass through, and are reported by the caller.

        Args:
            state_dict: All tensors of a checkpoint.
            found: Content of its `config.json`.
            config: The converted configuration.
        """

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        return config.get("model_type") == self.model_type

    def convert(self, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], **options: Any) -> PreTrainedModel:
        if not self.recognises(config, state_dict):
            raise ValueError(f"the configuration is not that of a {self.name} model")
        found = config.get("architectures") or [next(iter(self.heads))]
        name = found[0] if isinstance(found, list) else found
        if not isinstance(name, str) or name not in self.heads:
            raise ValueError(
                f"`architectures` of a {self.name} model must be among {', '.join(self.heads)}, got {name!r}"
            )
        model_class: Any = self.heads[name]
        return model_class.from_pretrained(None, **self._converted(state_dict, config, model_class))

    def load_tokenizer(self, source: str | Path, config: Mapping[str, Any]) -> Any | None:
        # Without these files, AutoTokenizer makes one up from the model type.
        if not any(find_file(source, name) for name in ("tokenizer.json", "tokenizer_config.json")):
            return None
        try:
            return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except Exception as error:
            # Each kind of tokenizer has errors of its own.
            raise ValueError(f"the tokenizer of {str(source)!r} cannot be read: {error}") from error

    def loading_arguments(
        self, source: str | Path, config: Mapping[str, Any], fetching: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Arguments of `from_pretrained` that load the converted weights of a checkpoint.

        Args:
            source: Folder or Hub id.
            config: Content of its `config.json`.
            fetching: The arguments of `from_pretrained` that say where the files are.
            arguments: All its arguments.

        Raises:
            OSError: There are no weights.
            ValueError: The checkpoint lacks weights of the backbone, or has them in another shape or not finite.
        """
        own = dict(arguments)
        reading = {name: own.pop(name) for name in ("use_safetensors", "variant") if name in own}
        weights = _read_weights(source, **reading, **fetching)
        own["state_dict"] = self._converted(weights, config)["state_dict"]
        # transformers reads the configuration, so that keyword arguments change it as always.
        own["config"] = source if own.get("config") is None else own["config"]
        if own.get("generation_config") is None and find_file(source, "generation_config.json", **fetching):
            own["generation_config"] = GenerationConfig.from_pretrained(source, **fetching)
        return own

    def _converted(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], head: Any = None
    ) -> dict[str, Any]:
        """Configuration and weights; checked are those of the backbone, or all tensors if `head` is given."""
        model_class: Any = head or self.backbone_class
        config = model_class.config_class.from_dict(self.sized_config(found, state_dict))
        weights = self.convert_weights(state_dict, found, config)
        fit = compare(model_class, config, weights)
        _check(
            self.name,
            missing=fit.missing,
            unknown=fit.unknown if head else (),
            reshaped=fit.reshaped,
            infinite=[name for name, tensor in weights.items() if name not in fit.unknown and not _is_finite(tensor)],
        )
        # Copies, as a memory-mapped file may be overwritten while the model is in use.
        return {"config": config, "state_dict": {name: tensor.clone() for name, tensor in weights.items()}}


def _check(
    what: str,
    *,
    missing: Iterable[str] = (),
    unknown: Iterable[str] = (),
    reshaped: Iterable[str] = (),
    infinite: Iterable[str] = (),
) -> None:
    """Raise `ValueError` that lists all bad tensors, if there are any."""
    kinds = {"missing": missing, "unknown": unknown, "of another shape": reshaped, "not finite numbers": infinite}
    parts = [f"{kind} {', '.join(sorted(names))}" for kind, names in kinds.items() if names]
    if parts:
        raise ValueError(f"the tensors are not a whole checkpoint of {what}: {'; '.join(parts)}")


def rename(state_dict: Mapping[str, Tensor], patterns: Mapping[str, Any], *, check: bool = True) -> dict[str, Tensor]:
    """Rename tensors.

    Args:
        state_dict: Tensors by name.
        patterns: Regular expressions and their replacements as for `re.sub`, applied to each name in this order.
        check: Compare tensors that get the same name.

    Raises:
        ValueError: A value that is not a tensor; two different tensors of one name.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name} must be a tensor, got {type(tensor).__name__}")
        new = name
        for pattern, replacement in patterns.items():
            new = re.sub(pattern, replacement, new)
        if not are_equal(tensor, found.setdefault(new, tensor)) and check:
            raise ValueError(f"{name} differs from another tensor that is also converted to {new}")
    return found


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Whether tensors have the same shape, type and numbers."""
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other))


def _read_weights(
    source: str | Path, variant: str | None = None, use_safetensors: bool | None = None, **fetching: Any
) -> dict[str, Tensor]:
    """All tensors of a folder or Hub id, from the files that `from_pretrained` of transformers chooses."""
    if find_file(source, "adapter_config.json", **fetching):
        raise ValueError(
            f"{str(source)!r} holds a PEFT adapter: merge the adapter into its model, and convert the result"
        )
    names = weight_names(variant, use_safetensors)
    files = weight_files(source, names, **fetching)
    if not files:
        raise OSError(f"{str(source)!r} has no weights: none of the files {', '.join(names)} exists")
    return {key: tensor for file in files for key, tensor in load_weights(file).items()}


def load_state_dict(path: str | Path, opened: Any = None) -> dict[str, Tensor]:
    """Load the state dict of a `.safetensors` file, or of a file of `torch.save`, without running code.

    Args:
        path: The file. A dictionary from `torch.save` may also have the state dict under `state_dict`,
            `model_state_dict` or `model`. Entries `*._extra_state` (of Transformer Engine) are left out.
        opened: A file object with the content of a checkpoint in parts, which is read instead.

    Raises:
        ValueError: A damaged file, a pickle that contains code, or a file without a state dict.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return load_file(path)
    try:
        # The type of extra states, which are bytes.
        with torch.serialization.safe_globals([io.BytesIO]):
            found = torch.load(opened or path, map_location="cpu", weights_only=True)
    except Exception as error:
        # A damaged pickle fails in as many ways as there are instructions in it.
        raise ValueError(
            f"{str(path)!r} is not a file of tensors that torch can load safely (`weights_only=True`)"
        ) from error
    for name in _NESTED:
        if isinstance(found, dict) and isinstance(found.get(name), dict):
            found = found[name]
    if isinstance(found, dict):
        found = {name: value for name, value in found.items() if not str(name).endswith("._extra_state")}
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ValueError(f"{str(path)!r} does not hold a state dict (tensors by name)")
    return found


def check_names(found: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise `ValueError` unless a state dict has exactly the expected names; the message lists all others.

    Args:
        found: Names of tensors.
        expected: Names in a whole state dict.
        what: Name of the model, for the message.
    """
    found, expected = set(found), set(expected)
    _check(what, missing=expected - found, unknown=found - expected)


def check_tensors(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[str | int, ...]], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Check that tensors are dense, real and finite, and that their shapes fit together.

    Args:
        tensors: By name.
        shapes: Shapes by name, with a letter for each free size; sizes of the same letter are equal.
        sizes: Sizes by letter that are known already.

    Returns:
        All sizes by letter.

    Raises:
        ValueError: A tensor that does not fit, by its name.
    """
    known: dict[str, int] = dict(sizes or {})
    for name, letters in shapes.items():
        tensor = tensors[name]
        shape = tuple(tensor.shape)
        expected = tuple(letter if isinstance(letter, int) else known.get(letter) for letter in letters)
        fits = len(shape) == len(expected) and all(e in (None, s) for e, s in zip(expected, shape, strict=True))
        if not fits or 0 in shape:
            raise ValueError(f"{name} has the shape {shape}, but must have the shape {letters} with the sizes {known}")
        check_tensor(name, tensor)
        known |= {letter: s for letter, s in zip(letters, shape, strict=True) if isinstance(letter, str)}
    return known


def check_tensor(name: str, tensor: Tensor) -> None:
    """Raise `ValueError` unless a tensor is dense and holds finite real numbers."""
    if not _is_dense_real(tensor):
        raise ValueError(f"{name} must be a dense tensor of real floating point numbers, got {tensor.dtype}")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} holds NaN or infinite values")


def _is_dense_real(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.is_floating_point() and not tensor.is_meta


def _is_finite(tensor: Tensor) -> bool:
    return _is_dense_real(tensor) and bool(torch.isfinite(tensor).all())


def widest(tensors: Iterable[Tensor]) -> torch.dtype:
    """The floating point type that represents all tensors, at least float32."""
    found: Any = torch.float32
    for tensor in tensors:
        if tensor.is_floating_point():
            found = torch.promote_types(found, tensor.dtype)
    return found
