"""Types of configuration fields, and checks of their values."""

import math
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

# Largest gain of a Sobolev filter at a frequency: the square of an output is finite in float32.
_LARGEST_GAIN = 1e15


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


def check_numbers(config: Any) -> None:
    """Raise `ValueError` for numbers out of range; the ranges are attributes of the class of a configuration."""
    for name in config.positive_fields:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"`{name}` must be positive and finite, got {value}.")
    for name in config.non_negative_fields:
        value = getattr(config, name)
        if value is None or not 0 <= value < math.inf:
            raise ValueError(f"`{name}` must be finite and not negative, got {value}.")
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
    "check_discrete_poles",
    "check_dtype",
    "check_numbers",
    "check_sobolev",
    "warn_of_changed_filter",
]
