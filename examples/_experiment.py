"""What the experiment scripts share: their common options, the table beside the paper's, the result file."""

import argparse
import json
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import hf_ssm


def experiment_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every experiment has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    parser.add_argument("--tiny", action="store_true", help="a setting for tests: seconds, no meaning")
    return parser


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """`0.123 ± 0.004`, or the value alone where there is one."""
    text = f"{statistics.mean(values):.{digits}f}"
    return f"{text} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else text


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A Markdown table on the screen."""
    print("| " + " | ".join(header) + " |")
    print("| " + " | ".join("---" for _ in header) + " |")
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def write_results(args: argparse.Namespace, results: dict[str, Any]) -> None:
    """The results, with the arguments and versions they came from, where `--output` says."""
    if args.output is None:
        return
    arguments = {name: value for name, value in vars(args).items() if name not in ("output", "picture")}
    versions = {"hf_ssm": hf_ssm.__version__, **{name: version(name) for name in ("torch", "transformers")}}
    content = {"arguments": arguments, "versions": versions, "threads": torch.get_num_threads(), **results}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
