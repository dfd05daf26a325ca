"""`hf-ssm benchmark`."""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from hf_ssm.cli.sequences import is_own_model, load_sequence_model
from hf_ssm.hub.sources import check_source
from hf_ssm.inference.parts import file_facts
from hf_ssm.suites.data import Limits
from hf_ssm.suites.reading import read_suite
from hf_ssm.suites.report import RESULTS_NAME, table_lines, write_results
from hf_ssm.suites.runner import Contender, Run, run_suite
from hf_ssm.suites.task import Suite
from hf_ssm.training import folder
from hf_ssm.training.settings import parse_assignments, read_settings_file, resolve
from hf_ssm.utils.files import check_not_input

_FILES_OF_MODELS = (".json", ".safetensors", ".bin", ".txt", ".model")
# Settings of the data of a settings file that also apply to the data of a task.
_DATA_SETTINGS = ("tokenizer", "max_length", "reverse_complement", "unknown_bases", "num_proc")


def run_benchmark(args: argparse.Namespace) -> None:
    """`hf-ssm benchmark`: models and baselines on the tasks of a suite, in one table."""
    suite = read_suite(args.suite).choose(args.tasks)
    if args.list:
        _print_tasks(suite)
        return
    if args.output is None:
        raise ValueError("--output is missing: give a folder for the table, or list the tasks with --list")
    for name in ("max_rows", "max_length", "seeds", "max_tokens_per_batch"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {value}")
    for name in ("genome", "data"):
        path = getattr(args, name)
        if path is not None and not path.exists():
            raise FileNotFoundError(f"--{name} {str(path)!r}: there is no such path")
    check_not_input(args.output, *args.models, args.genome, args.data)
    contenders = [_contender(name, args) for name in args.models]
    limits = Limits(args.max_rows, args.max_length)
    with folder.locked(args.output):
        runs = run_suite(
            suite,
            contenders,
            args.output,
            seeds=args.seeds,
            with_random=not args.without_random,
            genome=args.genome,
            mirror=args.data,
            limits=limits,
            both_strands=args.both_strands,
            report=_report,
        )
        entries = write_results(suite, runs, args.output, limits)
    print(*table_lines(runs), sep="\n")
    print(f"\nAll metrics: {args.output / RESULTS_NAME}", file=sys.stderr)
    for path in entries:
        print(f"Evaluation results for the repository of the model: {path.parent}", file=sys.stderr)
    if failed := [run for run in runs if run.problem]:
        raise ValueError(
            f"{len(failed)} of {len(runs)} results are missing. The cause of the first one: {failed[0].problem}"
        )


def _contender(name: str, args: argparse.Namespace) -> Contender:
    """The model of an argument; a wrong one is an error before anything is computed."""
    assigned = parse_assignments(args.assignments)
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json") and not path.is_dir():
        settings = _merged(read_settings_file(path), assigned)
        return Contender(name, settings=settings, facts=name)
    check_source(name)
    if args.fine_tune:
        settings = _merged({"model": {"checkpoint": name}, "data": {"tokenizer": args.tokenizer}}, assigned)
    elif assigned:
        raise ValueError("--set changes the settings of training runs: give a settings file as MODEL, or --fine-tune")
    own = argparse.Namespace(**{**vars(args), "checkpoint": name})
    if args.fine_tune and not is_own_model(name):
        raise ValueError(
            f"--fine-tune trains models of hf_ssm only, and {name!r} is not one of them: leave --fine-tune out"
        )
    load = partial(load_sequence_model, own)
    return Contender(name, load, settings if args.fine_tune else None, _facts(name, args.tokenizer))


def _facts(checkpoint: str, tokenizer: str | None) -> dict[str, Any]:
    """What identifies a checkpoint and its tokenizer: the files of folders, and the commit of the Hub."""
    folders = [Path(name) for name in (checkpoint, tokenizer) if name is not None and Path(name).is_dir()]
    # The weights, not what a run has left beside them.
    files = [path for place in folders for path in sorted(place.iterdir()) if path.suffix in _FILES_OF_MODELS]
    commit = PreTrainedConfig.get_config_dict(checkpoint)[0].get("_commit_hash")
    return {"names": [checkpoint, tokenizer], "commit": commit, "files": [file_facts(path) for path in files]}


def _merged(stored: dict[str, dict[str, Any]], assigned: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Settings of a file and of options, without those of other data than the task's, as far as they are valid."""
    data = {key: value for key, value in stored.get("data", {}).items() if key in _DATA_SETTINGS and value is not None}
    if wrong := [key for key in assigned.get("data", {}) if key not in _DATA_SETTINGS]:
        raise ValueError(
            f"--set data.{wrong[0]}: the tasks define the data; the settings that you can change are "
            f"{', '.join(_DATA_SETTINGS)}"
        )
    sections = {"model": dict(stored.get("model", {})), "data": data, "training": dict(stored.get("training", {}))}
    for section, values in assigned.items():
        sections.setdefault(section, {}).update(values)
    settings = resolve({**sections, "data": {**sections["data"], "dataset": "task.csv"}})
    # It identifies a measurement, so that those of an earlier default are not taken for those of this one.
    sections["training"].setdefault("learning_rate", settings.training["learning_rate"])
    return sections


def _print_tasks(suite: Suite) -> None:
    width = max(len(task.name) for task in suite.tasks)
    for task in suite.tasks:
        where = "".join(f", {column}={value}" for column, value in task.where.items())
        config = "" if task.config is None else f", {task.config}"
        print(f"{task.name:<{width}}  {task.metric:<9} {task.kind:<15} {task.dataset}{config}{where}")
    print(f"Source: {suite.source}" + (f"\nNeeds: {suite.needs}" if suite.needs else ""))


def _report(run: Run) -> None:
    value = f"{run.metric} {run.value:.4f} ({run.seconds:.0f} s)" if run.results else run.problem
    print(f"{run.task}, {run.model}, {run.how}: {value}", file=sys.stderr, flush=True)
