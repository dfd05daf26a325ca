"""`hf-ssm spectrum`."""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_ssm.cli.checkpoints import (
    OVERWRITE_MEND,
    add_data_options,
    add_output_options,
    check_fit,
    check_positive,
    check_tokenizer,
    chosen_rows,
    data_assignments,
    load_config,
    load_model,
    public_name,
)

if TYPE_CHECKING:
    from torch import Tensor

    from hf_ssm.analysis.frequency import AlphaRecommendation
    from hf_ssm.training.inputs import RunData
    from hf_ssm.training.settings import RunSettings

SPECTRUM_NAME, PICTURE_NAME = "spectrum.json", "spectrum.png"
_SHARES = (0.5, 0.9, 0.99)
_FEWEST_FREQUENCIES = 257
_ROWS, _BATCH_SIZE = 512, 32
_INPUTS, _ALL_LAYERS = "inputs", "all layers"

# Option -> field of the configuration, type, help. A checkpoint brings its own.
_OF_CONFIG: dict[str, tuple[str, type, str]] = {
    "--state-size": ("state_size", int, "N of the planned state space model"),
    "--init": ("init", str, "its initialisation: legs, lin or inv"),
    "--discretization": ("discretization", str, "zoh or bilinear"),
    "--time-step-min": ("time_step_min", float, "its smallest step size Δ"),
    "--time-step-max": ("time_step_max", float, "its largest step size Δ"),
}


