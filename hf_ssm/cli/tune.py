"""`hf-ssm tune`."""

import argparse
import json
import sys
from pathlib import Path

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import can_draw, check_positive
from hf_ssm.cli.summary import command, suggest
from hf_ssm.cli.train import layers_of, resolved
from hf_ssm.training import folder, run
from hf_ssm.training.settings import RunSettings, read_settings_file
from hf_ssm.tuning.bisection import bisect_frequency_scale, largest_frequency_scale
from hf_ssm.tuning.diagnosis import diagnose
from hf_ssm.tuning.plan import DEFAULT
from hf_ssm.tuning.report import PICTURE_NAME, table_lines, write_report
from hf_ssm.tuning.runs import Outcome, check_validation
from hf_ssm.tuning.sweep import expand, merged
from hf_ssm.tuning.tuner import TuningResult, tune
from hf_ssm.utils.files import staged_files, write_text_atomically

BASE_NAME, DIAGNOSIS_NAME = "default_config.yaml", "diagnosis.json"
ALPHA_NAME = "alpha"
_PURPOSE = "make six runs, and compare the best one with the default"
_REMEDY = "choose another folder, or continue its runs (--resume)"


def run_tune(args: argparse.Namespace) -> None:
    """`hf-ssm tune`: diagnosis, six runs, comparison with the default, settings that remain."""
    check_positive(args, "jobs")
    if args.seeds < 2:
        raise ValueError(f"--seeds must be at least 2, got {args.seeds}: one seed gives no standard error")
    settings = _settings(args)
    if args.bisect_alpha:
        largest_frequency_scale(settings)  # refuses families without α before any run
    if args.output is not None:
        with folder.locked(args.output):
            _tune(args, settings)
        return
    if not args.diagnose:
        raise ValueError("--output is missing: give a folder for the runs, or --diagnose for the diagnosis only")
    print(*diagnose(settings).lines(), sep="\n")
    words = [word for word in args.words if word != "--diagnose"]
    suggest((command(*words, "--output", "runs/tuning"), _PURPOSE), file=sys.stdout)


def _tune(args: argparse.Namespace, settings: RunSettings) -> None:
    if not args.resume:
        folder.check_output(args.output, False, _REMEDY)
    prepared = run.plan(settings, args.output, choose=True)
    if not args.diagnose:
        check_validation(settings, prepared.data.splits)
    settings = prepared.settings
    del prepared  # the runs load data and model themselves
    diagnosis = diagnose(settings)
    print(*diagnosis.lines(), "", sep="\n", flush=True)
    write_text_atomically(args.output / BASE_NAME, settings.to_yaml())
    text = json.dumps(diagnosis.to_dict(), indent=1, ensure_ascii=False)
    write_text_atomically(args.output / DIAGNOSIS_NAME, f"{text}\n")
    if args.diagnose:
        suggest((command("tune", "--resume", "--output", args.output), _PURPOSE), file=sys.stdout)
        return
    result = tune(settings, args.output, seeds=args.seeds, jobs=args.jobs, diagnosis=diagnosis, report=_print_outcome)
    write_report(result, args.output)
    print("", *table_lines(result), sep="\n")
    with plotting.also_svg(args.svg):
        _draw(result, args.output)
    kept = "the default" if result.winner == DEFAULT else f"the settings of {result.winner}"
    if args.bisect_alpha:
        kept += f" and α = {_bisect(args, result.settings):.4g}"
    train = command("train", "--config", args.output / folder.SETTINGS_NAME, "--output", "runs/tuned")
    suggest((train, f"train with {kept}"), file=sys.stdout)


def _bisect(args: argparse.Namespace, settings: RunSettings) -> float:
    """Choose α for the settings that remain, and store it with them."""
    print("\nBisection of α:", flush=True)
    output = args.output / ALPHA_NAME
    search = bisect_frequency_scale(settings, output, seeds=args.seeds, jobs=args.jobs, report=_print_outcome)
    print("", *search.lines(), sep="\n")
    write_text_atomically(output / "results.json", json.dumps(search.to_dict(), indent=1, ensure_ascii=False) + "\n")
    write_text_atomically(args.output / folder.SETTINGS_NAME, search.settings.to_yaml())
    return search.adopted


def _settings(args: argparse.Namespace) -> RunSettings:
    stored = {}
    if args.resume:
        if args.output is None or not (args.output / BASE_NAME).is_file():
            raise ValueError(
                f"--resume: --output must be the folder of an interrupted `hf-ssm tune`, got {args.output}"
            )
        stored = read_settings_file(args.output / BASE_NAME)
    lists = expand(merged(stored, *layers_of(args)))[0].values
    if lists:
        raise ValueError(
            f"{', '.join(lists)}: a list of values stands for several runs, but tuning starts from one run: give "
            "one value"
        )
    return resolved(args, stored)


def _print_outcome(name: str, outcome: Outcome) -> None:
    what = "diverged" if outcome.problem else f"{outcome.metric} {outcome.score:.4f}"
    note = ", no better than a constant prediction" if outcome.failed and not outcome.problem else ""
    print(f"{name}: {what}{note} ({outcome.seconds:.0f} s)", flush=True)


def _draw(result: TuningResult, output: Path) -> None:
    if not can_draw(PICTURE_NAME):
        return
    runs = {
        trial.candidate.name: [run.score for run in (trial.outcome, *trial.fresh) if run is not None]
        for trial in result.trials
        if trial.outcome is not None
    }
    with staged_files(output) as scratch:
        plotting.plot_tuning(
            runs, scratch / PICTURE_NAME, f"Tuning in {output.name}", metric=result.metric, chance=result.chance
        )
