"""Options of the commands, without any import of the models: those that several commands share are here.

Names of choices are repeated from the packages that implement them; tests/test_cli_help.py compares them.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

SVG_HELP = "also write each figure as SVG"


def add_sequence_column(add: Callable[..., object]) -> None:
    """The option of a command that reads a table with a checkpoint."""
    default = "as in the training of the checkpoint, otherwise sequence, seq or text"
    add("--sequence-column", metavar="NAME", help=f"column of the sequences (default: {default})")


def add_series_columns(add: Callable[..., object]) -> None:
    """The columns of a table of numeric series, for models that forecast."""
    columns = "columns of values; each column is a series (default: all columns of numbers)"
    add("--value-columns", metavar="NAME", nargs="+", help=columns)
    add(
        "--id-column",
        metavar="NAME",
        help="column that names the series of each row (default: all rows are one series)",
    )
    add(
        "--time-column",
        metavar="NAME",
        help="column of dates or numbers by which rows are sorted, and which `hf-ssm forecast` continues",
    )


def add_data_options(parser: argparse.ArgumentParser, split: str, rows: int, purpose: str) -> None:
    """The checkpoint, and the rows to read, with the defaults of --split and --rows.

    Args:
        parser: The parser of the command.
        split: Default of --split.
        rows: Default of --rows.
        purpose: Use of the rows.
    """
    splits = " or ".join(name for name in ("train", "validation", "test") if name != split)
    add = parser.add_argument_group("data").add_argument
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model of hf_ssm")
    source = "as in `hf-ssm train`; default: dataset of CHECKPOINT/train_config.yaml"
    add("--dataset", "--dataset-name", metavar="SOURCE", help=source)
    add_sequence_column(add)
    labels = "column of the labels (default: as in the training, otherwise label, labels, class or target)"
    add("--label-column", metavar="NAME", help=labels)
    add("--tokenizer", metavar="NAME", help="as in `hf-ssm train`; default: tokenizer of the checkpoint, if any")
    add(
        "--max-length",
        "--max-seq-length",
        metavar="TOKENS",
        type=int,
        help="cut longer sequences to this number of tokens",
    )
    add("--split", metavar="NAME", default=split, help=f"{split} (default), {splits}")
    add(
        "--rows",
        metavar="N",
        type=int,
        default=rows,
        help=f"number of random sequences to {purpose} (default: %(default)s)",
    )
    add(
        "--set",
        metavar="data.KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="another setting of the data (see `hf-ssm train --help-settings data`)",
    )


def add_output_options(parser: argparse.ArgumentParser, files: str, *, required: bool = False) -> None:
    """The output folder, which holds figures too; `files` describes its contents."""
    add = parser.add_argument_group("output").add_argument
    add("--output", "--output-dir", metavar="DIR", type=Path, required=required, help=f"folder for {files}")
    replace = "replace the files of an earlier run in --output"
    add("--overwrite-output", "--overwrite-output-dir", action="store_true", help=replace)
    add("--svg", action="store_true", help=SVG_HELP)


def add_model_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The checkpoint, which may be left out if it is not `required`, and how it is run."""
    group = parser.add_argument_group("model")
    add_model(parser, group, required)
    add_batch_limit(group.add_argument)


def add_model(parser: argparse.ArgumentParser, group: argparse._ActionsContainer, required: bool = True) -> None:
    """The checkpoint of hf_ssm or transformers, and in a group of options how it is loaded."""
    what = "folder or Hub id of a model of hf_ssm or transformers"
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs=None if required else "?", help=what)
    add = group.add_argument
    add("--tokenizer", metavar="NAME", help="dna, byte, a folder or a Hub id; default: tokenizer of the checkpoint")
    add(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that comes with CHECKPOINT, if there is any",
    )


def add_batch_limit(add: Callable[..., object]) -> None:
    """The size of a batch."""
    most = "largest number of tokens in one forward pass (default: %(default)s)"
    add("--max-tokens-per-batch", metavar="N", type=int, default=16384, help=most)


def add_table_options(parser: argparse.ArgumentParser, formats: str, required: bool = True) -> None:
    """The output file.

    Args:
        parser: The parser of the command.
        formats: Suffixes of the file.
        required: Whether the option is required; if not, the command shows the first rows without the option.
    """
    add = parser.add_argument_group("output").add_argument
    without = "" if required else ". Without --output, the first ten rows are printed"
    what = f"file for the result ({formats}); an interrupted command continues where it stopped{without}"
    add("--output", metavar="FILE", type=Path, required=required, help=what)
    replace = "replace the file of --output and the parts of an interrupted command"
    add("--overwrite-output", action="store_true", help=replace)
