"""`hf-ssm probe`."""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ssm.cli.checkpoints import (
    SEED,
    add_checkpoint_options,
    add_data_options,
    add_output_options,
    check_positive,
    data_settings,
    load_config,
    load_model,
    public_name,
)
from hf_ssm.cli.probe_rows import (
    LABEL,
    PREDICTED,
    Example,
    Rows,
    annotations_of,
    check_target,
    chosen_examples,
    load_rows,
    wants_labels,
)

if TYPE_CHECKING:
    from torch import Tensor

    from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults
    from hf_ssm.training.settings import RunSettings

RESULTS_NAME, JSON_NAME, CURVE_NAME = "probe.safetensors", "results.json", "curve.png"
_PICTURES_OF_ROWS = ("strip_row*.png", "text_row*.html")
_ROWS, _MAX_TOKENS = 20, 16384
_STRATEGIES = ("exact", "screened", "one_shot")
_THRESHOLDS = (0.9, 0.5)
# So many sequences have a picture, so many a line in the table; so many classes have a line in the curves.
_PICTURED, _LISTED, _MOST_LINES = 4, 10, 4
# A tokenizer with no more tokens than that, each of one letter, is one of DNA, RNA or proteins.
_MOST_LETTERS = 32
_OUTPUT_MEND = "choose another folder, one in which this command was interrupted, or replace it (--overwrite-output)"


def add_probe(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_options(parser)
    add_data_options(parser, "test", _ROWS, "probe")
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        choices=_STRATEGIES,
        default="exact",
        help="exact (default), which takes some length²/2 evaluations a sequence; screened or one_shot, which take few",
    )
    parser.add_argument(
        "--mask",
        metavar="TOKEN",
        default="mask",
        help="what stands for a masked token: mask (default), n, pad, zero, or a token of the tokenizer",
    )
    parser.add_argument(
        "--target",
        metavar="CLASS",
        help=f"class to look at: a number or a name, {LABEL} (of each row; default) or {PREDICTED}",
    )
    parser.add_argument(
        "--position",
        metavar="TOKEN",
        type=int,
        help="which token a language model shall predict, or a classifier of tokens classify: from 0, or from -1 back",
    )
    parser.add_argument("--allow-wrong", action="store_true", help="also probe rows that are predicted wrongly")
    parser.add_argument(
        "--minimum-probability",
        metavar="P",
        type=float,
        default=0.0,
        help="probe only rows whose target is as likely before anything is masked (default 0)",
    )
    parser.add_argument(
        "--max-tokens-per-batch",
        metavar="N",
        type=int,
        default=_MAX_TOKENS,
        help=f"tokens that go through the model at once (default {_MAX_TOKENS})",
    )
    add_output_options(parser, "results and pictures; an interrupted command goes on there", required=True)


def run_probe(args: argparse.Namespace) -> None:
    """`hf-ssm probe`: mask what matters least, token by token, and write what is left to say of each sequence."""
    from hf_ssm.probes import MaskingProbe
    from hf_ssm.training import launch
    from hf_ssm.training.inputs import load_tokenizer

    config = _checked_config(args)
    settings = data_settings(args, config, "a probe")
    launch.begin(settings)
    launch.on_main(lambda: _check_output(args))
    tokenizer = load_tokenizer(settings)
    probe = MaskingProbe(
        load_model(args.checkpoint, config),
        tokenizer,
        args.mask,
        args.strategy,
        max_tokens_per_batch=args.max_tokens_per_batch,
        minimum_probability=args.minimum_probability,
        allow_wrong=args.allow_wrong,
    )
    check_target(args, probe)
    data = load_rows(settings, args.split, labelled=wants_labels(args, probe))
    examples, left_out = chosen_examples(args, probe, data)
    if args.overwrite_output:
        launch.on_main(lambda: _forget(args.output))
    results = _probed(probe, examples, args.output / RESULTS_NAME)
    if launch.is_main():
        print(_table(results, examples), _left_out_text(left_out), sep="\n", end="")
        _write(args, settings, probe, data, examples, left_out, results)


def _checked_config(args: argparse.Namespace) -> Any:
    """The configuration of the checkpoint; what can be refused before any work is refused."""
    check_positive(args, "rows", "max_tokens_per_batch")
    if not 0 <= args.minimum_probability <= 1:
        raise ValueError(f"--minimum-probability must be from 0 to 1, got {args.minimum_probability:g}")
    config = load_config(args.checkpoint)
    if config.num_input_channels is not None:
        raise ValueError(f"{args.checkpoint!r} reads numbers: a probe masks the tokens of a model of texts")
    return config


def _check_output(args: argparse.Namespace) -> None:
    from hf_ssm.training.folder import check_output

    goes_on = any(args.output.glob(f"{RESULTS_NAME}*"))
    check_output(args.output, args.overwrite_output or goes_on, _OUTPUT_MEND)


def _forget(output: Path) -> None:
    """Remove what an earlier run found, finished or not."""
    for path in output.glob(f"{RESULTS_NAME}*"):
        path.unlink()


def _probed(probe: "MaskingProbe", examples: Sequence[Example], path: Path) -> "MaskingResults":
    there = path.exists()
    try:
        return probe.run([e.ids for e in examples], target=[e.target for e in examples], output=path)
    except ValueError as error:
        # All else was looked at before.
        raise ValueError(f"{error} (--overwrite-output deletes it)" if there else str(error)) from error


def _table(results: "MaskingResults", examples: Sequence[Example]) -> str:
    """The first sequences, and mean and standard deviation of all."""
    import torch

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
        "area: mean probability over the share of tokens masked; left: tokens not yet masked when it first falls "
        "below that; tokens: that could be masked"
    )
    return "\n".join(lines)


