"""The settings of a training run: sections, defaults, and where a value comes from.

A run has three sections: `model` (family, task, checkpoint, fields of the family's configuration),
`data` (dataset, tokenizer, max_length and the arguments of `hf_ssm.data.load_sequences`) and `training`
(fields of `SSMTrainingArguments`: those of transformers and a few more). They come from a YAML or JSON file,
from options, and from `section.key=value` assignments; the later wins. Unknown names are errors that offer
the nearest one.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING

from hf_ssm.data import GENERATORS, load_sequences
from hf_ssm.data.features import NORMALIZATIONS
from hf_ssm.training.trainer import SSMTrainingArguments

SECTIONS = ("model", "data", "training")
FAMILIES = ("hyena", "s4", "selective")
MODEL_TYPE_PREFIX = "hf_ssm_"
TASKS = ("sequence-classification", "token-classification", "signal-regression", "causal-lm", "masked-lm")

_MODEL_KEYS = ("family", "task", "checkpoint")
_DATA_KEYS = ("dataset", "tokenizer", "max_length", "reverse_complement", "normalization")
# Arguments of `load_sequences` that are no settings: the task decides them, or there is another name for them.
_NOT_SETTINGS = frozenset({"source", "generator_options", "targets"})
# Fields of the training arguments that the command decides itself, and the option to use instead.
_MANAGED = {
    "output_dir": "--output",
    "resume_from_checkpoint": "--resume",
    "push_to_hub": "--push-to-hub",
    "hub_model_id": "--push-to-hub",
    "hub_private_repo": "--private",
    "hub_token": "the login of `hf auth login` or the variable HF_TOKEN",
}

MODEL_DEFAULTS: dict[str, Any] = {"family": None, "task": "sequence-classification", "checkpoint": None}
DATA_DEFAULTS: dict[str, Any] = {
    "dataset": None,
    "tokenizer": None,
    "max_length": None,
    "reverse_complement": False,
    "normalization": None,
}
TRAINING_DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 10,
    "per_device_train_batch_size": 32,
    "per_device_eval_batch_size": 64,
    "learning_rate": 1e-3,
    # Published fine-tuning of such models diverges without these three.
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "max_grad_norm": 1.0,
    "weight_decay": 0.1,
    "seed": 0,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "save_total_limit": 2,
    "load_best_model_at_end": True,
    "logging_steps": 0.02,
    "logging_first_step": True,
    "report_to": "none",
}


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads `1e-3` as text, as it has no point; here it is the number everyone means."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_value(text: str) -> Any:
    """A YAML scalar, list or mapping: `true`, `3`, `1e-3`, `null`, `[0.5, 1]`, or the text itself.

    Raises:
        ValueError: if the text is no YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"cannot read the value {text!r}: {' '.join(str(error).split())}") from error


def nearest(name: str, choices: Iterable[str]) -> str:
    """` (did you mean ...?)` with the choice most like `name`, or the list of all when none is like it."""
    choices = sorted(choices)
    close = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(choices)}"


