"""Checks of a command line that take no import of torch: paths, names of families and tasks, columns."""

import argparse
import glob
from itertools import islice
from pathlib import Path

from hf_ssm.training.arguments import check_choice
from hf_ssm.training.tasks import TASKS
from hf_ssm.utils.families import ALIASES, FAMILIES
from hf_ssm.utils.files import check_not_input
from hf_ssm.utils.hints import closest_name

# Options and arguments of all commands that name what is read.
_MODELS = ("checkpoint", "data.tokenizer", "model", "model.checkpoint", "source", "tokenizer")
_DATA = ("data", "data.dataset", "data.test_file", "data.validation_file", "dataset")
_FILES = ("config", "genome", "input", "regions", "variants")
# Options that name a file to write besides the output.
_OTHER_OUTPUTS = ("by_region", "session", "track")
# Commands that write, beside a model too, files of names that no model has.
_WRITE_BESIDE_MODELS = ("probe", "report")
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
_SUFFIXES = (*_TABLES, ".txt", ".fa", ".fasta", ".fna", ".bed", ".gz")
_COLUMNS = ("sequence_column", "label_column")
# Rows from which a likely column is guessed.
_SHOWN_ROWS = 20


def check_arguments(args: argparse.Namespace) -> None:
    """Raise a `ValueError` or `OSError` for what is wrong whatever the files contain."""
    check_output(args)
    given = {name: value for name, value in vars(args).items() if value is not None}
    for name in _FILES:
        if isinstance(given.get(name), Path):
            _check_file(given[name])
    for name in _DATA:
        if Path(str(given.get(name, ""))).suffix in _SUFFIXES and not glob.has_magic(given[name]):
            _check_file(Path(given[name]).expanduser())
    for name in _MODELS:
        if _is_path(str(given.get(name, ""))):
            from hf_ssm.hub.sources import check_source

            check_source(given[name])
    if "model.family" in given:
        check_choice("family", given["model.family"], (*FAMILIES, *ALIASES), "model.family")
    if "model.task" in given:
        check_choice("task", given["model.task"], TASKS, "model.task")
    source = Path(str(given.get("data.dataset", given.get("input", ""))))
    if source.suffix in _TABLES:
        assigned = dict(text.partition("=")[::2] for text in given.get("assignments", ()))
        places = {name: (assigned.get(f"data.{name}"), given.get(f"data.{name}"), given.get(name)) for name in _COLUMNS}
        _check_columns(source, {name: next(filter(None, values), None) for name, values in places.items()})


def _check_file(path: Path) -> None:
    if not path.exists():
        names = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
        near = closest_name(path.name, names, cutoff=0.6)
        hint = f"did you mean {str(path.with_name(near))!r}?" if near else "check the path"
        raise FileNotFoundError(f"{str(path)!r}: there is no such file; {hint}")


def _is_path(name: str) -> bool:
    """Whether a checkpoint that does not exist can only be a path, which needs no request to the Hub."""
    is_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    return is_local and not Path(name).expanduser().exists()


def _check_columns(path: Path, names: dict[str, str | None]) -> None:
    """Raise `MissingColumns` if a table lacks columns that options name."""
    needed = {argument: name for argument, name in names.items() if name is not None and not name.startswith("[")}
    if needed and path.is_file():
        from hf_ssm.data.columns import check_columns
        from hf_ssm.data.tables import table_rows

        rows = [row for _, row in islice(table_rows(path), _SHOWN_ROWS)]
        if rows:
            check_columns(needed, {name: [row[name] for row in rows] for name in rows[0]}, path.name)


def check_output(args: argparse.Namespace) -> None:
    """Raise `ValueError` where the output of a command would replace what the command reads."""
    name = "--output" if hasattr(args, "output") else "TARGET"
    output = getattr(args, "output", None) or getattr(args, "target", None)
    # A resumed run replaces nothing.
    if isinstance(output, Path) and not getattr(args, "resume", False):
        places = (*_DATA, *_FILES) if args.command in _WRITE_BESIDE_MODELS else (*_DATA, *_FILES, *_MODELS)
        others = {f"--{option.replace('_', '-')}": getattr(args, option, None) for option in _OTHER_OUTPUTS}
        for option, path in {name: output, **others}.items():
            if isinstance(path, Path):
                check_not_input(path, *(getattr(args, place, None) for place in places), name=option)
