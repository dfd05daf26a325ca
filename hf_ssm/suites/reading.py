"""Suites by name, and from the YAML files in which a lab lists its own tables."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_ssm.suites.published import SUITES
from hf_ssm.suites.task import Suite, Task
from hf_ssm.utils.hints import closest_name

__all__ = ["read_suite"]


def read_suite(name: str | Path) -> Suite:
    """A published suite by its name, or the suite of a YAML file.

    The file has `name`, `tasks`, a list of mappings with the attributes of `Task`, and optionally `defaults` of all
    tasks, `source` and `needs`. Paths of tables and genomes are relative to the file.

    Raises:
        ValueError: There is no such suite; the file is no suite.
        FileNotFoundError: The file does not exist.
    """
    if str(name) in SUITES:
        return SUITES[str(name)]
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        closest = closest_name(str(name), SUITES)
        hint = f"did you mean {closest!r}?" if closest else f"choose from {', '.join(SUITES)}, or give a .yaml file"
        raise ValueError(f"there is no suite {str(name)!r}; {hint}")
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: there is no such file; check the path")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{str(path)!r} is not a YAML file: {' '.join(str(error).split())}") from error
    _check_keys(content, ("name", "tasks", "defaults", "source", "needs"), f"{path.name}")
    entries, defaults = content.get("tasks"), content.get("defaults") or {}
    if not isinstance(entries, list) or not entries or not isinstance(defaults, dict):
        raise ValueError(f"{path.name} must have `tasks`, a list of mappings, and `defaults`, if any, as a mapping")
    tasks = tuple(_task(entry, defaults, path) for entry in entries)
    if len({task.name for task in tasks}) < len(tasks):
        raise ValueError(f"{path.name} has two tasks of the same name: rename one of them")
    texts = {key: str(content.get(key, "")) for key in ("source", "needs")}
    return Suite(str(content.get("name") or path.stem), tasks, **texts)


def _task(entry: Any, defaults: Mapping[str, Any], path: Path) -> Task:
    fields = [field.name for field in dataclasses.fields(Task)]
    _check_keys(entry, fields, f"a task of {path.name}")
    _check_keys(defaults, fields, f"`defaults` of {path.name}")
    values = {**defaults, **entry}
    for key in ("name", "dataset"):
        if not isinstance(values.get(key), str):
            raise ValueError(f"a task of {path.name} lacks the key `{key}`; the task is {entry}")
    for key in ("dataset", "genome"):
        if values.get(key) is not None and (path.parent / values[key]).exists():
            values[key] = str(path.parent / values[key])
    return Task(**values)


def _check_keys(content: Any, known: Any, where: str) -> None:
    if not isinstance(content, dict):
        raise ValueError(f"{where} must be a mapping, got {type(content).__name__}")
    for key in content:
        if key not in known:
            closest = closest_name(str(key), known)
            hint = f"did you mean {closest!r}?" if closest else f"choose from {', '.join(known)}"
            raise ValueError(f"{where} has an unknown key {key!r}: {hint}")
