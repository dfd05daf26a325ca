"""`hf-ssm compress`."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml

from hf_ssm.analysis.compression import Compression, compress
from hf_ssm.analysis.compression_errors import compare_outputs
from hf_ssm.analysis.tables import Table, plain_text
from hf_ssm.cli.checkpoints import (
    check_fit,
    check_positive,
    chosen_rows,
    data_settings,
    file_of,
    load_config,
    load_model,
    public_name,
    stored_settings,
)
from hf_ssm.cli.summary import command, suggest
from hf_ssm.hub.card import write_default_card
from hf_ssm.hub.exporting import new_folder
from hf_ssm.training import inputs
from hf_ssm.training.folder import SETTINGS_NAME

RESULT_NAME = "compression.json"
# Files of tokenizers and feature extractors, which do not depend on the states.
_PROCESSOR_FILES = (
    *("added_tokens.json", "chat_template.jinja", "merges.txt", "preprocessor_config.json", "processor_config.json"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
)


def run_compress(args: argparse.Namespace) -> None:
    """`hf-ssm compress`: write a checkpoint with smaller states, its error bounds and measured errors."""
    check_positive(args, "rows", "batch_size")
    with new_folder(args.output) as folder:
        config = load_config(args.checkpoint)
        batches = _batches(args, config)
        model = load_model(args.checkpoint, config)
        result = compress(model, state_size=args.state_size, tolerance=args.tolerance)
        measured = None if batches is None else compare_outputs(model, result.model, batches)
        result.model.save_pretrained(folder)
        _copy_processor(args.checkpoint, folder)
        write_default_card(folder, result.model)
        content = result.to_dict() | {"checkpoint": public_name(args.checkpoint), "measured": measured}
        (folder / RESULT_NAME).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(plain_text([_table(result, measured)]), end="")
    print(f"\n{args.output} holds the model, and {RESULT_NAME} in this folder holds these numbers")
    if batches is None:
        print("The error was not measured: the checkpoint does not name its data (give --dataset)")
    tuned = args.output.with_name(f"{args.output.name}-tuned")
    again = command("train", "--model", args.output, "--dataset", args.dataset or "my.csv", "--output", tuned)
    suggest((again, "train the smaller model further"))


def _batches(args: argparse.Namespace, config: Any) -> list[dict[str, Any]] | None:
    """Rows to measure the error on; `None` where no data are named."""
    if args.dataset is None and not stored_settings(args.checkpoint).get("data", {}).get("dataset"):
        return None
    data = inputs.load_data(data_settings(args, args.checkpoint, config, "compress"))
    check_fit(config, data.longest)
    rows = chosen_rows(data.splits, args.split, args.rows)
    batches = data.batches(rows, args.batch_size)
    if data.label_kind == "class":
        labels = torch.tensor(rows["labels"][:])
        batches = [b | {"labels": part} for b, part in zip(batches, labels.split(args.batch_size), strict=True)]
    return batches


def _copy_processor(checkpoint: str, folder: Path) -> None:
    """Copy tokenizer or feature extractor, and name the data for later commands."""
    for name in _PROCESSOR_FILES:
        path = file_of(checkpoint, name)
        if path is not None:
            shutil.copyfile(path, folder / name)
    settings = stored_settings(checkpoint)
    if settings:
        kept = {"data": settings.get("data", {}), "model": {"task": settings.get("model", {}).get("task")}}
        (folder / SETTINGS_NAME).write_text(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _table(result: Compression, measured: dict[str, Any] | None) -> Table:
    header = ["layer", "states", "mean order", "share dropped", "bound, mean", "bound, largest"]
    rows: list[list[Any]] = []
    for layer in result.layers:
        states = f"{layer.states_before} → {layer.states_after}"
        order = layer.orders.double().mean().item()
        bounds = [layer.bound.mean().item(), layer.bound.max().item()]
        rows.append([layer.layer, states, order, layer.relative_bound, *bounds])
    parameters = result.to_dict()["parameters"]
    notes = [
        "The bound limits ‖y − y_r‖ / ‖u‖ of a channel for every input u. It is twice the sum of the dropped "
        "Hankel singular values, and it includes the rounding of the parameters and the gain of the Sobolev "
        "filter. The share dropped is the sum of the dropped values divided by the sum of all values. Parameters "
        f"of the model: {parameters['before']:,}, now {parameters['after']:,}."
    ]
    if measured is not None:
        header += ["measured, largest", "relative error"]
        for row, layer in zip(rows, measured["layers"], strict=True):
            row += [layer["gain"], layer["relative"]]
        notes.append(
            f"Measured on {measured['rows']} sequences; each layer gets the inputs that it has in the given model."
        )
        if measured["agreement"] is not None:
            notes.append(f"Both models predict the same class in {measured['agreement']:.2%} of the predictions.")
        if "before" in measured:
            before, after = (measured[name]["accuracy"] for name in ("before", "after"))
            notes.append(f"The accuracy is {before:.4f} before the compression and {after:.4f} after it.")
    return Table("Balanced truncation", header, rows, notes)
