"""Accuracy against the learning rate on multi-query associative recall, with and without rescaled initialisation.

Okpekpe & Orvieto 2025 (arXiv 2508.19029) show that modern recurrent models learn associative recall only in a narrow
window of learning rates. This script measures how wide the window is, and whether rescaling (Liu & Li 2024, Algorithm
1) widens it: the window of a model is the largest run of neighbouring learning rates with a mean test accuracy of at
least 95 % of the best one, and its width the ratio of its ends (1 for a single rate).

The task is that of Arora et al. 2023 (Zoology, arXiv 2312.04927): pairs of a key and a value, then each key once
more, at a distance from a power law, with blanks between; the model answers with the value at each repeated key.
Sizes are for a CPU (the papers use 8,192 tokens and rows of 64 to 512): 8 keys and 8 values, 4 pairs, rows of 24
tokens. Every model is causal and classifies the tokens; guessing among the values of the row gives 1 / 4, among all 1
/ 8. S4D is not among the default `--models`: it has no gates, and did not learn the task in trials of this size.

Finished runs are stored in `--folder` and not repeated.

    python examples/recall_learning_rates.py --output examples/results/recall_learning_rates.json

"""

import argparse
import gc
import hashlib
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _experiment import experiment_parser, print_table, quiet_training, write_results
from torch.utils.data import Dataset
from transformers import PrinterCallback, set_seed

import hf_ssm
from hf_ssm import SSMTrainer
from hf_ssm.utils.files import write_text_atomically

# Family, and fields of its configuration.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "S4D": ("S4", {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 16}),
    "Hyena, S4D filters": (
        "Hyena",
        {"hidden_size": 32, "num_hidden_layers": 2, "filter_type": "s4d", "state_size": 16},
    ),
    "Mamba": ("SelectiveSSM", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 16}),
}
INITIALISATIONS: dict[str, dict[str, Any]] = {"default": {}, "rescaled": {"rescale_init": True}}
DEFAULT_MODELS = ["Hyena, S4D filters", "Mamba"]
RATES = tuple(float(f"{10 ** (-3.5 + step / 4):.3g}") for step in range(11))
"""From 3.16e-4 to 0.1, four per decade."""
TINY = {"models": ["Hyena, S4D filters"], "seeds": 1, "steps": 2, "rates": [1e-3, 1e-2], "test_rows": 20}
NUM_KEYS = NUM_VALUES = 8
# Arora et al.: the exponent of the distances is this - 1.
POWER = 0.01
BLANK = 0
# Share of the best accuracy within the window.
LEVEL = 0.95


class Recall(Dataset):
    """Rows of multi-query associative recall: `input_ids` and `labels` `(length,)`, -100 where nothing is asked.

    Token 0 is the blank, 1 to 8 are keys, 9 to 16 values; labels are 0 to 7. Keys and values of a row are distinct.
    """

    def __init__(self, rows: int, pairs: int, length: int, seed: int):
        if 4 * pairs > length or pairs > min(NUM_KEYS, NUM_VALUES):
            raise ValueError(f"pairs={pairs}, length={length}: give at least 4 positions per pair, and at most 8 pairs")
        rng = np.random.default_rng(seed)
        keys = rng.permuted(np.tile(np.arange(NUM_KEYS), (rows, 1)), axis=1)[:, :pairs]
        values = rng.permuted(np.tile(np.arange(NUM_VALUES), (rows, 1)), axis=1)[:, :pairs]
        slots = (length - 2 * pairs) // 2
        weights = np.arange(1, slots + 1) ** (POWER - 1)
        # The largest of log w + Gumbel noise are a sample without replacement with weights w.
        places = np.argsort(-(np.log(weights) + rng.gumbel(size=(rows, slots))), axis=1)[:, :pairs]
        tokens = np.full((rows, length), BLANK)
        tokens[:, 0 : 2 * pairs : 2] = 1 + keys
        tokens[:, 1 : 2 * pairs : 2] = 1 + NUM_KEYS + values
        labels = np.full((rows, length), -100)
        row = np.arange(rows)[:, None]
        tokens[row, 2 * pairs + 2 * places] = 1 + keys
        labels[row, 2 * pairs + 2 * places] = values
        self.tokens, self.labels = torch.from_numpy(tokens), torch.from_numpy(labels)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def build(name: str, **fields: Any) -> Any:
    """A causal classifier of tokens."""
    family, sizes = MODELS[name]
    config = getattr(hf_ssm, f"{family}Config")(
        vocab_size=1 + NUM_KEYS + NUM_VALUES, num_labels=NUM_VALUES, pad_token_id=None, **sizes, **fields
    )
    return getattr(hf_ssm, f"{family}ForTokenClassification")(config)


