"""`hf-ssm spectrum`."""

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import List
from torch import Tensor

from hf_ssm import S4Config, plotting
from hf_ssm.analysis.frequency import AlphaRecommendation, alpha_recommendation
from hf_ssm.analysis.recording import record_operators
from hf_ssm.cli.checkpoints import (
    can_draw,
    check_fit,
    check_output_options,
    check_positive,
    chosen_rows,
    data_settings,
    data_words,
    load_config,
    load_model,
    public_name,
    unit_of,
)
from hf_ssm.cli.options.analysis import CONFIG_OPTIONS
from hf_ssm.cli.sequences import with_progress
from hf_ssm.cli.summary import command, suggest
from hf_ssm.data.columns import check_columns, usual_column
from hf_ssm.data.labels import read_labels
from hf_ssm.data.signals import is_signal
from hf_ssm.ops.long_conv import next_fast_len
from hf_ssm.theory.spectrum import power_spectrum, spectral_edge, strongest_line, symbol_spectrum
from hf_ssm.training.folder import locked
from hf_ssm.training.inputs import RunData, load_data, load_rows
from hf_ssm.training.settings import RunSettings
from hf_ssm.utils.files import staged_files

SPECTRUM_NAME, PICTURE_NAME = "spectrum.json", "spectrum.png"
_SHARES = (0.5, 0.9, 0.99)
_FEWEST_FREQUENCIES = 257
_BATCH_SIZE = 32
_INPUTS, _ALL_LAYERS = "inputs", "all layers"


def run_spectrum(args: argparse.Namespace) -> None:
    """`hf-ssm spectrum`: band edges of the spectrum of the data, and whether they give a reason to change α."""
    with nullcontext() if args.output is None else locked(args.output):
        _run_spectrum(args)


def _run_spectrum(args: argparse.Namespace) -> None:
    _check_options(args)
    planned = {name: getattr(args, name) for name in CONFIG_OPTIONS if getattr(args, name) is not None}
    config = S4Config(**planned) if args.model is None else load_config(args.model)
    settings = data_settings(
        args,
        args.model,
        config,
        "a spectrum",
        "sequence-classification",  # reads both texts and numbers
    )
    data = load_data(settings, labelled=False)
    rows = chosen_rows(data.splits, args.split, args.rows)
    spectra, positions = _spectra(args.model, config, data, rows)
    recommended = spectra.get(_ALL_LAYERS, spectra[_INPUTS])
    try:
        alpha: AlphaRecommendation | str = alpha_recommendation(
            config, recommended, quantiles=_SHARES, positions=positions
        )
    except ValueError as error:
        alpha = f"no recommendation of frequency_scale: {error}"
    facts = {
        "dataset": public_name(args.dataset),
        "split": args.split,
        "rows": len(rows),
        "positions": positions,
        "inputs": "power of their values" if data.tokenizer is None else "power of the indicators of their tokens",
        **({} if args.model is None else {"model": public_name(args.model)}),
    }
    entries = {name: _facts_of(power) for name, power in spectra.items()}
    print(
        f"{facts['dataset']}, split {args.split}: {len(rows)} sequences, {positions} positions; {facts['inputs']}.",
        _table(entries),
        _alpha_text(alpha),
        sep="\n",
    )
    if args.output is not None:
        content = {**facts, "alpha": alpha if isinstance(alpha, str) else alpha.to_dict(), "spectra": entries}
        with plotting.also_svg(args.svg):
            _write(args.output, content, spectra, alpha, unit_of(data.tokenizer))
    # α acts at initialisation: a checkpoint has no use for it.
    if args.model is None:
        trial = None if isinstance(alpha, str) else alpha.trial
        _suggest_training(args, planned, trial, _fitting_task(settings))


