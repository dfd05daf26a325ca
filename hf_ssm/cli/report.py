"""`hf-ssm report`."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hf_ssm.cli.checkpoints import (
    OVERWRITE_MEND,
    SEED,
    add_checkpoint_options,
    add_data_options,
    add_output_options,
    check_fit,
    check_positive,
    chosen_rows,
    data_settings,
    file_of,
    load_config,
    load_model,
    public_name,
)

if TYPE_CHECKING:
    from hf_ssm.analysis.report import TheoryReport

_ROWS, _BATCH_SIZE = 256, 32


def add_report(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_data_options(parser, "train", _ROWS, "measure")
    parser.add_argument("--task", metavar="NAME", help="how the data are read; default: by the model's head")
    parser.add_argument(
        "--batch-size", metavar="N", type=int, default=_BATCH_SIZE, help=f"sequences at a time (default {_BATCH_SIZE})"
    )
    add_output_options(parser, "report.json and the pictures")
    parser.add_argument(
        "--update-card",
        action="store_true",
        help='write the section "Theory report" into the README.md of CHECKPOINT, or replace it there, with the curves '
        "of a probe if `hf-ssm probe --output` left them in that folder",
    )


def run_report(args: argparse.Namespace) -> None:
    """`hf-ssm report`: what the theory says of a checkpoint, on the screen, as a folder, and on its card."""
    from hf_ssm.analysis.report import theory_report
    from hf_ssm.training.inputs import load_data

    _check_options(args)
    config = load_config(args.checkpoint)
    settings = data_settings(args, config, "a report", args.task)
    data = load_data(settings)
    rows = chosen_rows(data.splits, args.split, args.rows)
    model = load_model(args.checkpoint, config)
    check_fit(model.config, data.longest)
    starts = range(0, len(rows), args.batch_size)
    parts = [rows.select(range(start, min(start + args.batch_size, len(rows)))) for start in starts]
    report = theory_report(
        model,
        [data.batch(part) for part in parts],
        num_sequences=len(data.splits["train"]),
        movement=_movement(args.checkpoint),
        data={"source": public_name(str(settings.data["dataset"])), "split": args.split, "drawn_with_seed": SEED},
        settings={
            "checkpoint": public_name(args.checkpoint),
            "task": settings.task,
            "rows": args.rows,
            "batch_size": args.batch_size,
            "data": {k: public_name(v) if isinstance(v, str) else v for k, v in settings.data.items()},
        },
    )
    print(report.to_text(), end="")
    written = [] if args.output is None else _write(report, args.output)
    if args.output is not None:
        print(f"\nThe report is in {args.output}: {', '.join(path.name for path in written)}")
    if args.update_card:
        print(f"\nThe report stands in {_update_card(report, Path(args.checkpoint), written)}")


def _check_options(args: argparse.Namespace) -> None:
    """What can be refused before any work."""
    from hf_ssm.hub.card import check_section
    from hf_ssm.training.folder import check_output

    check_positive(args, "rows", "batch_size")
    if args.update_card and not Path(args.checkpoint).is_dir():
        raise ValueError(
            f"--update-card needs a local folder, and {args.checkpoint!r} is none: leave it out, or download the "
            f"checkpoint first (`hf download {args.checkpoint} --local-dir DIR`)"
        )
    if args.update_card:
        check_section(args.checkpoint)
    if args.output is not None:
        check_output(args.output, args.overwrite_output, OVERWRITE_MEND)


def _movement(checkpoint: str) -> dict[str, float]:
    """What the log of the run says of its parameters; empty where there is none."""
    from hf_ssm.analysis.parameter_change import changes_in_log
    from hf_ssm.training.folder import LOG_NAME

    path = file_of(checkpoint, LOG_NAME)
    if path is not None:
        return changes_in_log(json.loads(path.read_text(encoding="utf-8")))
    path = file_of(checkpoint, "trainer_state.json")
    return {} if path is None else changes_in_log(json.loads(path.read_text(encoding="utf-8"))["log_history"])


def _write(report: "TheoryReport", output: Path) -> list[Path]:
    """All files of the report, none of which is put in its place before all are written."""
    from hf_ssm import plotting
    from hf_ssm.analysis.report import FILES, REPORT_NAME

    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".report-") as scratch:
        written = [Path(scratch, REPORT_NAME)]
        report.save_json(written[0])
        if plotting.can_plot():
            written += report.save_pictures(scratch)
        else:
            print(f"No pictures: {plotting.INSTALL_HINT}", file=sys.stderr)
        for name in FILES:
            (output / name).unlink(missing_ok=True)
        return [path.rename(output / path.name) for path in written]


def _update_card(report: "TheoryReport", checkpoint: Path, written: list[Path]) -> Path:
    """The section on the card, with the pictures, and those of a probe, that lie in the folder of the checkpoint."""
    from hf_ssm.hub.card import probe_section, update_section

    section = report.to_markdown()
    for path in written:
        if path.suffix == ".png" and path.resolve().is_relative_to(checkpoint.resolve()):
            place = path.resolve().relative_to(checkpoint.resolve()).as_posix()
            section += f"\n![{path.stem.replace('_', ' ').capitalize()}]({place})\n"
    probe = probe_section(checkpoint)
    return update_section(checkpoint, f"{section}\n## Importance probe\n\n{probe}\n" if probe else section)