def add_spectrum(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dataset", metavar="DATASET", help="as in `hf-ssm train --dataset`; labels are not needed")
    parser.add_argument("--sequence-column", metavar="NAME", help="column of the sequences (default: sequence)")
    add_data_options(parser, "train", _ROWS, "read")
    parser.add_argument(
        "--model", metavar="CHECKPOINT", help="also the spectra of what each layer of this folder or Hub id reads"
    )
    for option, (_, kind, help_text) in _OF_CONFIG.items():
        parser.add_argument(option, metavar=option.rpartition("-")[2].upper(), type=kind, help=help_text)
    add_output_options(parser, f"{SPECTRUM_NAME} and {PICTURE_NAME}")


def run_spectrum(args: argparse.Namespace) -> None:
    """`hf-ssm spectrum`: edges of the spectrum of the data, and the α that they recommend."""
    from hf_ssm.analysis.frequency import alpha_recommendation

    _check_options(args)
    config = _planned_config(args) if args.model is None else load_config(args.model)
    data, description = _load(_settings(args, config), args.split, args.rows)
    rows = data.splits[args.split]
    spectra, positions = _spectra(args, data, rows)
    recommended = spectra.get(_ALL_LAYERS, spectra[_INPUTS])
    try:
        alpha: AlphaRecommendation | str = alpha_recommendation(config, recommended, quantiles=_SHARES)
    except ValueError as error:
        alpha = f"no recommendation of frequency_scale: {error}"
    facts = {
        "dataset": public_name(args.dataset),
        "split": args.split,
        "rows": len(rows),
        "positions": positions,
        "inputs": description,
        **({} if args.model is None else {"model": public_name(args.model)}),
    }
    print(f"{facts['dataset']}, split {args.split}: {len(rows)} sequences, {positions} positions; {description}.")
    print(_table(spectra), _alpha_text(alpha), sep="\n")
    if args.output is not None:
        _write(args.output, facts, spectra, alpha)


def _check_options(args: argparse.Namespace) -> None:
    """What can be refused before any work."""
    from hf_ssm.training.folder import check_output

    check_positive(args, "rows")
    for option in _OF_CONFIG:
        if args.model is not None and getattr(args, option[2:].replace("-", "_")) is not None:
            raise ValueError(f"{option} and --model: the checkpoint brings its own; leave one of the two out")
    if args.output is not None:
        check_output(args.output, args.overwrite_output, OVERWRITE_MEND)


def _planned_config(args: argparse.Namespace) -> Any:
    from hf_ssm import S4Config

    given = {field: getattr(args, option[2:].replace("-", "_")) for option, (field, *_) in _OF_CONFIG.items()}
    return S4Config(**{field: value for field, value in given.items() if value is not None})


def _settings(args: argparse.Namespace, config: Any) -> "RunSettings":
    from hf_ssm.training import settings as run_settings

    names = ("dataset", "tokenizer", "max_length", "sequence_column")
    data = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    data |= data_assignments(args.assignments, "a spectrum")
    # This task reads texts and numbers alike.
    model = {"task": "sequence-classification", "checkpoint": args.model}
    settings = run_settings.resolve({"model": model, "data": data})
    if args.model is not None:
        check_tokenizer(args.model, config, settings)
    return settings


def _load(settings: "RunSettings", split: str, count: int) -> tuple["RunData", str]:
    """Some rows of a split without their labels, and what their spectrum is the spectrum of."""
    from datasets import DatasetDict

    from hf_ssm.data import GENERATORS, SignalFeatureExtractor, load_sequences, tokenize
    from hf_ssm.data.checks import check_column
    from hf_ssm.data.features import fit_extractor
    from hf_ssm.data.signals import is_signal, signal_inputs
    from hf_ssm.training.inputs import RunData, load_tokenizer

    source, arguments, limit = settings.data["dataset"], settings.loader_arguments, settings.data["max_length"]
    column = arguments.get("sequence_column", "sequence")
    if source not in GENERATORS:
        arguments["label_column"] = None
    data = load_sequences(source, **arguments)
    check_column("sequence_column", column, data["train"].column_names, "the data")
    raw = RunData(data, SignalFeatureExtractor(), None, None, "", limit, {})
    rows = DatasetDict({split: chosen_rows(data, split, count)})
    if not is_signal(data["train"].features[column]):
        tokenizer = load_tokenizer(settings)
        tokens = tokenize(rows, tokenizer, column, None, limit, arguments.get("pair_column"))
        return dataclasses.replace(raw, splits=tokens, processor=tokenizer), "power of the indicators of their tokens"
    checkpoint, normalization = settings.model["checkpoint"], settings.data["normalization"]
    if checkpoint is not None and normalization is None:
        extractor = SignalFeatureExtractor.from_pretrained(checkpoint)
    else:
        extractor = fit_extractor(data["train"], column, normalization)
    # The columns are looked for in a split "train".
    values = signal_inputs(DatasetDict(train=rows[split]), column, None)["train"]
    return dataclasses.replace(raw, splits=DatasetDict({split: values}), processor=extractor), "power of their values"


def _spectra(args: argparse.Namespace, data: "RunData", rows: Any) -> tuple[dict[str, "Tensor"], int]:
    """Power `(F,)` of the inputs, of each layer's, and the mean of the layers' shares; and the positions read."""
    import torch

    from hf_ssm.ops.long_conv import next_fast_len

    starts = range(0, len(rows), _BATCH_SIZE)
    batches = [data.batch(rows.select(range(start, min(start + _BATCH_SIZE, len(rows))))) for start in starts]
    longest = max(next(iter(batch.values())).shape[1] for batch in batches)
    count = max(_FEWEST_FREQUENCIES, next_fast_len(-(-longest // 2)) + 1)
    energy, positions = torch.zeros(count, dtype=torch.float64), 0
    for batch in batches:
        power, number = _power(batch, data, count)
        energy, positions = energy + power * number, positions + number
    if positions == 0:
        raise ValueError("the sequences hold nothing but special tokens: is it the right --tokenizer?")
    spectra = {_INPUTS: energy / positions}
    _check_power(spectra)
    if args.model is None:
        return spectra, positions
    layers = _layer_spectra(args.model, data, batches, count)
    _check_power(layers)
    shares = torch.stack([power / power.sum() for power in layers.values()])
    return {**spectra, **layers, _ALL_LAYERS: shares.mean(0)}, positions


def _check_power(spectra: Mapping[str, "Tensor"]) -> None:
    for name, power in spectra.items():
        total = power.sum().item()
        if not math.isfinite(total):
            raise ValueError(f"{name}: the power is not finite: look for NaN in the data and the weights")
        if total == 0:
            raise ValueError(
                f"{name}: no power but at the frequency 0: each sequence is constant, or one position long"
            )


def _power(batch: Mapping[str, Any], data: "RunData", count: int) -> tuple["Tensor | float", int]:
    """Power `(F,)` of one batch of inputs, and the positions that it is the mean over."""
    import torch

    from hf_ssm.theory.spectrum import power_spectrum, symbol_spectrum

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


def _layer_spectra(checkpoint: str, data: "RunData", batches: list[dict[str, Any]], count: int) -> dict[str, "Tensor"]:
    """What the convolutions or scans of each layer read: power `(F,)`, summed over channels."""
    import torch

    from hf_ssm.analysis.recording import record_operators

    config = load_config(checkpoint)
    check_fit(config, data.longest)
    records = record_operators(load_model(checkpoint, config), batches, num_frequencies=count)
    spectra: dict[str, torch.Tensor] = {}
    for record in records:
        if record.direction == "forward" and record.power is not None:
            name = f"layer {record.layer}"
            spectra[name] = spectra.get(name, 0.0) + record.power.sum(0).cpu()
    return spectra


def _edges(power: "Tensor") -> dict[float, float]:
    """Share of the power to the frequency below which it lies, in radians per sample."""
    from hf_ssm.theory.spectrum import spectral_edge

    return {share: spectral_edge(power, share).item() for share in _SHARES}


def _table(spectra: Mapping[str, "Tensor"]) -> str:
    from hf_ssm.theory.spectrum import strongest_line

    width = max(map(len, spectra))
    head = "  ".join(f"{share:.0%} below" for share in _SHARES)
    lines = [
        "In cycles per sample (2π times as many radians):",
        f"{'':{width}}  {head}  strongest line, times its surroundings",
    ]
    for name, power in spectra.items():
        edges = "  ".join(f"{edge / (2 * math.pi):9.4f}" for edge in _edges(power).values())
        line, ratio = strongest_line(power)
        lines.append(f"{name:{width}}  {edges}  {line / (2 * math.pi):9.4f}  {ratio:.2f}")
    return "\n".join(lines)


def _alpha_text(alpha: "AlphaRecommendation | str") -> str:
    if isinstance(alpha, str):
        return alpha
    low, high = alpha.time_steps
    lines = [
        f"frequency_scale (α) is of use up to, for Δ = {high:g} ... {low:g} (state size {alpha.state_size}, init "
        f"{alpha.init!r}, {alpha.discretization}):",
        f"  without the data   {_range(alpha.data_free)}",
    ]
    for share, limits in alpha.from_data.items():
        edge = alpha.edges[share]
        lines.append(
            f"  {share:.0%} of the power   {_range(limits)}   (below {edge:.4f} radians = {edge / (2 * math.pi):.4f} "
            "cycles per sample)"
        )
    return "\n".join(lines)


def _range(limits: tuple[float, float]) -> str:
    return f"{limits[0]:.3g} ... {limits[1]:.3g}"


def _write(
    output: Path, facts: dict[str, Any], spectra: Mapping[str, "Tensor"], alpha: "AlphaRecommendation | str"
) -> None:
    from hf_ssm import plotting
    from hf_ssm.theory.spectrum import strongest_line

    entries = {
        name: {
            "edges_radians_per_sample": {f"{share:g}": edge for share, edge in _edges(power).items()},
            "strongest_line_radians_per_sample": strongest_line(power)[0],
            "strongest_line_ratio": strongest_line(power)[1],
            "power": [float(f"{value:.6g}") for value in power.tolist()],
        }
        for name, power in spectra.items()
    }
    head = {**facts, "alpha": alpha if isinstance(alpha, str) else alpha.to_dict()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    text = f'{json.dumps(head, ensure_ascii=False, indent=1)[:-2]},\n "spectra": {{\n{lines}\n }}\n}}\n'
    output.mkdir(parents=True, exist_ok=True)
    # A picture of other numbers shall not lie beside these.
    (output / PICTURE_NAME).unlink(missing_ok=True)
    (output / SPECTRUM_NAME).write_text(text, encoding="utf-8")
    written = [SPECTRUM_NAME]
    if plotting.can_plot():
        shown = {name: power for name, power in spectra.items() if name != _ALL_LAYERS}
        recommendation = None if isinstance(alpha, str) else alpha
        title = f"{facts['dataset']}, {facts['inputs']}"
        plotting.plot_spectrum(shown, output / PICTURE_NAME, recommendation, title)
        written.append(PICTURE_NAME)
    else:
        print(f"No {PICTURE_NAME}: {plotting.INSTALL_HINT}", file=sys.stderr)
    print(f"{output} holds {' and '.join(written)}")
