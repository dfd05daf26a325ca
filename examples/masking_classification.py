"""Important tokens of a DNA classifier: greedy masking of enhancers, and of planted motifs at known positions.

Nishikawa & Suzuki 2025, Appendices C and K, experiment 1 (Figure C.1 left): for a classifier fine-tuned on
`human_enhancers_cohn`, 20 test sequences that are classified correctly with probability 0.95 or more are masked
greedily: the token whose masking leaves the highest probability is masked, repeatedly. The figure shows the probability
against the number of masked tokens, and that of *other* sequences masked at the same positions. The chosen sequence
keeps its probability with most tokens masked, others lose theirs earlier.

All sequences here are of class 1 (enhancers, worms, or rows with the motif), the chosen ones and the others, and the
others are among the chosen ones: the curves are probabilities of class 1, and a model that answers "class 1" for a
wholly masked sequence keeps both high. The paper does not say of which classes its sequences are.

Differences: the paper fine-tunes HyenaDNA, pretrained on the human genome, for 100 epochs; here a small model is
trained from scratch, with early stopping, on a part of the data. The paper does not mention masks in training;
`--mask-share` adds them. `human_or_worm` is a second classification of real DNA. `exact` is run on a few sequences,
`screened` and `one_shot` on all. A call continues what an interrupted one has begun, the training from its last epoch.

The important positions of planted motifs are known if the model needs the whole motif and nothing else: with
`--mask-share` it is trained to classify rows with a partially masked motif as decoys. Precision is the share of the
tokens masked last, as many as the motif has letters, that are letters of the motif.

    python examples/masking_classification.py --data planted-motifs --family hyena --mask-share 1
    python examples/masking_classification.py --data human_enhancers_cohn --family hyena

Figures need matplotlib.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _experiment import write_results
from _masking import masking_parser, probe_all, report, summary, trained, with_assignments
from torch import Tensor

from hf_ssm.data import load_sequences
from hf_ssm.plotting import plot_masking_curves, plot_sequences
from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults

FAMILIES: dict[str, dict[str, Any]] = {
    "hyena": {
        "family": "hyena",
        "filter_type": "s4d",
        "state_size": 32,
        "num_hidden_layers": 2,
        "conv_kernel": 5,
        "bidirectional": True,
    },
    "s4": {"family": "s4", "state_size": 32, "num_hidden_layers": 3, "bidirectional": True},
    "selective": {"family": "selective", "num_hidden_layers": 2, "bidirectional": True},
}
PATHS = {
    "human_enhancers_cohn": "data/human_enhancers_cohn_official_test.csv.gz",
    "human_or_worm": "data/human_or_worm_mini.csv.gz",
}
# The probed class: enhancers, worms, or rows with the motif.
LABEL = 1


def settings(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Settings of the training."""
    if args.data == "planted-motifs":
        data: dict[str, Any] = {"dataset": args.data, "length": args.length, "copies": 1, "num_train": args.train_rows}
        if args.tiny:
            data |= {"num_validation": 16, "num_test": 16, "motif_length": 6}
    else:
        data = {"dataset": args.path, "reverse_complement": False}
    model = {**FAMILIES[args.family], "hidden_size": args.hidden_size, "rescale_init": True}
    if args.tiny:
        model |= {"num_hidden_layers": 1, **({} if args.family == "selective" else {"state_size": 4})}
    training = {
        "num_train_epochs": args.epochs,
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": 64,
        "seed": args.seed,
    }
    return with_assignments({"model": model, "data": {**data, "seed": args.seed}, "training": training}, args)


@torch.no_grad()
def rows_of_class(model: Any, tokenizer: Any, data: dict[str, Any]) -> tuple[Any, Tensor]:
    """The test rows of class `LABEL`, and its probability for each, `(rows,)`, float64."""
    arguments = {name: value for name, value in data.items() if name not in ("dataset", "reverse_complement")}
    rows = load_sequences(data["dataset"], **arguments)["test"]
    rows = rows.filter(lambda label: label == LABEL, input_columns="label")
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in rows["sequence"]]
    logits = [model(input_ids=row.unsqueeze(0).to(model.device)).logits[0] for row in ids]
    return rows, torch.stack(logits).double().softmax(-1)[:, LABEL].cpu()


def choose(found: Tensor, count: int, threshold: float, allow_wrong: bool) -> list[int]:
    """The first rows with at least the threshold probability, filled up with the most probable others.

    Raises:
        SystemExit: Too few rows are classified correctly.
    """
    sure = (found >= threshold).nonzero().flatten().tolist()[:count]
    rest = [row for row in found.argsort(descending=True).tolist() if row not in sure]
    chosen = sure + [row for row in rest if found[row] > 0.5 or allow_wrong][: count - len(sure)]
    if len(chosen) < max(count, 2):
        raise SystemExit(f"only {len(chosen)} sequences are classified correctly: train longer or lower --sequences.")
    return chosen


