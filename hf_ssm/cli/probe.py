"""`hf-ssm probe`."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_ssm import plotting
from hf_ssm.cli.checkpoints import (
    SEED,
    check_positive,
    data_settings,
    load_config,
    load_model,
    public_name,
)
from hf_ssm.cli.options.analysis import LABEL
from hf_ssm.cli.probe_rows import (
    Example,
    Rows,
    annotations_of,
    check_target,
    chosen_examples,
    load_rows,
    wants_labels,
)
from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults
from hf_ssm.training import launch
from hf_ssm.training.folder import check_output
from hf_ssm.training.inputs import load_tokenizer
from hf_ssm.training.settings import RunSettings
from hf_ssm.utils.files import staged_files

RESULTS_NAME, JSON_NAME, CURVE_NAME = "probe.safetensors", "results.json", "curve.png"
_PICTURES_OF_ROWS = ("strip_row*.png", "text_row*.html")
# Options for some methods only, which are an error with others.
_OPTIONS_OF_METHODS = {
    "steps": ("integrated_gradients", "gradient_shap"),
    "noise": ("gradient_shap",),
    "alphabet": ("in_silico_mutagenesis",),
}
_THRESHOLDS = (0.9, 0.5)
# Sequences with a plot of their own, and with a line in the table.
_PICTURED, _LISTED = 4, 10
# A tokenizer with at most this many tokens, each of one letter, is one of DNA, RNA or proteins.
_MOST_LETTERS = 32
_OUTPUT_REMEDY = "choose another folder, one in which this command was interrupted, or replace it (--overwrite-output)"


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
    probe = MaskingProbe(
        load_model(args.checkpoint, config),
        load_tokenizer(settings),
        args.mask,
        args.method,
        **_given(args),
        max_tokens_per_batch=args.max_tokens_per_batch,
        minimum_probability=args.minimum_probability,
        allow_wrong=args.allow_wrong,
    )
    check_target(args, probe)
    data = load_rows(settings, args.split, labelled=wants_labels(args, probe))
    examples, left_out = chosen_examples(args, probe, data)
    if args.overwrite_output:
        launch.on_main(lambda: [path.unlink() for path in args.output.glob(f"{RESULTS_NAME}*")])
    results = _probed(probe, examples, args.output / RESULTS_NAME)
    if launch.is_main():
        print(_table(results, examples))
        if left_out:
            whys = ", ".join(f"{count} {why}" for why, count in left_out.items())
            print(f"Drawn rows that were left out: {whys}.")
        _write(args, settings, probe, data, examples, left_out, results)


def _checked_config(args: argparse.Namespace) -> Any:
    """The configuration of the checkpoint, after the checks that need no data."""
    check_positive(args, "rows", "max_tokens_per_batch")
    if not 0 <= args.minimum_probability <= 1:
        raise ValueError(f"--minimum-probability must be from 0 to 1, got {args.minimum_probability:g}")
    for name in _given(args):
        if args.method not in _OPTIONS_OF_METHODS[name]:
            known = ", ".join(_OPTIONS_OF_METHODS[name])
            raise ValueError(f"--{name} is for --method {known}, not for {args.method}: leave it out")
    config = load_config(args.checkpoint)
    if config.num_input_channels is not None:
        raise ValueError(f"{args.checkpoint!r} reads numbers: a probe needs a model of texts, whose tokens it masks")
    return config


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """Options for some methods only that are given."""
    return {name: value for name in _OPTIONS_OF_METHODS if (value := getattr(args, name)) is not None}


def _probed(probe: MaskingProbe, examples: Sequence[Example], path: Path) -> MaskingResults:
    existed = path.exists()
    try:
        return probe.run([e.ids for e in examples], target=[e.target for e in examples], output=path)
    except ValueError as error:
        # The rows are known to be valid; only existing results can be refused.
        raise ValueError(f"{error} (--overwrite-output deletes it)" if existed else str(error)) from error


def _table(results: MaskingResults, examples: Sequence[Example]) -> str:
    """A table of the first sequences, with mean and standard deviation of all."""
    names = ["probability", "area", *(f"left at {share:g}" for share in _THRESHOLDS), "evaluations", "tokens"]
    numbers = torch.tensor([list(_summary(result).values()) for result in results], dtype=torch.float64)
    lines = ["       row" + "".join(f"  {name:>11}" for name in names)]
    for example, values in list(zip(examples, numbers, strict=True))[:_LISTED]:
        lines.append(_line(str(example.row), values))
    if len(results) > _LISTED:
        lines.append(f"{'...':>10}")
    if len(results) > 1:
        lines += [_line("mean", numbers.mean(0)), _line("deviation", numbers.std(0))]
    lines.append(
        "area: mean probability over the share of masked tokens; left: tokens not yet masked when the probability "
        "first falls below the value; tokens: number of maskable tokens"
    )
    return "\n".join(lines)


def _line(name: str, values: Tensor) -> str:
    shares, counts = values[:2].tolist(), values[2:].tolist()
    return f"{name:>10}" + "".join(f"  {v:>11.4f}" for v in shares) + "".join(f"  {v:>11.6g}" for v in counts)


def _summary(result: MaskingResult) -> dict[str, float]:
    return {
        "probability": result.probabilities[0].item(),
        "area": result.area,
        **{f"tokens_left_at_{share:g}": result.tokens_left(share) for share in _THRESHOLDS},
        "evaluations": result.evaluations,
        "tokens": len(result.order),
    }


def _write(
    args: argparse.Namespace,
    settings: RunSettings,
    probe: MaskingProbe,
    data: Rows,
    examples: Sequence[Example],
    left_out: dict[str, int],
    results: MaskingResults,
) -> None:
    """Write all files except the results themselves, and print their names."""
    source = public_name(str(settings.data["dataset"]))
    facts = {
        "checkpoint": public_name(args.checkpoint),
        "model": type(probe.model).__name__,
        "dataset": source,
        "split": args.split,
        "strategy": args.method,
        **_given(args),
        "mask": args.mask,
        "target": args.target or (LABEL if probe.head == "class" else None),
        "position": args.position,
        "allow_wrong": args.allow_wrong,
        "minimum_probability": args.minimum_probability,
        "drawn_with_seed": SEED,
        "left_out": left_out,
    }
    with staged_files(args.output, replaces=(JSON_NAME, CURVE_NAME, *_PICTURES_OF_ROWS)) as folder:
        (folder / JSON_NAME).write_text(_json(facts, examples, results), encoding="utf-8")
        if plotting.can_plot():
            title = f"{source}: {results[0].strategy}, masked by {results[0].mask!r}"
            plotting.plot_masking_curves(results, folder / CURVE_NAME, title=title)
        else:
            print(f"No pictures: {plotting.INSTALL_HINT}", file=sys.stderr)
        for example, result in list(zip(examples, results, strict=True))[:_PICTURED]:
            what = f"{plotting.describe_target(result)}, probability {result.probabilities[0].item():.3f}"
            _draw_row(folder, probe, data, example, result, f"{source}, {args.split}, row {example.row}: {what}")
        written = sorted(path.name for path in folder.iterdir())
    print(f"{args.output} holds {', '.join([RESULTS_NAME, *written])}")


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


def _draw_row(
    folder: Path, probe: MaskingProbe, data: Rows, example: Example, result: MaskingResult, title: str
) -> None:
    """A strip of letters for a small alphabet, HTML for other tokens."""
    letters = set(probe.tokenizer.get_vocab()) - set(probe.tokenizer.all_special_tokens)
    letters = {token for token in letters if not (token.startswith("[") and token.endswith("]"))}
    small = len(letters) <= _MOST_LETTERS and all(len(token) == 1 for token in letters)
    if not small or len(result.input_ids) > plotting.MAX_TOKENS:
        plotting.write_sequence_html(result, folder / f"text_row{example.row}.html", title)
    elif plotting.can_plot():
        first, annotations = annotations_of(probe, data, example)
        unit = "bp" if letters >= set("ACGT") and len(letters) < 20 else "token"
        plotting.plot_sequence(
            result, folder / f"strip_row{example.row}.png", annotations, first=first, unit=unit, title=title
        )
