"""`hf-ssm probe`."""

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import (
    SEED,
    check_positive,
    data_settings,
    data_words,
    load_config,
    load_model,
    public_name,
    warn_of_chance,
)
from hf_ssm.cli.options.analysis import LABEL
from hf_ssm.cli.probe_null import CHOSEN, RANDOM, compared_curves, excess, null_models
from hf_ssm.cli.probe_rows import (
    Example,
    Rows,
    annotations_of,
    background_of,
    check_target,
    chosen_examples,
    is_small_alphabet,
    load_intervals,
    load_rows,
    replacement_note,
    wants_labels,
)
from hf_ssm.cli.probe_tables import (
    BEDGRAPH_NAME,
    TOKENS_NAME,
    TRACK_NAME,
    bedgraph_lines,
    token_rows,
    track_entries,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.genome import Genome
from hf_ssm.data.tracks import import_pybigwig, write_session, write_track
from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults
from hf_ssm.probes.evidence import SHARE
from hf_ssm.tokenization import reads_only_dna
from hf_ssm.training import launch
from hf_ssm.training.folder import check_output
from hf_ssm.training.inputs import load_tokenizer
from hf_ssm.training.settings import RunSettings
from hf_ssm.utils.files import staged_files

RESULTS_NAME, JSON_NAME, CURVE_NAME = "probe.safetensors", "results.json", "curve.png"
SEQUENCES_NAME, SESSION_NAME = "sequences.png", "session.xml"
# Files of an earlier run that this one replaces or deletes.
_FILES = (
    *(JSON_NAME, TOKENS_NAME, BEDGRAPH_NAME, CURVE_NAME, "curve.svg", SEQUENCES_NAME, "sequences.svg"),
    *("strip_row*.png", "strip_row*.svg", "text_row*.html", "logo_row*.png", "logo_row*.svg"),
    *(TRACK_NAME, SESSION_NAME),
)
# Options for some methods only, which are an error with others.
_OPTIONS_OF_METHODS = {
    "steps": ("integrated_gradients",),
    "alphabet": ("in_silico_mutagenesis",),
}
_THRESHOLDS = (0.9, 0.5)
# The numbers of the table, and the width of a column.
_COLUMNS = (
    *("probability", "probability_all_masked", "area", "sufficiency", "sufficiency_of_random_sets"),
    *("probability_all_drawn", "necessity", "tokens_kept", "tokens", "evaluations"),
)
_WIDTH = 16
# Sequences with a plot of their own, and with a line in the table.
_PICTURED, _LISTED = 4, 10
# Longer sequences are not in the figure of several sequences.
_MOST_IN_FIGURE = 600
_OUTPUT_REMEDY = (
    "choose another folder, give the folder of an interrupted run of this command, or replace this folder "
    "(--overwrite-output)"
)


def run_probe(args: argparse.Namespace) -> None:
    """`hf-ssm probe`: mask the tokens in ascending order of importance, and write order and probabilities."""
    config = _checked_config(args)
    settings = data_settings(args, args.checkpoint, config, "a probe")
    launch.begin(settings)
    with launch.locked(args.output):
        _run_probe(args, config, settings)


def _run_probe(args: argparse.Namespace, config: Any, settings: RunSettings) -> None:
    is_continued = any(args.output.glob(f"{RESULTS_NAME}*"))
    launch.on_main(lambda: check_output(args.output, args.overwrite_output or is_continued, _OUTPUT_REMEDY))
    model, tokenizer = load_model(args.checkpoint, config), load_tokenizer(settings)
    check_target(args, model)
    if args.genome is None:
        data = load_rows(settings, args.split, labelled=wants_labels(args, model))
    else:
        import_pybigwig()
        data = load_intervals(args, settings, model)
    replacement = args.replace or ("composition" if is_small_alphabet(tokenizer) else "background")
    background = background_of(data, tokenizer, model.config.vocab_size) if replacement == "background" else None
    make = partial(
        MaskingProbe,
        tokenizer=tokenizer,
        replace=replacement,
        strategy=args.method,
        **_given(args),
        draws=args.draws,
        background=background,
        max_tokens_per_batch=args.max_tokens_per_batch,
    )
    probe = make(model=model, minimum_probability=args.minimum_probability, allow_wrong=args.allow_wrong)
    examples, left_out = chosen_examples(args, probe, data)
    nulls = null_models(model, tokenizer, data, args.checkpoint) if args.null else {}
    if launch.is_main():
        warn_of_chance(args.checkpoint, tokenizer)
        print(replacement_note(probe, data), _cost(probe, examples, 1 + len(nulls)), sep="\n", flush=True)
    if args.overwrite_output:
        launch.on_main(lambda: [path.unlink() for path in args.output.glob(f"{RESULTS_NAME}*")])
    results = _probed(probe, examples, args.output / RESULTS_NAME)
    curves = {CHOSEN: [result.probabilities for result in results], **compared_curves(probe, examples, results)}
    for name, null in nulls.items():
        # The classes of a model that has not learnt them are arbitrary: its own prediction is probed.
        null_probe = make(model=null, allow_wrong=True, tests=False)
        own = [replace(e, target=None if probe.head == "class" else e.target) for e in examples]
        searched = null_probe.run([e.ids for e in own], target=[e.target for e in own])
        curves[name] = [result.probabilities for result in searched]
        curves[f"{name}, {RANDOM}"] = compared_curves(null_probe, own, searched)[RANDOM]
    if launch.is_main():
        print(_table(results, examples), excess(curves), sep="\n")
        if left_out:
            whys = ", ".join(f"{count} {why}" for why, count in left_out.items())
            print(f"These randomly drawn rows were left out: {whys}.")
        _write(args, settings, probe, data, examples, left_out, results, curves)


def _checked_config(args: argparse.Namespace) -> Any:
    """The configuration of the checkpoint, after the checks that need no data."""
    check_positive(args, "rows", "draws", "max_tokens_per_batch")
    if not 0 <= args.minimum_probability <= 1:
        raise ValueError(f"--minimum-probability must be from 0 to 1, got {args.minimum_probability:g}")
    for name in _given(args):
        if args.method not in _OPTIONS_OF_METHODS[name]:
            methods = ", ".join(_OPTIONS_OF_METHODS[name])
            raise ValueError(f"--{name} is for --method {methods}, not for {args.method}: leave --{name} out")
    config = load_config(args.checkpoint)
    if config.num_input_channels is not None:
        raise ValueError(
            f"{args.checkpoint!r} reads numbers, but a probe masks the tokens of texts: give a model of texts"
        )
    return config


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Options for some methods only that are given."""
    return {name: value for name in _OPTIONS_OF_METHODS if (value := getattr(args, name)) is not None}


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _cost(probe: MaskingProbe, examples: Sequence[Example], models: int) -> str:
    """The cost of the chosen method, and those of the searches for comparison."""
    (method, cost), *others = probe.costs([e.ids for e in examples], [e.target for e in examples]).items()
    rest = "; ".join(f"{name}: {models * o.evaluations:,}, {duration(models * o.seconds)}" for name, o in others)
    return (
        f"{len(examples)} sequences by {method}: at most {models * cost.evaluations:,} forward passes of one sequence, "
        f"roughly {duration(models * cost.seconds)} ({rest})."
    )


def _probed(probe: MaskingProbe, examples: Sequence[Example], path: Path) -> MaskingResults:
    existed = path.exists()
    try:
        return probe.run([e.ids for e in examples], target=[e.target for e in examples], output=path)
    except ValueError as error:
        # The rows are known to be valid; only existing results can be refused.
        raise ValueError(f"{error} (--overwrite-output deletes it)" if existed else str(error)) from error


def _table(results: MaskingResults, examples: Sequence[Example]) -> str:
    """A table of the first sequences, with mean and standard deviation of all."""
    what = "value" if results[0].target["kind"] == "callable" else "probability"
    names = [what, "all masked", "area", "kept, rest drawn", "random sets", "all drawn", "kept drawn"]
    names += ["kept", "tokens", "evaluations"]
    numbers = torch.tensor([[row[key] for key in _COLUMNS] for row in map(_summary, results)], dtype=torch.float64)
    lines = ["       row" + "".join(f"  {name:>{_WIDTH}}" for name in names)]
    for example, result, values in list(zip(examples, results, numbers, strict=True))[:_LISTED]:
        lines.append(_line(str(example.row), values) + ("  not explained" if result.why_unexplained else ""))
    if len(results) > _LISTED:
        lines.append(f"{'...':>10}")
    if len(results) > 1:
        lines += [_line("mean", numbers.mean(0)), _line("deviation", numbers.std(0))]
    lines.append(
        f"all masked: {what} with all tokens masked; area: mean {what} over the share of masked tokens; kept: tokens "
        f"that keep {SHARE:.0%} of the {what}. Fresh draws test them: kept, rest drawn (sufficient: high) beside "
        "random sets of as many tokens and all drawn; kept drawn (necessary: low)"
    )
    unexplained = [(e.row, r.why_unexplained) for e, r in zip(examples, results, strict=True) if r.why_unexplained]
    lines += [f"row {row} is not explained: {why}." for row, why in unexplained[:_LISTED]]
    if unexplained:
        lines.append(f"{len(unexplained)} of {len(results)} rows are not explained.")
    changed = sum(result.changes_answer for result in results)
    if changed:
        lines.append(
            f"With {results[0].replace!r} in every place, the model answers another class or token for {changed} of "
            f"{len(results)} rows: the search then also finds what this token means to the model (default: draws)."
        )
    return "\n".join(lines)


def _line(name: str, values: Tensor) -> str:
    shares, counts = values[:7].tolist(), values[7:].tolist()
    cells = [f"{value:>{_WIDTH}.4f}" for value in shares] + [f"{value:>{_WIDTH}.6g}" for value in counts]
    return f"{name:>10}" + "".join(f"  {cell}" for cell in cells)


def _summary(result: MaskingResult) -> dict[str, Any]:
    test = result.evidence
    assert test is not None
    return {
        "probability": result.probabilities[0].item(),
        "probability_all_masked": result.probabilities[-1].item(),
        "area": result.area,
        "sufficiency": test.sufficiency[0],
        "sufficiency_of_random_sets": test.random_sufficiency[0],
        "probability_all_drawn": test.all_drawn[0],
        "necessity": test.necessity[0],
        "tokens_kept": test.kept,
        "tokens": len(result.order),
        "evaluations": result.evaluations,
        **{f"tokens_left_at_{share:.0%}": result.tokens_left(share, relative=True) for share in _THRESHOLDS},
        "explained": not result.why_unexplained,
        "why_unexplained": result.why_unexplained,
        "tests": asdict(test),
    }


def _write(
    args: argparse.Namespace,
    settings: RunSettings,
    probe: MaskingProbe,
    data: Rows,
    examples: Sequence[Example],
    left_out: dict[str, int],
    results: MaskingResults,
    curves: dict[str, list[Tensor]],
) -> None:
    """Write all files except the results themselves, and print their names."""
    source = public_name(settings.data["dataset"])
    facts = {
        "checkpoint": public_name(args.checkpoint),
        "model": type(probe.model).__name__,
        "dataset": source,
        "split": args.split,
        "strategy": args.method,
        **_given(args),
        "replace": probe.replacement.name,
        "draws": probe.draws if probe.replacement.is_drawn else 1,
        "target": args.target or (LABEL if probe.head == "class" else None),
        "position": args.position,
        "allow_wrong": args.allow_wrong,
        "minimum_probability": args.minimum_probability,
        "drawn_with_seed": SEED,
        "left_out": left_out,
        "areas": {name: _rounded(torch.stack([c.mean() for c in group])) for name, group in curves.items()},
        "excess": excess(curves),
    }
    names: Mapping[int, str] = probe.model.config.id2label or {}
    with staged_files(args.output, replaces=_FILES) as folder, plotting.also_svg(args.svg):
        (folder / JSON_NAME).write_text(_json(facts, examples, results), encoding="utf-8")
        _write_lines(folder / TOKENS_NAME, token_rows(examples, results))
        if reads_only_dna(probe.tokenizer) and data.pair_column is None and probe.tokenizer.is_fast:
            _write_lines(folder / BEDGRAPH_NAME, bedgraph_lines(probe.tokenizer, data, examples, results, names))
        if args.genome is not None:
            with Genome(args.genome) as genome:
                entries = track_entries(probe.tokenizer, data, examples, results, genome.contigs)
                write_track(folder / TRACK_NAME, genome.contigs, entries, "effect")
        if not plotting.can_plot():
            print(f"No figures: {plotting.INSTALL_HINT}", file=sys.stderr)
        _draw(folder, args, probe, data, examples, results, curves, source, names)
        written = sorted(path.name for path in folder.iterdir())
    if args.genome is not None:
        # Beside the track, to which its path is relative.
        with Genome(args.genome) as genome:
            write_session(args.output / SESSION_NAME, genome, {"effect": args.output / TRACK_NAME})
        written.append(SESSION_NAME)
    print(f"{args.output} holds {', '.join([RESULTS_NAME, *written])}")
    report = args.output.parent / "report"
    dataset = [] if args.dataset is None else ["--dataset", args.dataset]
    words = [*dataset, *data_words(args), "--output", report]
    words += ["--overwrite-output"] if report.is_dir() else []
    suggest((command("report", args.checkpoint, *words), "theory report of the model"))


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _json(facts: dict[str, Any], examples: Sequence[Example], results: MaskingResults) -> str:
    """The facts, the mean curve, and the results of each sequence."""
    mean = dict(zip(("share_masked", "mean", "standard_deviation"), map(_rounded, results.mean_curve()), strict=True))
    sequences = [
        {
            "row": example.row,
            "target": result.target,
            **_summary(result),
            "order": result.order.tolist(),
            "probabilities": _rounded(result.probabilities),
            **({} if result.spread is None else {"spread": _rounded(result.spread)}),
            **({} if result.scores is None else {"scores": _numbers(result.scores)}),
        }
        for example, result in zip(examples, results, strict=True)
    ]
    return json.dumps({**facts, "mean_curve": mean, "sequences": sequences}, ensure_ascii=False) + "\n"


def _rounded(values: Tensor) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _numbers(values: Tensor) -> list[float | None]:
    """Rounded values, `None` for NaN, which JSON does not have."""
    return [None if math.isnan(value) else value for value in _rounded(values)]


def _draw(
    folder: Path,
    args: argparse.Namespace,
    probe: MaskingProbe,
    data: Rows,
    examples: Sequence[Example],
    results: MaskingResults,
    curves: dict[str, list[Tensor]],
    source: str,
    names: Mapping[int, str],
) -> None:
    """The mean curves, and the first sequences: letters of a small alphabet as figures, other tokens as HTML."""
    is_dna = reads_only_dna(probe.tokenizer)
    what = "bases" if is_dna else "tokens"
    can_plot, is_small = plotting.can_plot(), is_small_alphabet(probe.tokenizer)
    if can_plot:
        target = results[0].target
        value = f"predicted {target['name']}" if target["kind"] == "callable" else "probability of the target"
        number = "one sequence" if len(results) == 1 else f"{len(results)} sequences"
        about = f"The prediction while {what} are masked: {number} of {source}"
        plotting.plot_masking_curves(curves, folder / CURVE_NAME, title=about, value=value)
    options: dict[str, Any] = {"by": args.colour_by, "class_names": names}
    together: list[tuple[MaskingResult, int, list[tuple[int, int, str]], str]] = []
    for example, result in list(zip(examples, results, strict=True))[:_PICTURED]:
        row = f"{args.split} row {example.row}"
        title = f"{what.capitalize()} that the prediction needs: {row} of {source}"
        if not is_small or len(result.input_ids) > plotting.MAX_TOKENS:
            path = folder / f"text_row{example.row}.html"
            plotting.write_sequence_html(result, path, title, **options)
        elif can_plot:
            first, annotations = annotations_of(probe, data, example)
            together.append((result, first, annotations, row))
            path = folder / f"strip_row{example.row}.png"
            unit = "base" if is_dna else "token"
            plotting.plot_sequences([result], path, [annotations], first=[first], unit=unit, title=title, **options)
            if is_dna and result.scores is not None:
                tokens = [token if len(token) == 1 else " " for token in result.tokens_text or []]
                path = folder / f"logo_row{example.row}.png"
                about = f"Attributions of the {what}: {row} of {source}"
                plotting.plot_logo("".join(tokens), result.scores, path, about, first=1 - first, label="attribution")
    together = [entry for entry in together if len(entry[0].input_ids) <= _MOST_IN_FIGURE]
    if together:
        chosen, firsts, annotations_of_all, rows = (list(column) for column in zip(*together, strict=True))
        plotting.plot_sequences(
            chosen,
            folder / SEQUENCES_NAME,
            annotations_of_all,
            names=rows,
            first=firsts,
            unit="base" if is_dna else "token",
            title=f"{public_name(args.checkpoint)}: {what} that the predictions need",
            **options,
        )
