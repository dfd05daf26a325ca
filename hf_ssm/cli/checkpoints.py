"""Options and loading shared by the commands that read a checkpoint and data."""

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
from transformers import PreTrainedModel

from hf_ssm import plotting
from hf_ssm.data import GENERATORS
from hf_ssm.data.records import table_columns
from hf_ssm.data.streaming import is_glob, is_local
from hf_ssm.models.registry import FAMILIES, HEADS
from hf_ssm.tokenization import reads_only_dna
from hf_ssm.training import folder
from hf_ssm.training.arguments import parse_assignments, read_settings_file
from hf_ssm.training.loading import read_config, reading
from hf_ssm.training.metrics import beats_chance
from hf_ssm.training.run import chance_key
from hf_ssm.training.settings import RunSettings, resolve
from hf_ssm.training.tasks import TASKS
from hf_ssm.utils.files import check_not_input

SEED = 0
"""Seed of the choice of rows, so that a command can be repeated."""

# Metrics by which a model is compared with chance; the first of the former are shown.
_DECISIVE = ("perplexity", "accuracy", "mse")
_METRICS = (*_DECISIVE, "mcc", "pearson")
# Data settings of a run that also apply to other data, the latter where these have the columns.
_GENERAL_SETTINGS = ("max_length", "keep_case")
_COLUMN_SETTINGS = ("sequence_column", "label_column", "pair_column")
# Settings that options of the commands set; a command may lack some.
_DATA_OPTIONS = ("dataset", "sequence_column", "label_column", "tokenizer", "max_length")


