"""Shared by the experiment scripts: options, training arguments, tables and result files."""

import argparse
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hf_ssm

if TYPE_CHECKING:
    from hf_ssm.training import SSMTrainingArguments


class _Markdown(argparse.Action):
    """Print the tables of a file of results and end, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        self.const(json.loads(values.read_text(encoding="utf-8")))
        parser.exit()


def experiment_parser(
    description: str, show: Callable[[dict[str, Any]], object] | None = None
) -> argparse.ArgumentParser:
    """A parser with the options of all experiments; `show` prints the tables of a file of results, for `--markdown`."""
    parser = argparse.ArgumentParser(description=description)
    if show is not None:
        what = "print the tables of a file of --output, and end"
        add = parser.add_argument
        add("--markdown", metavar="FILE", type=Path, action=_Markdown, const=show, default=argparse.SUPPRESS, help=what)
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    parser.add_argument("--tiny", action="store_true", help="a setting for tests, of a few seconds")
    return parser


def quiet_training(folder: str, **options: Any) -> "SSMTrainingArguments":
    """Training arguments on the CPU without logs, checkpoints or progress bars, with a cosine schedule."""
    from hf_ssm.training import SSMTrainingArguments

    defaults: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "logging_strategy": "no",
        "save_strategy": "no",
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
    }
    return SSMTrainingArguments(output_dir=folder, **(defaults | options))


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """`0.123 ± 0.004`, or a single value alone."""
    text = f"{statistics.mean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def by_seed(runs: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Runs with names such as "Mamba-3, seed 0", by their names without the seed."""
    several: dict[str, list[Any]] = {}
    for name, run in runs.items():
        several.setdefault(name.rpartition(", seed ")[0], []).append(run)
    return several


def environment() -> dict[str, Any]:
    """Versions and the number of threads, which stand in every file of results."""
    versions = {"hf_ssm": hf_ssm.__version__, **{name: version(name) for name in ("torch", "transformers")}}
    return {"versions": versions, "threads": torch.get_num_threads()}


def write_results(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write results, arguments and versions to the file of `--output`, if given."""
    if args.output is None:
        return
    arguments = {name: value for name, value in vars(args).items() if name not in ("output", "picture")}
    content = {"arguments": arguments, **environment(), **results}
    write_json(args.output, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of results, lists of numbers on one line; an interruption leaves the file that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[-\d.eE,\s]+\]", lambda numbers: " ".join(numbers[0].split()), text)
    scratch.write_text(text + "\n", encoding="utf-8")
    scratch.replace(path)