def curves_of_others(
    probe: MaskingProbe, ids: Sequence[Tensor], results: Sequence[MaskingResult], others: int
) -> list[Tensor]:
    """Probabilities `(M + 1,)` of the next `others` sequences in the list under the masks of each sequence."""
    count = len(ids)
    return [
        probe.evaluate(ids[(number + step) % count], result.order, target=LABEL)
        for number, result in enumerate(results)
        for step in range(1, min(others, count - 1) + 1)
    ]


def precision(results: Sequence[MaskingResult], sites: Sequence[set[int]]) -> list[float]:
    """Share of planted tokens among those masked last, as many as are planted."""
    return [
        len(site & set(result.survivors(len(site)).tolist())) / len(site)
        for result, site in zip(results, sites, strict=False)
    ]


def planted(rows: Any) -> list[set[int]]:
    """Positions of the motif in each row."""
    length = len(rows.features["label"].names[LABEL])
    return [{start + step for start in row for step in range(length)} for row in rows["motif_positions"]]


def draw(
    folder: Path, chosen: MaskingResults, others: Sequence[Tensor], title: str, sites: Sequence[set[int]] | None
) -> None:
    """Draw Figure C.1 left, and the first sequence."""
    curves = {"chosen sequence": list(chosen), "other sequences, same masks": list(others)}
    plot_masking_curves(curves, folder / "curves.png", title=title, value="probability of the right class")
    marks = [(min(sites[0]), max(sites[0]) + 1, "planted motif")] if sites else []
    plot_sequences(chosen[:1], folder / "strip.png", [marks], title=title)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments, with defaults that depend on the data."""
    parser = masking_parser(__doc__.splitlines()[0], "")
    parser.add_argument("--data", choices=("planted-motifs", *PATHS), default="planted-motifs")
    parser.add_argument("--path", help="table of the sequences (default: of `get_data.py`, in data/)")
    parser.add_argument("--family", choices=FAMILIES, default="hyena")
    parser.add_argument(
        "--mask-share",
        type=float,
        default=0.0,
        help="largest share of masked letters of a training row (default: 0)",
    )
    parser.add_argument("--threshold", type=float, default=0.95, help="least probability (default: %(default)s)")
    parser.add_argument("--others", type=int, default=1, help="others for each chosen sequence (default: %(default)s)")
    parser.add_argument("--length", type=int, default=100, help="of planted-motifs (default: %(default)s)")
    parser.add_argument("--train-rows", type=int, default=6000, help="of planted-motifs (default: %(default)s)")
    args = parser.parse_args(argv)
    args.path = args.path or PATHS.get(args.data)
    args.folder = args.folder or f"runs/masking_{args.data}_{args.family}"
    if args.tiny:
        args.hidden_size, args.epochs, args.sequences, args.exact = 8, 1, 3, 2
        args.length, args.train_rows, args.threshold = 24, 32, 0.5
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Train or load, select, probe with the three strategies, compare, draw and write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    sections = settings(args)
    model, tokenizer, test = trained(sections, args)
    print(f"{args.family} on {args.data}: test accuracy {test['accuracy']:.3f}, {test['training_seconds']:.0f} s.")
    rows, found = rows_of_class(model, tokenizer, sections["data"])
    chosen = choose(found, args.sequences, args.threshold, args.tiny)
    sure = int((found >= args.threshold).sum())
    least = found[chosen].min().item()
    print(f"{sure} of {len(found)} have a probability of {args.threshold} or more; chosen are {least:.3f} and more.")
    rows = rows.select(chosen)
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in rows["sequence"]]
    results, measured, shown = probe_all(model, tokenizer, args, ids, [LABEL] * len(ids))
    probe = MaskingProbe(model, tokenizer, args.replace, draws=args.draws)
    others = curves_of_others(probe, ids, results[shown], args.others)
    random = [
        probe.evaluate(row, result.order[torch.randperm(len(result.order))], target=LABEL)
        for row, result in zip(ids, results[shown], strict=False)
    ]
    content: dict[str, Any] = {
        "command": shlex.join(["python", "examples/masking_classification.py", *argv]),
        "settings": sections,
        "test": test,
        "sequences_of_class": len(found),
        "sequences_at_threshold": sure,
        "least_probability": least,
        "chosen": summary([result.probabilities for result in results[shown]]),
        "others": summary(others),
        "random order": summary(random),
        **measured,
    }
    sites = planted(rows) if args.data == "planted-motifs" else None
    if sites:
        content["precision"] = {name: precision(own, sites) for name, own in results.items()}
    report(content)
    draw(Path(args.folder), results[shown], others, f"{args.family}, {args.data}", sites)
    write_results(args, content)


if __name__ == "__main__":
    main()
