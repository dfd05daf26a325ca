"""`hf-ssm report`."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ssm.cli.checkpoints import (
    OVERWRITE_MEND,
    SEED,
    check_fit,
    check_tokenizer,
    chosen_rows,
    data_assignments,
    file_of,
    load_config,
    load_model,
    public_name,
)

if TYPE_CHECKING:
    from hf_ssm.analysis.report import TheoryReport
    from hf_ssm.training.settings import RunSettings

# Settings of a run that say how any data are read, not which data.
_OF_ANY_DATA = ("max_length",)
_TASKS = {
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
    "ForSignalRegression": "signal-regression",
    "ForCausalLM": "causal-lm",
    "ForMaskedLM": "masked-lm",
}
_ROWS, _BATCH_SIZE = 256, 32


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id of a model of hf_ssm")
    parser.add_argument(
        "--dataset", metavar="SOURCE", help="as in `hf-ssm train`; default: that of CHECKPOINT/train_config.yaml"
    )
    parser.add_argument("--tokenizer", metavar="NAME", help="as in `hf-ssm train`; default: that of CHECKPOINT")
    parser.add_argument("--max-length", metavar="TOKENS", type=int, help="cut longer sequences")
    parser.add_argument("--task", metavar="NAME", help="how the data are read; default: by the model's head")
    parser.add_argument("--split", metavar="NAME", default="train", help="train (default), validation or test")
    parser.add_argument(
        "--rows", metavar="N", type=int, default=_ROWS, help=f"sequences to measure, drawn by chance (default {_ROWS})"
    )
    parser.add_argument(
        "--batch-size", metavar="N", type=int, default=_BATCH_SIZE, help=f"sequences at a time (default {_BATCH_SIZE})"
    )
    parser.add_argument(
        "--set",
        metavar="data.KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="any other data setting",
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="folder for report.json and the pictures")
    parser.add_argument("--overwrite-output", action="store_true", help="replace the report in --output")
    parser.add_argument(
        "--update-card",
        action="store_true",
        help='write the section "Theory report" into the README.md of CHECKPOINT, or replace it there',
    )


def run_report(args: argparse.Namespace) -> None:
    """`hf-ssm report`: what the theory says of a checkpoint, on the screen, as a folder, and on its card."""
    from hf_ssm.analysis.report import theory_report
    from hf_ssm.training.inputs import load_data

    _check_options(args)
    config = load_config(args.checkpoint)
    settings = _settings(args, config)
    data = load_data(settings)
    rows = chosen_rows(data, args.split, args.rows)
    model = load_model(args.checkpoint, config)
    check_fit(model.config, data)
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

    for name in ("rows", "batch_size"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {getattr(args, name)}")
    if args.update_card and not Path(args.checkpoint).is_dir():
        raise ValueError(
            f"--update-card needs a local folder, and {args.checkpoint!r} is none: leave it out, or download the "
            f"checkpoint first (`hf download {args.checkpoint} --local-dir DIR`)"
        )
    if args.update_card:
        check_section(args.checkpoint)
    if args.output is not None:
        check_output(args.output, args.overwrite_output, OVERWRITE_MEND)


def _settings(args: argparse.Namespace, config: Any) -> "RunSettings":
    """The data of the run that made the checkpoint, of the options and the assignments, the later winning."""
    from hf_ssm.training import folder
    from hf_ssm.training import settings as run_settings

    path = file_of(args.checkpoint, folder.SETTINGS_NAME)
    run = {} if path is None else run_settings.read_settings_file(path)
    stored = dict(run.get("data") or {})
    if args.dataset is not None and args.dataset != stored.get("dataset"):
        stored = {key: value for key, value in stored.items() if key in _OF_ANY_DATA}
    if not args.dataset and not stored.get("dataset"):
        raise ValueError(f"{args.checkpoint!r} has no {folder.SETTINGS_NAME} that names its data: give --dataset")
    # The checkpoint brings its own of these.
    stored = {key: value for key, value in stored.items() if key not in ("tokenizer", "normalization")}
    task = args.task or (run.get("model") or {}).get("task") or _task_of_head(config)
    given = {"dataset": args.dataset, "tokenizer": args.tokenizer, "max_length": args.max_length}
    options = {key: value for key, value in given.items() if value is not None}
    assignments = data_assignments(args.assignments, "a report")
    model = {"checkpoint": args.checkpoint, "task": task}
    resolved = run_settings.resolve({"data": stored}, {"model": model, "data": options}, {"data": assignments})
    check_tokenizer(args.checkpoint, config, resolved)
    return resolved


def _task_of_head(config: Any) -> str:
    name = (config.architectures or [""])[0]
    bare = "causal-lm" if config.num_input_channels is None else "sequence-classification"
    return next((task for head, task in _TASKS.items() if name.endswith(head)), bare)


def _movement(checkpoint: str) -> dict[str, float]:
    """What the log of the run says of its parameters; empty where there is none."""
    from hf_ssm.analysis.movement import movement_of_log
    from hf_ssm.training.folder import LOG_NAME

    path = file_of(checkpoint, LOG_NAME)
    if path is not None:
        return movement_of_log(json.loads(path.read_text(encoding="utf-8")))
    path = file_of(checkpoint, "trainer_state.json")
    return {} if path is None else movement_of_log(json.loads(path.read_text(encoding="utf-8"))["log_history"])


def _write(report: "TheoryReport", output: Path) -> list[Path]:
    """All files of the report, none of which is put in its place before all are written."""
    from hf_ssm.analysis import pictures
    from hf_ssm.analysis.report import FILES, REPORT_NAME

    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".report-") as scratch:
        written = [Path(scratch, REPORT_NAME)]
        report.save_json(written[0])
        if pictures.can_plot():
            written += report.save_pictures(scratch)
        else:
            print(f"No pictures: {pictures.INSTALL_HINT}", file=sys.stderr)
        for name in FILES:
            (output / name).unlink(missing_ok=True)
        return [path.rename(output / path.name) for path in written]


def _update_card(report: "TheoryReport", checkpoint: Path, written: list[Path]) -> Path:
    """The section on the card, with the pictures where they lie within the folder of the checkpoint."""
    from hf_ssm.hub.card import update_section

    section = report.to_markdown()
    for path in written:
        if path.suffix == ".png" and path.resolve().is_relative_to(checkpoint.resolve()):
            place = path.resolve().relative_to(checkpoint.resolve()).as_posix()
            section += f"\n![{path.stem.replace('_', ' ').capitalize()}]({place})\n"
    return update_section(checkpoint, section)