def read_settings_file(path: str | Path) -> dict[str, dict[str, Any]]:
    """The sections of a YAML or JSON file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is neither YAML nor JSON, or not a mapping of the three sections to mappings.
    """
    try:
        content = parse_value(Path(path).read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"settings file {str(path)!r} is neither YAML nor JSON: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"settings file {str(path)!r} must hold the sections {', '.join(SECTIONS)}")
    for section, values in content.items():
        check_choice("section", str(section), SECTIONS, f"settings file {str(path)!r}")
        if values is not None and not isinstance(values, dict):
            raise ValueError(f"section {section!r} of {str(path)!r} must hold key: value lines, got {values!r}")
    return {section: dict(values or {}) for section, values in content.items()}


def parse_assignment(text: str) -> tuple[str, str, Any]:
    """`section.key=value` as `(section, key, value)`, the value read as YAML.

    Raises:
        ValueError: if the text has another form or the section is unknown.
    """
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        raise ValueError(f"--set takes section.key=value, such as training.learning_rate=1e-3, got {text!r}")
    check_choice("section", section, SECTIONS, "--set")
    return section, key, parse_value(value)


def check_choice(kind: str, name: str, choices: Iterable[str], where: str) -> None:
    """Raise a ValueError that offers the nearest of `choices` unless `name` is one of them."""
    choices = list(choices)
    if name not in choices:
        raise ValueError(f"{where}: unknown {kind} {name!r}: {nearest(name, choices)}")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What a run does, complete: defaults are filled in and every name is known.

    Attributes:
        model: `family`, `task`, `checkpoint` (None: a fresh model) and fields of the configuration.
        data: `dataset`, `tokenizer` (None: the checkpoint's, or that for DNA), `max_length` (tokens; None: the longest
            sequence), `reverse_complement` (train on either strand of each sequence by chance), `normalization` (of
            images and numbers, see `hf_ssm.data.features.fit_extractor`) and loader arguments.
        training: fields of `SSMTrainingArguments`.
    """

    model: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]

    @property
    def task(self) -> str:
        """One of `TASKS`."""
        return str(self.model["task"])

    @property
    def config_fields(self) -> dict[str, Any]:
        """The part of `model` that belongs to the configuration."""
        return {key: value for key, value in self.model.items() if key not in _MODEL_KEYS}

    @property
    def loader_arguments(self) -> dict[str, Any]:
        """The part of `data` that goes to `load_sequences` besides the dataset."""
        return {key: value for key, value in self.data.items() if key not in _DATA_KEYS}

    def to_yaml(self) -> str:
        """The text of a settings file that gives these settings again."""
        return yaml.safe_dump({name: getattr(self, name) for name in SECTIONS}, sort_keys=False)


def resolve(*layers: Mapping[str, Mapping[str, Any]]) -> RunSettings:
    """Settings from layers of sections, later ones winning, over the defaults.

    Args:
        layers: mappings from section to values, as `read_settings_file` gives them.

    Raises:
        ValueError: for an unknown section, key, family or task, a value of the wrong type, a missing dataset,
            or a field that an option of the command decides.
    """
    merged: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for layer in layers:
        for section, values in layer.items():
            check_choice("section", section, SECTIONS, "settings")
            merged[section].update(values)
    model = {**MODEL_DEFAULTS, **merged["model"]}
    data = {**DATA_DEFAULTS, **merged["data"]}
    training = {**TRAINING_DEFAULTS, **merged["training"]}
    if model["checkpoint"] is None:  # a checkpoint brings its own
        model["family"] = model["family"] or "hyena"
    if "save_strategy" not in merged["training"]:  # the best model can be kept only where one is saved
        training["save_strategy"] = training["eval_strategy"]
        if "eval_steps" in training:
            training.setdefault("save_steps", training["eval_steps"])
    settings = RunSettings(model, data, training)
    _check_model(settings)
    _check_data(settings)
    _check_training(settings.training)
    return settings


def check_same_run(settings: RunSettings, stored: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to resume a run with another model or other data than it began with.

    Args:
        settings: resolved, for the resumed run.
        stored: the sections that the run wrote when it began.

    Raises:
        ValueError: names the first setting that differs.
    """
    for section in ("model", "data"):
        now, then = getattr(settings, section), stored.get(section, {})
        for key in now:
            if now[key] != then.get(key):
                raise ValueError(
                    f"--resume: {section}.{key} was {then.get(key)!r} when the run began and is {now[key]!r} "
                    "now: leave it as it was, or start anew in another --output"
                )


def _check_model(settings: RunSettings) -> None:
    check_choice("task", settings.task, TASKS, "model.task")
    family = settings.model["family"]
    if family is not None:
        check_choice("family", str(family), FAMILIES, "model.family")
    if settings.model["checkpoint"] is None:
        try:
            config_class(str(family))(**settings.config_fields)  # its own checks, before any work
        except StrictDataclassError as error:  # a value of the wrong type
            raise ValueError(f"model: {error}") from error


def config_class(family: str) -> Any:
    """The configuration class of a family, as registered with transformers."""
    return CONFIG_MAPPING[f"{MODEL_TYPE_PREFIX}{family}"]


def _check_data(settings: RunSettings) -> None:
    dataset = settings.data["dataset"]
    if not dataset or not isinstance(dataset, str):
        raise ValueError("no dataset: give --dataset, or data.dataset in the settings file")
    known = {*_DATA_KEYS, *_parameters(load_sequences)}
    if dataset in GENERATORS:
        known |= _parameters(GENERATORS[dataset])
    for key in settings.data:
        check_choice("key", key, known - _NOT_SETTINGS, "data")
    parameters = dict(inspect.signature(load_sequences).parameters)
    parameters.update(inspect.signature(GENERATORS[dataset]).parameters if dataset in GENERATORS else {})
    for key, value in settings.data.items():
        if key in parameters and not _fits(value, parameters[key].annotation):
            wanted = inspect.formatannotation(parameters[key].annotation)
            raise ValueError(f"data.{key} must be of type {wanted}, got {value!r}")
    normalization = settings.data["normalization"]
    if normalization is not None:
        check_choice("normalization", str(normalization), NORMALIZATIONS, "data.normalization")
    max_length = settings.data["max_length"]
    if max_length is not None and (not _is_number(max_length, int) or max_length < 1):
        raise ValueError(f"data.max_length must be a positive number of tokens, got {max_length!r}")
    if not isinstance(settings.data["reverse_complement"], bool):
        raise ValueError(f"data.reverse_complement must be true or false, got {settings.data['reverse_complement']!r}")


def _parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def _check_training(training: dict[str, Any]) -> None:
    fields = {field.name: field for field in dataclasses.fields(SSMTrainingArguments)}
    for key, value in training.items():
        if key in _MANAGED:
            raise ValueError(f"training.{key} is decided by the command: use {_MANAGED[key]}")
        check_choice("key", key, fields.keys() - _MANAGED.keys(), "training")
        wanted = fields[key].type
        if wanted in (int, float, bool) and not _is_number(value, wanted):
            raise ValueError(f"training.{key} must be of type {wanted.__name__}, got {value!r}")


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value is of an annotated kind, whatever a container holds."""
    if isinstance(annotation, types.UnionType):
        return any(_fits(value, kind) for kind in typing.get_args(annotation))
    kind = typing.get_origin(annotation) or annotation
    return _is_number(value, kind) if kind in (int, float, bool) else isinstance(value, kind)


def _is_number(value: Any, wanted: Any) -> bool:
    """Whether `value` is of the wanted type; an int is a float too, a bool is no number."""
    if wanted is bool or isinstance(value, bool):
        return wanted is bool and isinstance(value, bool)
    return isinstance(value, int | float) if wanted is float else isinstance(value, int)
