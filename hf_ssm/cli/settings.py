"""`hf-ssm train --help-settings`: the settings of a run with their defaults and meaning, from the docstrings."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from hf_ssm.cli.options.train import FAMILY_NAMES, OPTIONS, SECTIONS
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data import GENERATORS, load_sequences
from hf_ssm.models.base.fields import help_texts
from hf_ssm.training import settings as resolved
from hf_ssm.training.trainer import SSMTrainingArguments

_WIDTH = 100
# An entry of the section Args of a docstring: names, each with its type in parentheses, and the text.
_TYPE = r" \((?:[^()]|\([^()]*\))*\)"
_ARGUMENT = re.compile(rf"(?P<names>\w+(?:{_TYPE})?(?:, \w+(?:{_TYPE})?)*): (?P<text>.*)")
_MEANINGS = {
    "model.time_steps": "Rule that determines time_step_min and time_step_max of a fresh model from the training data, "
    "unless the settings give them: autocorrelation, spectrum or length. None: the defaults below.",
    "data.reverse_complement": "Replace each training sequence by its reverse complement with probability 1/2 (DNA).",
    "data.unknown_bases": "Replace up to this share of the bases of a training sequence by N, as a probe does (DNA).",
    "data.num_proc": "Number of processes that tokenize the data; None: one process.",
    "data.normalization": "Scale of images and numbers, see hf_ssm.data.features.fit_extractor. None: chosen by the "
    "kind of data.",
    "data.streaming": "Read the training rows while the model trains: files, globs of files ('shards/*.jsonl.gz') and "
    "data of the Hub. validation_file and test_file are read into memory.",
    "data.shuffle_buffer": "Streams: number of rows from which the next row is drawn; 0: the rows keep the order of "
    "the files. None: 1000.",
    "data.epoch_rows": "Streams: number of rows of one pass, which num_train_epochs needs if training.max_steps is not "
    "set. None: the number that parquet files and the Hub state.",
    "data.classes": "Streams: names of the classes of the labels, in the order of their ids. None: the classes that "
    "the files name.",
    "data.seed": "Random seed.",
    "training.report_to": "Also log to trackio, tensorboard or wandb.",
    "training.weight_decay": "Weight decay of AdamW; it does not apply to norms, biases, feed-throughs and dynamics.",
    **{f"data.num_{split}": f"Rows of the {split} split." for split in ("train", "validation", "test")},
}

_Setting = tuple[str, Any, str]


def argument_texts(docstring: str | None) -> dict[str, str]:
    """Name of each argument in the section Args of a Google docstring, and its description in one line."""
    _, _, section = inspect.cleandoc(docstring or "").partition("Args:\n")
    section = re.split(r"\n(?=\S)", section)[0]  # up to the next section
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\w)", "\n" + section):
        parsed = _ARGUMENT.fullmatch(" ".join(entry.split()))
        if parsed is not None:
            names = re.sub(_TYPE, "", parsed["names"]).split(", ")
            texts |= dict.fromkeys(names, parsed["text"])
    return texts


def settings_of(section: str, family: str) -> Iterator[tuple[str, list[_Setting]]]:
    """The settings of a section in groups with headings: name, default, meaning."""
    meanings = {f"{name}.{key}": text for name, options in OPTIONS.items() for key, (*_, text) in options.items()}
    meanings |= _MEANINGS
    if section == "model":
        common = resolved.MODEL_DEFAULTS | {"family": resolved.DEFAULT_FAMILY}
        yield "model", [(name, value, meanings[f"model.{name}"]) for name, value in common.items()]
        config_type = resolved.config_class(family)
        texts = help_texts(config_type)
        fields = resolved.config_fields(family)
        yield (
            f"model, fields of {config_type.__name__}",
            [(field.name, field.default, texts[field.name]) for field in fields],
        )
    elif section == "data":
        common = resolved.DATA_DEFAULTS
        yield "data", [(name, value, meanings[f"data.{name}"]) for name, value in common.items()]
        yield "data, of files and the Hub", list(_arguments(load_sequences))
        for name, generator in GENERATORS.items():
            yield f"data, of the generator {name}", list(_arguments(generator))
    else:
        all_fields = {field.name: field for field in dataclasses.fields(SSMTrainingArguments)}
        own_defaults = {name: all_fields[name].default for name in vars(SSMTrainingArguments)["__annotations__"]}
        yield (
            "training",
            [
                (name, value, meanings.get(f"training.{name}") or all_fields[name].metadata["help"])
                for name, value in (resolved.TRAINING_DEFAULTS | own_defaults).items()
            ],
        )


def _arguments(function: Callable[..., Any]) -> Iterator[_Setting]:
    """The arguments of a loader or generator that are settings."""
    texts = argument_texts(function.__doc__)
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in resolved.NOT_SETTINGS:
            yield name, parameter.default, texts.get(name) or _MEANINGS[f"data.{name}"]


def print_settings(name: str = "") -> None:
    """Print the settings of all sections, each with its default and its meaning.

    Args:
        name: A family, whose models have the settings of the section `model`, or one of the sections. Empty: all
            sections, with the default family.

    Raises:
        ValueError: Neither a family nor a section.
    """
    if name:
        resolved.check_choice("family or section", name, (*FAMILY_NAMES, *SECTIONS), "--help-settings")
    family = name if name in FAMILY_NAMES else resolved.DEFAULT_FAMILY
    console = Console(highlight=False, soft_wrap=True)
    names_of: dict[str, list[str]] = {}
    for alias, field in resolved.ALIASES.items():
        names_of.setdefault(field, []).append(alias)
    for section in [name] if name in SECTIONS else SECTIONS:
        for heading, settings in settings_of(section, family):
            console.print(Text(heading, style="bold underline"))
            for name, default, meaning in settings:
                aliases = names_of.get(name, []) if section == "model" else []
                title = Text(f"  {section}.{name}", style="bold")
                title.append(f" = {_written(default)}", style="not bold")
                if aliases:
                    title.append(f"   (or {', '.join(f'model.{alias}' for alias in aliases)})", style="not bold")
                console.print(title)
                console.print(textwrap.indent(textwrap.fill(meaning, _WIDTH), " " * 6), markup=False)
            console.print()
    console.print("Training also takes every field of transformers' TrainingArguments.")
    options = "--family", family, "--set", "model.rescale_init=true", "--output", "runs/mine"
    line = command("train", "--dataset", "my.csv", *options)
    suggest((line, "train with one of these settings"))


def _written(value: Any) -> str:
    """A default as in a settings file."""
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
