"""Shared by the experiment scripts: options, training arguments, tables and result files."""

import argparse
import json
import re
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from transformers import PrinterCallback

import hf_ssm

if TYPE_CHECKING:
    from hf_ssm.training import SSMTrainingArguments
    from hf_ssm.training.run import RunResult


class _Markdown(argparse.Action):
    """Print the tables of a file of results and end, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: Any = None) -> None:
        self.const(json.loads(values.read_text(encoding="utf-8")))
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Replace settings by those of `--tiny`, or print the cost of the full run before it starts."""

    tiny: Mapping[str, Any]
    cost: str

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        options = super().parse_args(args, namespace)
        if options.tiny:
            vars(options).update(self.tiny)
        elif self.cost:
            print(f"Cost with the default settings: {self.cost}.\n", flush=True)
        return options


def experiment_parser(
    description: str,
    show: Callable[[dict[str, Any]], object] | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    tiny: Mapping[str, Any] = MappingProxyType({}),
    cost: str = "",
) -> argparse.ArgumentParser:
    """Build a parser with the options of all experiments, and an option for each setting.

    Args:
        description: Docstring of the script.
        show: Prints the tables of a file of results, for `--markdown`.
        settings: Name and default of each setting, or a pair of default and help. A list becomes an option of several
            values, which a list of names limits to these names.
        tiny: Values of settings with `--tiny`.
        cost: Time and machine of a run with the default settings, printed before it starts.
    """
    parser = _Parser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.tiny, parser.cost = tiny, cost
    if show is not None:
        what = "print the tables of a file of --output, and end"
        add = parser.add_argument
        add("--markdown", metavar="FILE", type=Path, action=_Markdown, const=show, default=argparse.SUPPRESS, help=what)
    parser.add_argument("--output", type=Path, help="write the results to this JSON file")
    parser.add_argument("--tiny", action="store_true", help="a setting for tests, of a few seconds")
    for name, value in settings.items():
        default, what = value if isinstance(value, tuple) else (value, "")
        options: dict[str, Any] = {"default": default, "help": f"{what} (default: %(default)s)".strip()}
        if isinstance(default, list):
            options |= {"nargs": "+", "type": type(default[0])}
            options |= {"choices": default} if isinstance(default[0], str) else {}
        else:
            options["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
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
        "dataloader_pin_memory": False,
    }
    return SSMTrainingArguments(output_dir=folder, **(defaults | options))


def fit(model: Any, rows: Any, trainer_options: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Any:
    """Train a model in place with `quiet_training(**options)`; return its trainer.

    Args:
        model: The model.
        rows: Training rows.
        trainer_options: Further arguments of the trainer; `trainer_class` is another class than `SSMTrainer`.
        options: Training arguments.
    """
    from hf_ssm.training import SSMTrainer

    others = dict(trainer_options)
    trainer_class = others.pop("trainer_class", SSMTrainer)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(model=model, args=quiet_training(folder, **options), train_dataset=rows, **others)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    model.eval()
    return trainer


def fit_stream(
    model: Any,
    draw: Callable[[float], Mapping[str, Any]],
    steps: int,
    learning_rate: float,
    cooldown: float,
    betas: tuple[float, float] = (0.9, 0.999),
) -> None:
    """Train a model in place on batches that `draw` makes from the share of the steps that are done.

    AdamW without weight decay, gradients clipped to the norm 1; the rate rises over the first twentieth of the steps
    and falls to 0 over the last share `cooldown`.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=betas, weight_decay=0.0)
    model.train()
    for step in range(steps):
        done = step / steps
        optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, 20 * done, (1 - done) / cooldown)
        model(**draw(done)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def train_settings(*sections: Mapping[str, Any]) -> "RunResult":
    """Train as `hf-ssm train` does with these settings, in a temporary folder."""
    from hf_ssm.training.run import train
    from hf_ssm.training.settings import resolve

    with tempfile.TemporaryDirectory() as folder:
        return train(resolve(*sections), Path(folder))


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
    arguments = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if name not in ("output", "picture")
    }
    write_json(args.output, {"arguments": arguments, **environment(), **results})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file of results, lists of numbers on one line; an interruption leaves the file that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".part")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = re.sub(r"\[[-\d.eE,\s]+\]", lambda numbers: " ".join(numbers[0].split()), text)
    scratch.write_text(text + "\n", encoding="utf-8")
    scratch.replace(path)
