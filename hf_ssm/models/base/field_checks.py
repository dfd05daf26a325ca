"""Types of configuration fields, and checks of values: what gives NaN, JSON rounds, or transformers reads unchecked."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from transformers.utils import logging

# Types of fields whose default, `None`, depends on other fields: `_derive` of a configuration replaces it. Type
# checkers see `Any`, so that readers of the fields need no test for `None`.
if TYPE_CHECKING:
    DerivedInt: TypeAlias = Any
    DerivedFloat: TypeAlias = Any
    DerivedStr: TypeAlias = Any
    DerivedBool: TypeAlias = Any
else:
    DerivedInt, DerivedFloat, DerivedStr, DerivedBool = int | None, float | int | None, str | None, bool | None

# transformers makes a dictionary of this size of a number.
_MOST_LABELS = 1_000_000
# Sizes and counts, which torch multiplies as 64-bit integers.
_LARGEST_SIZE = 2**31 - 1
# Readers of JSON round integers beyond.
_LARGEST_INTEGER = 2**53
# Largest gain of a Sobolev filter at a frequency: the square of an output is finite in float32.
_LARGEST_GAIN = 1e15


def short_number(number: int) -> str:
    """A number, shortened: Python refuses to write integers of some thousand digits."""
    return str(number) if number.bit_length() <= 128 else f"an integer of {number.bit_length()} bits"


def check_dtype(dtype: Any) -> None:
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise ValueError(
            f"`dtype` must be the name of a type of torch, such as 'float32', or a floating point type of torch, got "
            f"{dtype!r}."
        )


def check_attribute(name: str, value: Any) -> None:
    """Check what transformers reads without a check, in arguments and in assigned values."""
    if name == "attribute_map":
        raise ValueError("`attribute_map` is part of the class, not a field of the configuration: leave it out.")
    if name == "id2label":
        check_label_names(value)
    if name == "num_labels" and not (value is None or (type(value) is int and 0 <= value <= _MOST_LABELS)):
        raise ValueError(f"`num_labels` must be a number up to {_MOST_LABELS}, got {value!r}.")
    is_map = value is None or isinstance(value, dict)
    if name == "per_layer_config" and not (is_map and all(isinstance(part, dict) for part in (value or {}).values())):
        raise ValueError(f"`per_layer_config` must be a dictionary of dictionaries, got {value!r}: leave it out.")
    if name == "task_specific_params" and not is_map:
        raise ValueError(f"`task_specific_params` must be a dictionary, got {value!r}: leave it out.")
    names = value if isinstance(value, (list, tuple)) else [None]
    if name == "architectures" and value is not None and not all(isinstance(part, str) for part in names):
        raise ValueError(f"`architectures` must be a list of names of classes, got {value!r}: leave it out.")
    if name in ("decoder", "generator", "text_config") and value is not None:
        raise ValueError(f"`{name}` is for models of several parts, got {value!r}: leave it out.")
    if name == "quantization_config" and not (is_map or hasattr(value, "to_dict")):
        raise ValueError(
            f"`quantization_config` must be a configuration of transformers, such as `TorchAoConfig`, or a dictionary, "
            f"got {value!r}: leave it out for weights that are not quantised."
        )


def check_label_names(id2label: Any) -> None:
    is_map = isinstance(id2label, dict) and all(str(key).isdecimal() for key in id2label)
    if id2label is not None and not is_map:
        raise ValueError(f"`id2label` must map numbers to names, got {id2label!r}.")


def warn_of_changed_filter(config: dict[str, Any]) -> None:
    """Warn of a checkpoint that was trained with the zero-phase filter before its bilinear frequencies had a cutoff.

    A saved configuration has all fields; `tie_dropout` was added together with the cutoff.
    """
    orders = config.get("sobolev_order")
    has_filter = config.get("sobolev_trainable") or (any(orders) if isinstance(orders, list) else orders)
    flags = config.get("sobolev_mode"), config.get("sobolev_frequency")
    is_saved = "transformers_version" in config
    if is_saved and "tie_dropout" not in config and flags == ("zero_phase", "bilinear") and has_filter:
        logging.get_logger(__name__).warning_once(
            "This checkpoint was saved before bilinear frequencies of the zero-phase Sobolev filter became constant "
            "above 0.95 π: its outputs differ from those during training (logits by up to 1.4 at β = 0.5). For the "
            "former outputs, load the checkpoint with its own code (`trust_remote_code=True`); otherwise evaluate or "
            "train it again, and save it to end this warning."
        )


def check_numbers(config: Any) -> None:
    """Raise `ValueError` for numbers out of range; the ranges are attributes of the class of a configuration."""
    for field in fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(number, int) and abs(number) > _LARGEST_INTEGER:
                raise ValueError(f"`{field.name}` must be at most 2^53 in magnitude, got {short_number(number)}.")
    for name in config.positive_fields:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")
    for name in config.non_negative_fields:
        value = getattr(config, name)
        if value is None or not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be finite and not negative, got {value}.")
    for name in (*config.positive_fields, *config.non_negative_fields):
        value = getattr(config, name)
        if isinstance(value, int) and value > _LARGEST_SIZE:
            raise ValueError(f"`{name}` must be at most {_LARGEST_SIZE}, got {value}.")
    for name, (least, most) in config.field_ranges.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"`{name}` must lie in [{least:g}, {most:g}], got {value}.")
    for name in ("embedding_dropout", "hidden_dropout", "classifier_dropout"):
        if not 0 <= getattr(config, name) < 1:
            raise ValueError(f"`{name}` must lie in [0, 1), got {getattr(config, name)}.")


def check_sobolev(config: Any) -> None:
    """Raise `ValueError` for orders β of another number than the layers, or whose filters have too large a gain."""
    orders = config.sobolev_order if isinstance(config.sobolev_order, list) else [config.sobolev_order]
    if isinstance(config.sobolev_order, list) and len(orders) != config.num_hidden_layers:
        raise ValueError(
            f"`sobolev_order` has {len(orders)} entries for num_hidden_layers={config.num_hidden_layers}: "
            "give one number, or one for each layer."
        )
    if not all(math.isfinite(order) for order in orders):
        raise ValueError(f"`sobolev_order` must be finite, got {config.sobolev_order}.")
    # As in `ops/sobolev.py`: the largest |s| of a filter, where the bilinear one of zero phase has a cutoff.
    step = config.sobolev_step
    largest = {"normalized": 0.5, "radian": math.pi / step, "bilinear": 2 / step}[config.sobolev_frequency]
    if config.sobolev_frequency == "bilinear" and config.sobolev_mode == "zero_phase":
        largest *= math.tan(0.475 * math.pi)
    limit = math.log(_LARGEST_GAIN) / math.log1p(largest)
    if max(map(abs, orders), default=0.0) > limit:
        raise ValueError(
            f"`sobolev_order` must lie in [{-limit:.3g}, {limit:.3g}] with `sobolev_frequency`="
            f"{config.sobolev_frequency!r} and steps of {step:g}, got {config.sobolev_order}: (1 + |s|)^β would exceed "
            f"{_LARGEST_GAIN:g}."
        )


def check_discrete_poles(config: Any, kind: str) -> None:
    """Raise `ValueError` where `init="dfout"` cannot place the poles of each channel; `kind` is that of the kernel."""
    if config.init == "dfout" and (kind != "s4d" or config.discretization != "zoh" or config.n_ssm is not None):
        raise ValueError(
            "`init`='dfout' places the discrete poles of each channel: it needs the kernel or filter type 's4d', "
            f"`discretization='zoh'` and no `n_ssm`, got {kind!r}, {config.discretization!r} and {config.n_ssm!r}."
        )


__all__ = [
    "check_attribute",
    "check_discrete_poles",
    "check_dtype",
    "check_label_names",
    "check_numbers",
    "check_sobolev",
    "warn_of_changed_filter",
]