def _line(name: str, values: "Tensor") -> str:
    shares, counts = values[:2].tolist(), values[2:].tolist()
    return f"{name:>10}" + "".join(f"  {v:>11.4f}" for v in shares) + "".join(f"  {v:>11.6g}" for v in counts)


def _summary(result: "MaskingResult") -> dict[str, float]:
    return {
        "probability": result.probabilities[0].item(),
        "area": result.area,
        **{f"tokens_left_at_{share:g}": result.tokens_left(share) for share in _THRESHOLDS},
        "evaluations": result.evaluations,
        "tokens": len(result.order),
    }


def _left_out_text(left_out: dict[str, int]) -> str:
    whys = ", ".join(f"{count} {why}" for why, count in left_out.items())
    return f"Rows that were drawn and left out: {whys}.\n" if whys else ""


def _write(
    args: argparse.Namespace,
    settings: "RunSettings",
    probe: "MaskingProbe",
    data: Rows,
    examples: Sequence[Example],
    left_out: dict[str, int],
    results: "MaskingResults",
) -> None:
    """All files, none of which is put in its place before all are written."""
    from hf_ssm import plotting

    source = public_name(str(settings.data["dataset"]))
    facts = {
        "checkpoint": public_name(args.checkpoint),
        "model": type(probe.model).__name__,
        "dataset": source,
        "split": args.split,
        "strategy": args.strategy,
        "mask": args.mask,
        "target": args.target or (LABEL if probe.head == "class" else None),
        "position": args.position,
        "allow_wrong": args.allow_wrong,
        "minimum_probability": args.minimum_probability,
        "drawn_with_seed": SEED,
        "left_out": left_out,
    }
    with tempfile.TemporaryDirectory(dir=args.output, prefix=".probe-") as scratch:
        folder = Path(scratch)
        (folder / JSON_NAME).write_text(_json(facts, examples, results), encoding="utf-8")
        if plotting.can_plot():
            _draw_curves(probe, results, folder / CURVE_NAME, source)
        else:
            print(f"No pictures: {plotting.INSTALL_HINT}", file=sys.stderr)
        for number in _pictured(results):
            example, result = examples[number], results[number]
            title = _title(probe, result, f"{source}, {args.split}, row {example.row}")
            _draw_row(folder, probe, data, example, result, title)
        for pattern in (JSON_NAME, CURVE_NAME, *_PICTURES_OF_ROWS):
            for path in args.output.glob(pattern):
                path.unlink()
        written = sorted(path.rename(args.output / path.name).name for path in folder.iterdir())
    print(f"{args.output} holds {', '.join([RESULTS_NAME, *written])}")


def _json(facts: dict[str, Any], examples: Sequence[Example], results: "MaskingResults") -> str:
    """One line for each sequence, and the mean over them."""
    entries = []
    for example, result in zip(examples, results, strict=True):
        entry = {"row": example.row, "target": result.target, **_summary(result), "order": result.order.tolist()}
        entries.append(json.dumps({**entry, "probabilities": _rounded(result.probabilities)}))
    names = ("share_masked", "mean", "standard_deviation")
    mean = dict(zip(names, map(_rounded, results.mean_curve()), strict=True))
    head = json.dumps(facts, ensure_ascii=False, indent=1)[:-2]
    lines = ",\n".join(f"  {entry}" for entry in entries)
    return f'{head},\n "mean_curve": {json.dumps(mean)},\n "sequences": [\n{lines}\n ]\n}}\n'


def _rounded(values: "Tensor") -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _pictured(results: "MaskingResults") -> list[int]:
    """The first few sequences, of each class as many as of the others."""
    turns: list[tuple[int, int]] = []
    met: Counter[int | None] = Counter()
    for number, result in enumerate(results):
        label = result.target.get("label")
        turns.append((met[label], number))
        met[label] += 1
    return sorted(number for _, number in sorted(turns)[:_PICTURED])


def _draw_curves(probe: "MaskingProbe", results: "MaskingResults", path: Path, source: str) -> None:
    """One line for each class, where there are a few."""
    from hf_ssm.plotting import plot_masking_curves

    groups: dict[str, list[MaskingResult]] = {}
    for result in sorted(results, key=lambda result: result.target.get("label", 0)):
        groups.setdefault(_class_name(probe, result), []).append(result)
    title = f"{source}: {results[0].strategy}, masked by {results[0].mask!r}"
    plot_masking_curves(groups if 1 < len(groups) <= _MOST_LINES else results, path, title=title)


def _class_name(probe: "MaskingProbe", result: "MaskingResult") -> str:
    """The class of a result with its name, where the model knows one; empty where it is about no class."""
    label = result.target.get("label")
    if label is None:
        return ""
    name = (probe.model.config.id2label or {}).get(label, "")
    return f"class {label}" if name in ("", str(label), f"LABEL_{label}") else f"class {label} ({name})"


def _title(probe: "MaskingProbe", result: "MaskingResult", where: str) -> str:
    from hf_ssm.plotting import describe_target

    what = describe_target(result)
    if result.target.get("label") is not None:
        what = what.replace(f"class {result.target['label']}", _class_name(probe, result), 1)
    return f"{where}: {what}, probability {result.probabilities[0].item():.3f}"


def _draw_row(
    folder: Path, probe: "MaskingProbe", data: Rows, example: Example, result: "MaskingResult", title: str
) -> None:
    """A strip for letters of a small alphabet, HTML for all else."""
    from hf_ssm import plotting

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
