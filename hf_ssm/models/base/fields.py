"""Fields of configurations with their rules, and checks of values that depend on each other."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, fields
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
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

# Largest gain of a Sobolev filter at a frequency: the square of an output is finite in float32.
_LARGEST_GAIN = 1e15


C = TypeVar("C", bound=type)


def strict_config(cls: C) -> C:
    """Class decorator: `strict` of huggingface_hub with a one-line `ValueError` for values of a wrong type.

    Names of `attribute_map` are checked, too.
    """
    validated: Any = strict(cls)
    construct, assign = validated.__init__, validated.__setattr__

    @wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with _value_errors(type(self).__name__):
            construct(self, *args, **kwargs)

    def __setattr__(self: Any, name: str, value: Any) -> None:
        with _value_errors(type(self).__name__):
            assign(self, self.attribute_map.get(name, name), value)

    validated.__init__, validated.__setattr__ = __init__, __setattr__
    return cls


@contextmanager
def _value_errors(name: str) -> Iterator[None]:
    try:
        yield
    except StrictDataclassError as error:
        raise ValueError(f"{name}: {' '.join(str(error.__cause__ or error).split())}") from error


def one_of(*choices: Any, default: Any = ...) -> Any:
    """A field with one of these values; the first is the default, unless another one is given."""
    return _field(choices[0] if default is ... else default, partial(_check_choice, choices))


def positive(default: Any, least: float = 0.0, most: float = math.inf) -> Any:
    """A field with a positive, finite number from `least` to `most`, or `None`."""
    return _field(default, partial(_check_number, least, most, is_positive=True))


def bounded(default: Any, least: float, most: float = math.inf) -> Any:
    """A field with a number from `least` to `most`."""
    return _field(default, partial(_check_number, least, most, is_positive=False))


def dropout(default: float = 0.0) -> Any:
    """A field with a probability below 1."""
    return _field(default, _check_dropout)


def _field(default: Any, rule: Callable[[str, Any], None]) -> Any:
    return field(default=default, metadata={"rule": rule})


def check_fields(config: Any) -> None:
    """Raise `ValueError` for a value that the rule of its field excludes."""
    for entry in fields(config):
        if (rule := entry.metadata.get("rule")) is not None:
            rule(entry.name, getattr(config, entry.name))


def require(is_met: Any, message: str) -> None:
    """Raise `ValueError` unless a condition is met."""
    if not is_met:
        raise ValueError(message)


def require_divisor(config: Any, name: str, whole: str) -> None:
    """Raise `ValueError` unless one field divides another one."""
    size, total = getattr(config, name), getattr(config, whole)
    require(total % size == 0, f"`{name}`={size} must divide `{whole}`={total}: change one of them.")


def _check_choice(choices: tuple[Any, ...], name: str, value: Any) -> None:
    named = ", ".join(map(repr, choices))
    require(value in choices, f"`{name}` must be {'one of ' if len(choices) > 1 else ''}{named}, got {value!r}.")


def _check_number(least: float, most: float, name: str, value: Any, *, is_positive: bool) -> None:
    if value is None and is_positive:
        return
    require(not is_positive or 0 < value < math.inf, f"`{name}` must be positive and finite, got {value}.")
    if least == 0:
        require(is_positive or 0 <= value < math.inf, f"`{name}` must be finite and not negative, got {value}.")
    require(least <= value <= most, f"`{name}` must lie in [{least:g}, {most:g}], got {value}.")


def _check_dropout(name: str, value: float) -> None:
    require(0 <= value < 1, f"`{name}` must lie in [0, 1), got {value}.")


def check_dtype(dtype: Any) -> None:
    value = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not (isinstance(value, torch.dtype) and value.is_floating_point):
        raise ValueError(
            f"`dtype` must be the name of a type of torch, such as 'float32', or a floating point type of torch, got "
            f"{dtype!r}."
        )


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


def check_sobolev(config: Any) -> None:
    """Raise `ValueError` for orders β of another number than the layers, or whose filters have too large a gain."""
    given = config.sobolev_order
    orders = given if isinstance(given, list) else [given] * config.num_hidden_layers
    require(
        len(orders) == config.num_hidden_layers,
        f"`sobolev_order` has {len(orders)} entries for num_hidden_layers={config.num_hidden_layers}: give one number, "
        "or one for each layer.",
    )
    require(all(map(math.isfinite, orders)), f"`sobolev_order` must be finite, got {given}.")
    # As in `ops/sobolev.py`: the largest |s| of a filter, where the bilinear one of zero phase has a cutoff.
    step, frequency = config.sobolev_step, config.sobolev_frequency
    largest = {"normalized": 0.5, "radian": math.pi / step, "bilinear": 2 / step}[frequency]
    if frequency == "bilinear" and config.sobolev_mode == "zero_phase":
        largest *= math.tan(0.475 * math.pi)
    limit = math.log(_LARGEST_GAIN) / math.log1p(largest)
    require(
        max(map(abs, orders), default=0.0) <= limit,
        f"`sobolev_order` must lie in [{-limit:.3g}, {limit:.3g}] with `sobolev_frequency`={frequency!r} and steps of "
        f"{step:g}, got {given}: (1 + |s|)^β would exceed {_LARGEST_GAIN:g}.",
    )


__all__ = [
    *("bounded", "check_dtype", "check_fields", "check_sobolev", "dropout", "one_of", "positive", "require"),
    *("require_divisor", "strict_config", "warn_of_changed_filter"),
]
