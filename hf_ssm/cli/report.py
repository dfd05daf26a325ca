"""`hf-ssm report`."""

import argparse
import json
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from hf_ssm import plotting
from hf_ssm.analysis.parameter_change import changes_in_log
from hf_ssm.analysis.report import FILES, REPORT_NAME, TheoryReport, theory_report
from hf_ssm.cli.checkpoints import (
    SEED,
    can_draw,
    check_fit,
    check_output_options,
    check_positive,
    chosen_rows,
    data_settings,
    file_of,
    load_config,
    load_model,
    public_name,
    unit_of,
)
from hf_ssm.cli.forecast import check_columns_of_series, check_no_sequences, window_batches
from hf_ssm.cli.summary import command, suggest
from hf_ssm.hub.card import check_section, probe_section, update_section
from hf_ssm.training import inputs
from hf_ssm.training.folder import LOG_NAME, locked
from hf_ssm.utils.files import staged_files


def run_report(args: argparse.Namespace) -> None:
    """`hf-ssm report`: print the theory report of a checkpoint, and write it to a folder and the card."""
    with nullcontext() if args.output is None else locked(args.output):
        _run_report(args)


def _run_report(args: argparse.Namespace) -> None:
    check_positive(args, "rows", "batch_size")
    check_output_options(args)
    if args.update_card:
        _check_card(args.checkpoint)
    config = load_config(args.checkpoint)
    report, unit = (_of_series if config.reads_series else _of_sequences)(args, config)
    print(report.to_text(), end="")
    written = [] if args.output is None else _write(report, args.output, unit, args.svg)
    if args.output is not None:
        print(f"\nThe report is in {args.output}: {', '.join(path.name for path in written)}")
    if args.update_card:
        print(f"\nThe report is a section of {_update_card(report, Path(args.checkpoint), written)}")
    if args.output is None:
        suggest((command("report", *args.words[1:], "--output", "report"), "the same report as a file, with figures"))
    elif args.update_card:
        suggest((command("push", args.checkpoint, "USER/NAME"), "share the model with its report"))


def _of_series(args: argparse.Namespace, config: Any) -> tuple[TheoryReport, str]:
    """The report of a forecaster on windows of series, and the unit of a position."""
    check_no_sequences(args)
    model = load_model(args.checkpoint, config)
    if not type(model).__name__.endswith("ForPrediction"):
        raise ValueError(
            f"{args.checkpoint!r} holds a backbone without the normalisation of series: give a model that forecasts"
        )
    # τ is defined for the steps that the model was trained with.
    model.config.scale_factor = 1.0
    batches, count = window_batches(args, config)
    report = theory_report(
        model,
        batches,
        num_sequences=count,
        progress=True,
        parameter_change=_movement(args.checkpoint),
        data={"source": public_name(args.dataset), "drawn_with_seed": SEED},
        settings={
            "checkpoint": public_name(args.checkpoint),
            "rows": args.rows,
            "batch_size": args.batch_size,
            "max_length": batches[0]["past_values"].shape[1],
            "columns": [args.value_columns, args.id_column, args.time_column],
        },
    )
    return report, "step"


def _of_sequences(args: argparse.Namespace, config: Any) -> tuple[TheoryReport, str]:
    """The report on sequences, and the unit of a position."""
    check_columns_of_series(args)
    settings = data_settings(args, args.checkpoint, config, "a report", args.task)
    data = inputs.load_data(settings)
    rows = chosen_rows(data.splits, args.split, args.rows)
    model = load_model(args.checkpoint, config)
    check_fit(model.config, data.longest)
    report = theory_report(
        model,
        data.batches(rows, args.batch_size),
        num_sequences=data.num_rows["train"],
        special_tokens=() if data.tokenizer is None else data.tokenizer.all_special_ids,
        progress=True,
        parameter_change=_movement(args.checkpoint),
        data={"source": public_name(settings.data["dataset"]), "split": args.split, "drawn_with_seed": SEED},
        settings={
            "checkpoint": public_name(args.checkpoint),
            "task": settings.task,
            "rows": args.rows,
            "batch_size": args.batch_size,
            "data": {k: public_name(v) if isinstance(v, str) else v for k, v in settings.data.items()},
        },
    )
    return report, unit_of(data.tokenizer)


def _check_card(checkpoint: str) -> None:
    if not Path(checkpoint).is_dir():
        raise ValueError(
            f"--update-card needs a local folder, and {checkpoint!r} is not a local folder: leave --update-card "
            f"out, or download the checkpoint first (`hf download {shlex.quote(checkpoint)} --local-dir DIR`)"
        )
    check_section(checkpoint)


def _movement(checkpoint: str) -> dict[str, float]:
    """Change of the parameters from the log of the run; empty without a log."""
    path = file_of(checkpoint, LOG_NAME)
    path = file_of(checkpoint, "trainer_state.json") if path is None else path
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return changes_in_log(content if isinstance(content, list) else content["log_history"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} is not the log of a run: {error}; remove or repair this file") from error


def _write(report: TheoryReport, output: Path, unit: str, svg: bool) -> list[Path]:
    """Write all files of the report and return their paths."""
    with staged_files(output, replaces=FILES) as scratch, plotting.also_svg(svg):
        report.save_json(scratch / REPORT_NAME)
        if can_draw("pictures"):
            report.save_pictures(scratch, unit)
        names = sorted((path.name for path in scratch.iterdir()), key=lambda name: (not name.endswith(".json"), name))
    return [output / name for name in names]


def _update_card(report: TheoryReport, checkpoint: Path, written: list[Path]) -> Path:
    """Write the section of the card, with the plots of report and probe in the folder of the checkpoint."""
    section = report.to_markdown()
    for path in written:
        if path.suffix == ".png" and path.resolve().is_relative_to(checkpoint.resolve()):
            place = path.resolve().relative_to(checkpoint.resolve()).as_posix()
            section += f"\n![{path.stem.replace('_', ' ').capitalize()}]({place})\n"
    probe = probe_section(checkpoint)
    return update_section(checkpoint, f"{section}\n## Importance probe\n\n{probe}\n" if probe else section)
