"""Runs over lists of values: `model.frequency_scale: [0.1, 1, 10]` in a settings file stands for three runs."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from hf_ssm.models.registry import FAMILIES
from hf_ssm.training.settings import (
    DEFAULT_FAMILY,
    MODEL_DEFAULTS,
    SECTIONS,
    config_class,
    config_fields,
    data_types,
    is_of_type,
    training_types,
)
from hf_ssm.tuning.runs import Outcome

__all__ = ["GridRun", "expand", "grid_table", "merged"]

Sections = dict[str, dict[str, Any]]
Layer = Mapping[str, Mapping[str, Any]]


class GridRun(NamedTuple):
    """One of the runs.

    Attributes:
        name: Such as "frequency_scale=0.1,seed=2", a name for its folder; empty if no field has a list of values.
        values: The values by the names of the fields.
        sections: The settings before `hf_ssm.training.settings.resolve`.
    """

    name: str
    values: dict[str, Any]
    sections: Sections


def merged(*layers: Layer) -> Sections:
    """The sections of all layers (as of `hf_ssm.training.settings.read_settings_file`), later layers winning."""
    return {
        section: {key: value for layer in layers for key, value in layer.get(section, {}).items()}
        for section in SECTIONS
    }


def expand(sections: Layer) -> list[GridRun]:
    """A run for each combination of the values of fields that have a list instead of a value.

    A list that is a value of its field is one value: `data.label_column: [a, b]`, or an order β for each layer,
    `model.sobolev_order: [0, 0.5]`; several of them are a list of lists.

    Args:
        sections: Settings before `hf_ssm.training.settings.resolve`.

    Raises:
        ValueError: A list of values is empty, or has a value twice.
    """
    types = _types(sections)
    lists = {
        (section, key): value
        for section in sections
        for key, value in sections[section].items()
        if isinstance(value, list) and not is_of_type(value, types[section].get(key, Any))
    }
    for (section, key), values in lists.items():
        if not values or any(value in values[:number] for number, value in enumerate(values)):
            raise ValueError(
                f"{section}.{key}={values!r}: give one or more values, which must differ, as each value is a run"
            )
    keys = [key for _, key in lists]
    names = [key if keys.count(key) == 1 else f"{section}.{key}" for section, key in lists]
    runs = []
    for chosen in itertools.product(*lists.values()):
        run = {section: dict(fields) for section, fields in sections.items()}
        for (section, key), value in zip(lists, chosen, strict=True):
            run[section][key] = value
        label = ",".join(f"{name}={value}" for name, value in zip(names, chosen, strict=True))
        runs.append(GridRun(label.replace("/", "_"), dict(zip(names, chosen, strict=True)), run))
    if len({run.name for run in runs}) < len(runs):
        raise ValueError(
            f"{', '.join(names)}: some values differ only in '/' and '_', which are the same in names of "
            "folders: rename one of them"
        )
    return runs


def grid_table(grid: Sequence[GridRun], outcomes: Mapping[str, Outcome]) -> pd.DataFrame:
    """A row for each run: the values of its fields, the validation score, whether it failed, the baseline, the time."""
    rows = []
    for run in grid:
        outcome = outcomes[run.name]
        rows.append(
            {
                **{name: str(value) for name, value in run.values.items()},
                outcome.metric: outcome.score,
                "baseline": outcome.chance,
                "failed": outcome.failed,
                "seconds": outcome.seconds,
            }
        )
    return pd.DataFrame(rows)


def _types(sections: Layer) -> Sections:
    """The type of each field by section. A checkpoint determines its family, so that a field may be of any family."""
    family = sections.get("model", {}).get("family") or DEFAULT_FAMILY
    names = [entry.short_name for entry in FAMILIES.values()]
    model: dict[str, Any] = dict.fromkeys(MODEL_DEFAULTS, str | None)
    for name in sorted(names, key=lambda name: name == family):
        hints = {field.name: field.type for field in config_fields(name)}
        aliases = config_class(name).attribute_map
        model |= hints | {alias: hints[field] for alias, field in aliases.items() if field in hints}
    return {
        "model": model,
        "data": data_types(sections.get("data", {}).get("dataset")),
        "training": training_types(),
    }
