"""`hf-ssm forecast`, and `hf-ssm report` with a model that forecasts numeric series."""

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from hf_ssm.cli.checkpoints import SEED, check_positive, load_config, load_model
from hf_ssm.cli.sequences import write_job
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.series import read_series
from hf_ssm.inference.forecast import Forecaster, forecast_scores, scores_text
from hf_ssm.inference.table_job import check_table_output

# Steps of a window of `hf-ssm report`.
_WINDOW = 512
_COLUMNS = ("value_columns", "id_column", "time_column")
# Options of `hf-ssm report` for sequences.
_OF_ROWS = ("sequence_column", "label_column", "tokenizer", "task", "assignments")


def check_columns_of_series(args: argparse.Namespace) -> None:
    """Refuse the options of `hf-ssm report` for series, for a model of sequences."""
    _refuse(args, _COLUMNS, "is for models that forecast series, and {} is not such a model")


def check_no_sequences(args: argparse.Namespace) -> None:
    """Refuse the options of `hf-ssm report` for sequences, for a forecaster."""
    _refuse(args, _OF_ROWS, "is for sequences, but {} forecasts series")
    if args.split != "train":
        raise ValueError(f"--split {args.split} is for sequences: a table of series has no splits; leave --split out")
    if args.dataset is None:
        raise ValueError(f"{args.checkpoint!r} forecasts series: give a table of series with --dataset")


def window_batches(args: argparse.Namespace, config: Any) -> tuple[list[dict[str, torch.Tensor]], int]:
    """Random windows of one length, `past_values` of a forecaster, and the number of windows that there are.

    Series shorter than a window are left out; of the others, consecutive windows are cut from the end.
    """
    length = min(config.context_length, _WINDOW) if args.max_length is None else args.max_length
    if not 1 <= length <= config.context_length:
        raise ValueError(
            f"--max-length {length} must be from 1 to {config.context_length}, the longest context of "
            f"{args.checkpoint!r}"
        )
    windows = []
    for series in read_series(args.dataset, args.value_columns, args.id_column, args.time_column):
        stops = range(len(series.values), length - 1, -length)
        windows += [series.values[stop - length : stop] for stop in stops]
    if not windows:
        raise ValueError(f"{args.dataset!r} has no series of {length} values: give a smaller --max-length")
    chosen = sorted(random.Random(SEED).sample(range(len(windows)), min(args.rows, len(windows))))
    rows = torch.from_numpy(np.stack([windows[number] for number in chosen])).float()
    return [{"past_values": part} for part in rows.split(args.batch_size)], len(windows)


def _refuse(args: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if getattr(args, name) not in (None, False, []):
            option = "set" if name == "assignments" else name.replace("_", "-")
            raise ValueError(f"--{option} {why.format(repr(args.checkpoint))}: leave --{option} out")


def run_forecast(args: argparse.Namespace) -> None:
    """`hf-ssm forecast`: a table of forecasts, and with --hold-out how they compare with a seasonal-naive forecast."""
    check_positive(args, "max_tokens_per_batch")
    check_table_output(args.output)
    if args.season is not None and not args.hold_out:
        raise ValueError(
            f"--season {args.season} is for the comparison of --hold-out: add --hold-out, or leave --season out"
        )
    config = load_config(args.checkpoint)
    if not config.reads_series:
        line = command("predict", args.checkpoint, args.input, "--output", args.output)
        raise ValueError(f"{args.checkpoint!r} does not forecast series. For sequences: {line}")
    series = read_series(args.input, args.value_columns, args.id_column, args.time_column)
    model = load_model(args.checkpoint, config, **({} if args.dtype == "auto" else {"dtype": args.dtype}))
    options = {name: getattr(args, name) for name in ("horizon", "context", "quantiles", "scale_factor", "hold_out")}
    options |= {"season": args.season or 1, "id_column": args.id_column, "time_column": args.time_column}
    forecaster = Forecaster(model, **options, max_steps_per_batch=args.max_tokens_per_batch)
    write_job(args, forecaster.job(series), model, {**options, "value_columns": args.value_columns})
    print(f"forecasts of {len(series)} series: {args.output}")
    if args.hold_out:
        print(scores_text(forecast_scores(_read(args.output), series, forecaster), forecaster.levels))
        return
    words: list[object] = [] if args.horizon is None else ["--horizon", args.horizon]
    for name in (*_COLUMNS[1:], _COLUMNS[0]):
        value = getattr(args, name)
        values = value if isinstance(value, list) else [value]
        words += [] if value is None else [f"--{name.replace('_', '-')}", *values]
    line = command(
        "forecast", args.checkpoint, args.input, *words, "--hold-out", "--season", "N", "--output", "check.csv"
    )
    suggest((line, "how good forecasts of the last known values would have been"))


def _read(path: Path) -> pd.DataFrame:
    """The table that was written."""
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    return pd.read_csv(path, sep="," if path.suffix == ".csv" else "\t")