def _fitting_task(settings: RunSettings) -> str | None:
    """The task of `hf-ssm train` for the labels of the data; `None` without labels that a model of numbers needs."""
    rows = load_rows(settings, labelled=False)["train"]
    numbers = is_signal(rows.features[settings.sequence_column])
    label_column = settings.data.get("label_column")
    if isinstance(label_column, list):
        return "signal-regression" if numbers else "sequence-regression"
    if label_column is not None:
        check_columns({"label_column": label_column}, rows[:10], settings.data["dataset"])
    column = label_column or usual_column("label_column", rows.column_names)
    if column is not None:
        for targets in (False, True):
            try:
                _, feature = read_labels(column, list(rows[column]), "the data", str, targets)
            except ValueError:
                continue
            if targets:
                return "signal-regression" if numbers else "sequence-regression"
            return "token-classification" if isinstance(feature, List) else "sequence-classification"
    return None if numbers else "causal-lm"


def _suggest_training(
    args: argparse.Namespace, planned: Mapping[str, Any], trial: float | None, task: str | None
) -> None:
    """Print the command that trains the planned model on these data, and that with an α that is worth a trial."""
    if task is None:
        return
    kind: list[object] = [] if task == "sequence-classification" else ["--task", task]
    settings = [f"model.{name}={value}" for name, value in planned.items()]

    def training(output: str, *more: str) -> str:
        words = kind + [word for setting in [*more, *settings] for word in ("--set", setting)]
        words += data_words(args, labelled=True)
        return command("train", "--dataset", args.dataset, "--family", "s4", *words, "--output", output)

    steps = [(training("runs/default"), "train with the default α")]
    if trial is not None:
        what = "train with the α of the trial: keep the run that is better on validation data"
        steps.append((training("runs/alpha", f"model.alpha={trial:.3g}"), what))
    suggest(*steps)


def _check_options(args: argparse.Namespace) -> None:
    """The checks that need neither model nor data."""
    check_positive(args, "rows")
    check_output_options(args)
    for name in CONFIG_OPTIONS if args.model is not None else ():
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{option} cannot be combined with --model, because the checkpoint defines this value: leave one "
                "of the two options out"
            )


