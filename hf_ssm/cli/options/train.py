"""Options of `hf-ssm train`, `tune` and `demo`."""

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from hf_ssm.cli.options import SVG_HELP
from hf_ssm.training.arguments import SECTIONS, DataArguments, ModelArguments, TrainingDefaults


def _add_settings(parser: argparse.ArgumentParser, resume: str) -> None:
    """The options that give the settings of a run."""
    for section, arguments in (("data", DataArguments), ("model", ModelArguments), ("training", TrainingDefaults)):
        group = parser.add_argument_group(section)
        for entry in fields(arguments):
            if entry.metadata["option"]:
                *names, value = entry.metadata["option"].split()
                several: dict[str, Any] = {"nargs": "+"} if entry.name == "dataset" else {}
                group.add_argument(
                    *names, dest=f"{section}.{entry.name}", metavar=value, help=entry.metadata["help"], **several
                )
    group.add_argument("--resume", action="store_true", help=resume)
    # Not declared one by one, which would need an import of transformers.
    others = parser.add_argument_group(
        "other settings",
        "Every setting of the data and every field of transformers' TrainingArguments is an option, such as\n"
        "--window 1024, --warmup_steps 100, --lr_scheduler_type linear, --bf16 or --no_load_best_model_at_end.\n"
        "`hf-ssm train --help-settings` lists all settings.",
    )
    others.set_defaults(fields={})
    add = others.add_argument
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
    add, default = parser.add_argument, Path("runs/demo")
    folder = "folder for the result (default: %(default)s)"
    add("--output", "--output-dir", metavar="DIR", type=Path, default=default, help=folder)
    add("--overwrite-output", "--overwrite-output-dir", action="store_true", help="replace the run in --output")