def accuracy(prediction: Any) -> dict[str, float]:
    """Share of the queries with the right value."""
    labels = prediction.label_ids
    return {"accuracy": float((prediction.predictions == labels)[labels != -100].mean())}


def run(name: str, initialisation: str, rate: float, seed: int, args: argparse.Namespace) -> dict[str, float | None]:
    """Test accuracy of one model, 0 if it diverges, and τ of its layers after the initialisation."""
    train = Recall(args.steps * args.batch_size, args.pairs, args.length, seed=1000 + seed)
    test = Recall(args.test_rows, args.pairs, args.length, seed=999)
    set_seed(seed)
    model = build(name, **INITIALISATIONS[initialisation])
    with tempfile.TemporaryDirectory() as folder:
        arguments = quiet_training(
            folder,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=250,
            learning_rate=rate,
            warmup_steps=0.1,
            weight_decay=0.1,
            seed=seed,
            dataloader_pin_memory=False,
        )
        trainer = SSMTrainer(
            model,
            arguments,
            train_dataset=train,
            eval_dataset=test,
            compute_metrics=accuracy,
            preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        )
        trainer.remove_callback(PrinterCallback)
        try:
            trainer.train()
        except FloatingPointError:
            return {"accuracy": None}
        return {"accuracy": trainer.evaluate()["eval_accuracy"]}


def stored_run(*key: Any, args: argparse.Namespace) -> dict[str, float | None]:
    """As `run`, from a file if the run was done before."""
    setting = [*key, args.steps, args.batch_size, args.pairs, args.length, args.test_rows, MODELS[key[0]]]
    path = args.folder / f"{hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:20]}.json"
    if not path.is_file():
        result = run(*key, args)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, json.dumps({**result, "setting": setting}) + "\n")
    accuracy_: float | None = json.loads(path.read_text(encoding="utf-8"))["accuracy"]
    return {"accuracy": accuracy_}


def window(rates: Sequence[float], accuracies: Sequence[float]) -> tuple[float, float]:
    """Ends of the widest run of neighbouring rates within 95 % of the best accuracy, the first of equally wide ones."""
    level = LEVEL * max(accuracies)
    groups = groupby(zip(rates, accuracies, strict=True), key=lambda pair: pair[1] >= level)
    runs = [[rate for rate, _ in group] for is_within, group in groups if is_within]
    widest = max(runs, key=lambda run: run[-1] / run[0])
    return widest[0], widest[-1]


def summarise(rates: Sequence[float], curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Mean accuracies over the seeds, the best, and the window of one model."""
    found = {}
    for initialisation, seeds_of_rates in curves.items():
        means = [statistics.fmean(values) for values in seeds_of_rates]
        low, high = window(rates, means)
        found[initialisation] = {"best": max(means), "window": [low, high], "width": high / low}
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """All runs, the table and the results."""
    parser = experiment_parser(__doc__.splitlines()[0], show)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=DEFAULT_MODELS)
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--test-rows", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/recall_learning_rates"), help="where runs are stored")
    args = parser.parse_args(argv)
    if args.tiny:
        vars(args).update(TINY)
    gc.collect()
    gc.freeze()  # accelerate collects garbage after each run
    curves: dict[str, dict[str, list[list[float]]]] = {}
    failures: dict[str, int] = {}
    for name in args.models:
        curves[name] = {}
        for initialisation in INITIALISATIONS:
            results = [
                [stored_run(name, initialisation, rate, seed, args=args)["accuracy"] for seed in range(args.seeds)]
                for rate in args.rates
            ]
            failures[f"{name}, {initialisation}"] = sum(value is None for values in results for value in values)
            # A run that diverges recalls nothing.
            curves[name][initialisation] = [[0.0 if value is None else value for value in values] for values in results]
            shown = " ".join(f"{statistics.fmean(values):.2f}" for values in curves[name][initialisation])
            print(f"{name}, {initialisation}: {shown}", flush=True)
    summary = {name: summarise(args.rates, of_model) for name, of_model in curves.items()}
    show({"summary": summary})
    args.folder = args.folder.name
    write_results(args, {"accuracy": curves, "failed": failures, "summary": summary, "constant": 1 / NUM_VALUES})


def show(content: dict[str, Any]) -> None:
    """Print the best accuracies and the windows."""
    rows = []
    for name, of_model in content["summary"].items():
        for initialisation, found in of_model.items():
            low, high = found["window"]
            rows.append(
                [name, initialisation, f"{found['best']:.3f}", f"{low:.1e} to {high:.1e}", f"{found['width']:.1f}"]
            )
    print_table(["model", "initialisation", "best accuracy", "window", "ratio of its ends"], rows)


if __name__ == "__main__":
    main()
