"""Options of `hf-ssm train`, `tune` and `demo`."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_ssm.cli.options import SVG_HELP

# Without those that predict videos or forecast series, for which there is no task.
FAMILY_NAMES = ("hyena", "hyena2", "s4", "s5", "linoss", "selective", "ssd", "mamba3", "hybrid")
TASK_NAMES = (
    *("sequence-classification", "sequence-pair-classification", "token-classification", "sequence-regression"),
    *("signal-regression", "causal-lm", "masked-lm"),
)
SECTIONS = ("model", "data", "training")

# Names of the option and of its value, type, help.
_Option = tuple[str, Callable[[str], Any], str]
OPTIONS: dict[str, dict[str, _Option]] = {
    "data": {
        "dataset": (
            "--dataset --dataset-name --train-file SOURCE",
            str,
            "planted-motifs (generated data), a .csv, .tsv, .json, .jsonl or .fa file (also compressed), images "
            "(an idx file, a folder), a Hub id, or, with --set data.streaming=true, a glob of files",
        ),
        "validation_file": (
            "--validation-file FILE",
            str,
            "file with the validation rows (default: a part of the data)",
        ),
        "test_file": ("--test-file FILE", str, "file with the test rows (default: a part of the data)"),
        "sequence_column": ("--sequence-column NAME", str, "column of the sequences (default: sequence, seq or text)"),
        "label_column": ("--label-column NAME", str, "column of the labels (default: label, labels, class or target)"),
        "tokenizer": (
            "--tokenizer --tokenizer-name NAME",
            str,
            "dna (default), byte, listops, a folder or a Hub id; images need none",
        ),
        "max_length": (
            "--max-length --max-seq-length TOKENS",
            int,
            "cut longer sequences to this number of tokens (default: no limit)",
        ),
    },
    "model": {
        "family": ("--family FAMILY", str, f"family of a fresh model: {', '.join(FAMILY_NAMES)} (default: hyena)"),
        "task": (
            "--task TASK",
            str,
            "sequence-classification (default), sequence-regression (labels are numbers), sequence-pair-classification "
            "(two texts of a row, encoded separately), token-classification, signal-regression, causal-lm or masked-lm",
        ),
        "checkpoint": ("--model --model-name-or-path CHECKPOINT", str, "fine-tune this model (folder or Hub id)"),
    },
    "training": {
        "num_train_epochs": ("--epochs --num-train-epochs N", float, "passes over the training split (default: 10)"),
        "per_device_train_batch_size": (
            "--batch-size --per-device-train-batch-size N",
            int,
            "sequences per step and device (default: 32)",
        ),
        "learning_rate": ("--learning-rate RATE", float, "peak learning rate (default: 3e-3, with --model 1e-3)"),
        "seed": ("--seed N", int, "seed of weights, order and dropout (data.seed is the seed of the splits)"),
        "report_to": ("--report-to NAME", str, "also log to trackio, tensorboard or wandb (default: none)"),
    },
}
"""The options that are settings, by section and key."""


def _add_settings(parser: argparse.ArgumentParser, resume: str) -> None:
    """The options that give the settings of a run."""
    for section, options in OPTIONS.items():
        group = parser.add_argument_group(section)
        for key, (usage, kind, text) in options.items():
            *names, value = usage.split()
            group.add_argument(*names, dest=f"{section}.{key}", type=kind, metavar=value, help=text)
    group.add_argument("--resume", action="store_true", help=resume)
    # Not declared one by one, which would need an import of transformers.
    fields = parser.add_argument_group(
        "fields of transformers' TrainingArguments",
        "Each is an option, such as --warmup_steps 100, --lr_scheduler_type linear, --bf16 or\n"
        "--no_load_best_model_at_end.",
    )
    fields.set_defaults(fields={})
    add = parser.add_argument_group("all settings", "`hf-ssm train --help-settings` lists them.").add_argument
    add("--config", metavar="FILE", type=Path, help="YAML or JSON file with the sections model, data and training")
    example = (
        "any setting, such as model.sobolev_order=0.5 (or model.beta=0.5); --set takes precedence over other options"
    )
    add("--set", metavar="SECTION.KEY=VALUE", action="append", default=[], dest="assignments", help=example)


class _HelpSettings(argparse.Action):
    """Store the name, and require no other option."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        setattr(namespace, self.dest, values or "")
        for action in parser._actions:
            action.required = False


def add_train(parser: argparse.ArgumentParser) -> None:
    help_settings = (
        "show the settings, each with its default and meaning, and exit: those of FAMILY and of the sections data and "
        f"training, or those of a SECTION ({', '.join(SECTIONS)})"
    )
    parser.add_argument(
        "--help-settings", metavar="FAMILY|SECTION", nargs="?", action=_HelpSettings, help=help_settings
    )
    _add_settings(parser, "continue from the newest complete checkpoint in --output")
    add = parser.add_argument_group("output").add_argument
    add("--output", "--output-dir", metavar="DIR", type=Path, required=True, help="folder for the result")
    add("--overwrite-output", "--overwrite-output-dir", action="store_true", help="replace the run in --output")
    dry_run = "print the settings and the sizes of data and model, without training and without writing files"
    add("--dry-run", action="store_true", help=dry_run)
    add("--svg", action="store_true", help=SVG_HELP)
    add("--push-to-hub", metavar="USER/NAME", help="upload the finished folder")
    add("--private", action="store_true", help="make a new Hub repository private")
    add("--license", metavar="ID", help="licence of the weights for the card, such as apache-2.0 (default: none)")


def add_tune(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("tuning").add_argument
    add("--diagnose", action="store_true", help="print the diagnosis only, which takes seconds and needs no training")
    trials = "number of settings that are tried besides the default (default: %(default)s)"
    add("--trials", metavar="N", type=int, default=5, help=trials)
    seeds = "number of fresh seeds on which the best settings are compared with the default (default: %(default)s)"
    add("--seeds", metavar="N", type=int, default=3, help=seeds)
    _add_settings(parser, "continue in --output without repeating finished runs")
    add = parser.add_argument_group("output").add_argument
    add("--output", "--output-dir", metavar="DIR", type=Path, help="folder for runs, results and settings")


def add_demo(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    default = Path("runs/demo")
    add(
        "--output",
        "--output-dir",
        metavar="DIR",
        type=Path,
        default=default,
        help="folder for the result (default: runs/demo)",
    )
    add("--overwrite-output", "--overwrite-output-dir", action="store_true", help="replace the run in --output")