def unit_of(tokenizer: Any) -> str:
    """Name of a position on the axes of figures: "base", "token", or "sample" without a tokenizer."""
    if tokenizer is None:
        return "sample"
    return "base" if reads_only_dna(tokenizer) else "token"


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Raise a ValueError if one of the named options is less than 1."""
    for name in names:
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}")


def check_output_options(args: argparse.Namespace) -> None:
    """Raise a ValueError for --svg without a folder for the figures, or for a folder with files."""
    if args.output is not None:
        remedy = "choose another folder, or replace the files in it (--overwrite-output)"
        folder.check_output(args.output, args.overwrite_output, remedy)
    elif args.svg:
        raise ValueError("--svg needs --output DIR, the folder for the figures: give --output, or leave --svg out")


def can_draw(what: str) -> bool:
    """Whether matplotlib is installed; if not, a line on stderr says so and names what is not drawn."""
    if not plotting.can_plot():
        print(f"No {what}: {plotting.INSTALL_HINT}", file=sys.stderr)
    return plotting.can_plot()


def load_config(checkpoint: str) -> Any:
    """The configuration of a model of hf_ssm; a `ValueError` or `OSError` for anything else."""
    folder = Path(checkpoint)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ValueError(
            f"{checkpoint!r} holds a PEFT adapter without its model: load the model and the adapter, merge them "
            "(`merge_and_unload`), save the merged model, and give its folder"
        )
    return read_config(checkpoint)


def load_model(checkpoint: str, config: Any, **options: Any) -> PreTrainedModel:
    """The model with its own head, on the accelerator if there is one; a `ValueError` for damaged weights.

    Args:
        checkpoint: Folder or Hub id.
        config: Its configuration.
        **options: Of `from_pretrained`, such as `dtype`.
    """
    name = (config.architectures or [f"{type(config).__name__.removesuffix('Config')}Model"])[0]
    classes = [cls for family in FAMILIES.values() for cls in family.model_classes.values()]
    model_class = next((cls for cls in classes if cls.__name__ == name), None)
    if model_class is None:
        raise ValueError(
            f"{checkpoint!r} holds a {name}, and hf_ssm has no model class of this name: choose another checkpoint, "
            "correct `architectures` in its config.json, or update hf_ssm"
        )
    with reading(f"the weights of {checkpoint!r}"):
        model, info = model_class.from_pretrained(checkpoint, output_loading_info=True, **options)
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"{checkpoint!r} is not a complete {name}: it lacks {', '.join(missing[:3])}")
    placed: PreTrainedModel = on_accelerator(model)
    return placed


def on_accelerator(model: Any) -> Any:
    """The model on the accelerator, if there is one."""
    # Moments are computed in float64, which MPS does not support.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return model.to(accelerator) if accelerator is not None and accelerator.type != "mps" else model


def file_of(checkpoint: str, name: str) -> Path | None:
    """A file of a folder or of a Hub repository; None if it does not exist."""
    if Path(checkpoint).is_dir():
        path = Path(checkpoint, name)
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(checkpoint, name))
    except (EntryNotFoundError, HfHubHTTPError):
        return None


def stored_value(checkpoint: str, name: str, value_of: Callable[[Any], Any], default: Any) -> Any:
    """The value of a JSON file that a run wrote; the default without the file, or if the file is damaged."""
    path = file_of(checkpoint, name)
    try:
        return default if path is None else value_of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return default


def chance_note(split: str, values: Mapping[str, float], chance: Mapping[str, float]) -> str:
    """A sentence if no metric of a split is better than that of a constant prediction, otherwise ""."""
    name = next((name for name in _DECISIVE if name in values and name in chance), None)
    if name is None or beats_chance(values, chance):
        return ""
    return (
        f"On the {split} split the model is no better than a constant prediction ({name} {values[name]:.4g}, "
        f"chance {chance[name]:.4g}): the model has learnt nothing."
    )


def warn_of_chance(checkpoint: str, tokenizer: Any) -> None:
    """Print on stderr if the metrics in the log of the run that made a checkpoint are no better than chance.

    Logs of earlier versions hold no chance: that of bases is then the perplexity of four equally likely ones.
    """

    def numbers_of(log: Any) -> dict[str, float]:
        return {key: value for entry in log for key, value in entry.items() if isinstance(value, int | float)}

    # `report` names a damaged log.
    logged = stored_value(checkpoint, folder.LOG_NAME, numbers_of, {})
    for split in ("test", "validation"):
        values = {name: logged[f"{split}_{name}"] for name in _METRICS if f"{split}_{name}" in logged}
        chance = {name: logged[key] for name in values if (key := chance_key(split, name)) in logged}
        if "perplexity" in values and not chance and reads_only_dna(tokenizer):
            chance = {"perplexity": 4.0}
        if values:
            if note := chance_note(split, values, chance):
                print(f"{checkpoint}: {note}", file=sys.stderr)
            return


def check_tokenizer(checkpoint: str, config: Any, settings: RunSettings) -> None:
    """Raise a ValueError if a tokenizer is needed and missing; transformers would construct one of its own."""
    if config.num_input_channels is not None or settings.data["tokenizer"]:
        return
    if all(file_of(checkpoint, name) is None for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ValueError(f"{checkpoint!r} has no tokenizer: give --tokenizer (dna, byte, a folder or a Hub id)")


def check_fit(config: Any, longest: int) -> None:
    """Raise a ValueError if the longest sequence exceeds the limit of the model."""
    limit = config.longest_input
    if limit is not None and longest > limit:
        raise ValueError(
            f"the longest sequence has {longest} tokens, but the model takes at most {limit}: cut the sequences "
            f"with --max-length {limit}"
        )


def rows_of(splits: DatasetDict, split: str) -> Dataset:
    """The rows of --split, of which there is at least one."""
    if split not in splits:
        raise ValueError(f"--split {split!r}: the data have the splits {', '.join(splits)}")
    if len(splits[split]) == 0:
        raise ValueError(f"--split {split!r} has no sequences: choose another split")
    return splits[split]


def chosen_rows(splits: DatasetDict, split: str, count: int) -> Dataset:
    """At most `count` random rows of a split, in their order."""
    rows = rows_of(splits, split)
    if count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(SEED).sample(range(len(rows)), count)))


def public_name(source: str | list[str]) -> str:
    """A Hub id, or the last part of a local path, whose other parts are private; of several files, each."""
    if isinstance(source, list):
        return ", ".join(map(public_name, source))
    path = Path(source).expanduser()
    return path.resolve().name if path.exists() or is_glob(source) else source


def stored_settings(checkpoint: str) -> dict[str, dict[str, Any]]:
    """The settings of the run that made a checkpoint; empty if there are none."""
    path = file_of(checkpoint, folder.SETTINGS_NAME)
    return {} if path is None else read_settings_file(path)


def data_settings(
    args: argparse.Namespace, checkpoint: str, config: Any, what: str, task: str | None = None
) -> RunSettings:
    """Settings of the data from the run that made the checkpoint, the options and --set, later ones winning.

    Args:
        args: Parsed options of `add_data_options`, `dataset`, and `output`, which must not contain the data.
        checkpoint: Folder or Hub id of the model.
        config: Configuration of the model.
        what: The command with its article, for messages.
        task: How the data are read; default: as in the run, or by the head of the model.
    """
    if config.reads_series:
        raise ValueError(f"{checkpoint!r} forecasts series, and {what} needs a model of sequences: use hf-ssm report")
    if config.frame_shape is not None:
        raise ValueError(
            f"{checkpoint!r} reads videos, and {what} needs a model of sequences: choose another checkpoint"
        )
    assignments = parse_assignments(args.assignments)
    for section in assignments:
        if section != "data":
            raise ValueError(
                f"--set {section}.KEY=VALUE: {what} takes settings of the section data only (--set data.KEY=VALUE)"
            )
    run = stored_settings(checkpoint)
    stored = run.get("data", {})
    if args.dataset is not None and args.dataset != stored.get("dataset"):
        stored = _settings_for_other_data(stored, args.dataset)
    if not args.dataset and not stored.get("dataset"):
        raise ValueError(f"{checkpoint!r} has no {folder.SETTINGS_NAME} that names its data: give --dataset")
    if args.dataset is None and "dataset" not in assignments.get("data", {}):
        sources = [stored["dataset"]] if isinstance(stored["dataset"], str) else stored["dataset"]
        for source in sources:
            is_file = is_local(source) and source not in GENERATORS and not is_glob(source)
            if is_file and not Path(source).expanduser().exists():
                where = f"{source!r} in {folder.SETTINGS_NAME}"
                raise ValueError(f"the data of the run, {where}, are not here: give --dataset")
    # The files of the checkpoint define these.
    stored = {key: value for key, value in stored.items() if key not in ("tokenizer", "normalization")}
    options = {name: getattr(args, name, None) for name in _DATA_OPTIONS}
    data = stored | {key: value for key, value in options.items() if value is not None}
    task = task or run.get("model", {}).get("task") or _task_of_head(config)
    settings = resolve({"data": data, "model": {"checkpoint": checkpoint, "task": task}}, assignments)
    if args.output is not None:
        # Files of the output have other names than those of the checkpoint.
        check_not_input(args.output, *settings.data_paths)
    check_tokenizer(checkpoint, config, settings)
    return settings


def data_words(args: argparse.Namespace) -> list[object]:
    """The given options of `add_data_options` but dataset, split and rows, for another command on the same data."""
    words: list[object] = []
    for name in _DATA_OPTIONS[1:]:
        value = getattr(args, name, None)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", value]
    return [*words, *(word for setting in args.assignments for word in ("--set", setting))]


def _settings_for_other_data(stored: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Those settings of the data of a run that apply to other data."""
    general = {key: value for key, value in stored.items() if key in _GENERAL_SETTINGS}
    path = Path(dataset).expanduser()
    columns = table_columns(path) if path.is_file() else []
    for key in _COLUMN_SETTINGS:
        names = stored.get(key)
        if names and set([names] if isinstance(names, str) else names).issubset(columns):
            general[key] = names
    return general


def _task_of_head(config: Any) -> str:
    architecture = (config.architectures or [""])[0]
    auto_class = next((auto for head, auto in HEADS.items() if architecture.endswith(head)), None)
    if architecture.endswith("ForSequenceClassification") and config.problem_type == "regression":
        return "sequence-regression"
    bare = "causal-lm" if config.num_input_channels is None else "sequence-classification"
    return next((name for name, task in TASKS.items() if task.auto_class_name == auto_class), bare)