def _spectra(checkpoint: str | None, config: Any, data: RunData, rows: Any) -> tuple[dict[str, Tensor], int]:
    """Power `(F,)` of the inputs, of each layer's inputs, and the mean of the layers' shares; number of positions."""
    batches = data.batches(rows, _BATCH_SIZE)
    longest = max(next(iter(batch.values())).shape[1] for batch in batches)
    count = max(_FEWEST_FREQUENCIES, next_fast_len(-(-longest // 2)) + 1)
    energy, positions = torch.zeros(count, dtype=torch.float64), 0
    for batch in batches:
        power, number = _power(batch, data, count)
        energy, positions = energy + power * number, positions + number
    if positions == 0:
        raise ValueError("the sequences consist of special tokens only: check --tokenizer")
    spectra = {_INPUTS: energy / positions}
    _check_power(spectra)
    if checkpoint is None:
        return spectra, positions
    check_fit(config, longest)
    shown = with_progress(batches, "batches", len(batches))
    layers = _layer_spectra(load_model(checkpoint, config), shown, count)
    _check_power(layers)
    shares = torch.stack([power / power.sum() for power in layers.values()])
    return {**spectra, **layers, _ALL_LAYERS: shares.mean(0)}, positions


def _check_power(spectra: Mapping[str, Tensor]) -> None:
    for name, power in spectra.items():
        total = power.sum().item()
        if not math.isfinite(total):
            raise ValueError(f"the power of {name!r} is not finite: look for NaN in the data and the weights")
        if total == 0:
            raise ValueError(
                f"{name!r} has no power at frequencies other than 0: each sequence is constant, or one position long"
            )


def _power(batch: Mapping[str, Any], data: RunData, count: int) -> tuple[Tensor | float, int]:
    """Power `(F,)` of one batch of inputs, averaged over positions, and the number of positions."""
    mask = batch.get("attention_mask")
    if data.tokenizer is None:
        values = batch["input_values"]
        number = values.shape[0] * values.shape[1] if mask is None else int(mask.sum())
        return power_spectrum(values, mask, num_frequencies=count).sum(0), number
    tokens = batch["input_ids"]
    special = torch.isin(tokens, torch.tensor(data.tokenizer.all_special_ids, dtype=tokens.dtype))
    mask = ~special if mask is None else mask.bool() & ~special
    number = int(mask.sum())
    return (symbol_spectrum(tokens, mask, num_frequencies=count), number) if number else (0.0, 0)


def _layer_spectra(model: Any, batches: Iterable[dict[str, Any]], count: int) -> dict[str, Tensor]:
    """Power `(F,)` of the inputs of each layer's convolutions or scans, summed over channels."""
    spectra: dict[str, Tensor] = {}
    for record in record_operators(model, batches, num_frequencies=count):
        if record.direction == "forward" and record.power is not None:
            name = f"layer {record.layer}"
            spectra[name] = spectra.get(name, 0.0) + record.power.sum(0).cpu()
    return spectra


def _facts_of(power: Tensor) -> dict[str, Any]:
    """Band edges, strongest line and power of a spectrum, as written to `spectrum.json`."""
    line, ratio = strongest_line(power)
    return {
        "edges_radians_per_sample": {f"{share:g}": spectral_edge(power, share).item() for share in _SHARES},
        "strongest_line_radians_per_sample": line,
        "strongest_line_ratio": ratio,
        "power": [float(f"{value:.6g}") for value in power.tolist()],
    }


def _table(spectra: Mapping[str, dict[str, Any]]) -> str:
    width = max(map(len, spectra))
    head = "  ".join(f"{share:.0%} below" for share in _SHARES)
    lines = [
        "Frequencies in cycles per sample (one cycle is 2π radians):",
        f"{'':{width}}  {head}  strongest line, and its ratio to its surroundings",
    ]
    for name, facts in spectra.items():
        frequencies = [*facts["edges_radians_per_sample"].values(), facts["strongest_line_radians_per_sample"]]
        columns = "  ".join(f"{radians / (2 * math.pi):9.4f}" for radians in frequencies)
        lines.append(f"{name:{width}}  {columns}  {facts['strongest_line_ratio']:.2f}")
    return "\n".join(lines)


def _alpha_text(alpha: AlphaRecommendation | str) -> str:
    if isinstance(alpha, str):
        return alpha
    low, high = alpha.time_steps
    lines = [
        f"Upper limits of frequency_scale (α), which are not recommended values, for Δ = {high:g} ... {low:g} "
        f"(state size {alpha.state_size}, init {alpha.init!r}, {alpha.discretization}):",
        f"  without the data   {_range(alpha.data_free)}",
    ]
    for share, limits in alpha.from_data.items():
        edge = alpha.edges[share]
        lines.append(
            f"  {share:.0%} of the power   {_range(limits)}   (below {edge:.4f} radians = {edge / (2 * math.pi):.4f} "
            "cycles per sample)"
        )
    if alpha.paper_note is not None:
        lines.append(f"  {alpha.paper_note}")
    return "\n".join([*lines, alpha.verdict])


def _range(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.3g} ... {limits[1]:.3g}"


def _write(
    output: Path, content: dict[str, Any], spectra: Mapping[str, Tensor], alpha: AlphaRecommendation | str, unit: str
) -> None:
    with staged_files(output, replaces=(SPECTRUM_NAME, PICTURE_NAME, "spectrum.svg")) as scratch:
        (scratch / SPECTRUM_NAME).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        if can_draw(PICTURE_NAME):
            shown = {name: power for name, power in spectra.items() if name != _ALL_LAYERS}
            recommendation = None if isinstance(alpha, str) else alpha
            title = f"Power spectrum of {content['dataset']}"
            plotting.plot_spectrum(shown, scratch / PICTURE_NAME, recommendation, title, unit=unit)
        written = sorted(path.name for path in scratch.iterdir())
    print(f"{output} holds {', '.join(written)}")
