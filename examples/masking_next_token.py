"""Important tokens for the prediction of the next base: greedy masking of the preceding bases in human DNA.

Nishikawa & Suzuki 2025, Appendices C and K, experiment 2 (Figure C.1 right): a causal model is fine-tuned on the
human half of `demo_human_or_worm`, and 20 sequences are selected in which more than 20 tokens are predicted with a
probability above 0.35. One of these tokens is the target, and the tokens before it are masked greedily, each time the
token whose masking leaves the highest probability of the target. The figure shows this probability against the number
of masked tokens, and that of *other* targets of the sequence under the same masks.

Differences: the paper fine-tunes HyenaDNA for 10 epochs; here a small causal model is trained from scratch, with early
stopping, on the human half of a data set of the same form. The target is the most probable correctly predicted token of
the last eighth of the sequence, so that nearly the whole sequence can be masked; the others precede it in the second
half, and their mean is one curve. (The paper does not specify its choice.)

    python examples/masking_next_token.py --family hyena

Figures need matplotlib.
"""

import argparse
import csv
import gzip
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _experiment import write_results
from _masking import masking_parser, probe_all, report, summary, trained, with_assignments
from torch import Tensor

from hf_ssm.data import load_sequences
from hf_ssm.plotting import plot_masking_curves, plot_sequences
from hf_ssm.probes import MaskingProbe

FAMILIES: dict[str, dict[str, Any]] = {
    "hyena": {"family": "hyena", "num_hidden_layers": 2, "conv_kernel": 5, "filter_type": "s4d", "state_size": 32},
    "s4": {"family": "s4", "num_hidden_layers": 3, "state_size": 32},
    "selective": {"family": "selective", "num_hidden_layers": 2},
}
HUMAN = "0"


@dataclass(frozen=True)
class Case:
    """A sequence with its targets.

    Attributes:
        ids: `(L,)`.
        target: Position of the target token.
        others: Positions of other tokens above the threshold, before the target.
        predicted: Number of tokens above the threshold.
    """

    ids: Tensor
    target: int
    others: list[int]
    predicted: int


def human_rows(source: str, copy: Path) -> str:
    """The human rows of a table (label 0) with the columns sequence, label and split, as a new table."""
    opened = gzip.open if source.endswith(".gz") else open
    with opened(source, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["label"] == HUMAN]
    copy.parent.mkdir(parents=True, exist_ok=True)
    with copy.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["sequence", "split"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return str(copy)


def settings(args: argparse.Namespace, dataset: str) -> dict[str, dict[str, Any]]:
    """Settings of the training."""
    model = {**FAMILIES[args.family], "task": "causal-lm", "hidden_size": args.hidden_size, "rescale_init": True}
    if args.tiny:
        model |= {"num_hidden_layers": 1, **({} if args.family == "selective" else {"state_size": 4})}
    training = {
        "num_train_epochs": args.epochs,
        "learning_rate": args.learning_rate,
        "per_device_train_batch_size": 32,
        "seed": args.seed,
    }
    data = {"dataset": dataset, "label_column": None, "seed": args.seed}
    return with_assignments({"model": model, "data": data, "training": training}, args)


@torch.no_grad()
def case_of(model: Any, ids: Tensor, threshold: float, least: int) -> Case | None:
    """The targets of a sequence; `None` if too few tokens are above the threshold.

    Args:
        model: A causal model.
        ids: `(L,)`.
        threshold: Least probability of a token, exclusive.
        least: Least number of such tokens, exclusive.
    """
    found = model(input_ids=ids.unsqueeze(0).to(model.device)).logits[0, :-1].double().softmax(-1).cpu()
    right = found.argmax(-1) == ids[1:]
    own = found.gather(1, ids[1:, None]).squeeze(1)  # of the token at 1, 2, ...
    good = (own > threshold).nonzero().flatten() + 1
    late = [place for place in good.tolist() if place >= len(ids) * 7 // 8 and right[place - 1]]
    if len(good) <= least or not late:
        return None
    target = max(late, key=lambda place: own[place - 1].item())
    others = [place for place in good.tolist() if len(ids) // 2 <= place < target]
    return Case(ids, target, others, len(good)) if others else None


def mean_of(places: Sequence[int], ids: Tensor) -> Callable[[Tensor], Tensor]:
    """The mean probability of the tokens at `places`, as a target of the probe."""

    def of_others(logits: Tensor) -> Tensor:
        where = torch.tensor(places, device=logits.device)
        rows = logits[:, where - 1].double().softmax(-1)
        tokens = ids.to(logits.device)[where].expand(len(rows), -1)
        return rows.gather(2, tokens.unsqueeze(2)).squeeze(2).mean(1)

    return of_others


def find_cases(model: Any, ids: Sequence[Tensor], args: argparse.Namespace) -> list[Case]:
    """The first sequences with enough tokens above the threshold.

    Raises:
        SystemExit: There are too few.
    """
    cases: list[Case] = []
    for row in ids:
        case = case_of(model, row, args.threshold, args.least)
        if case is not None:
            cases.append(case)
        if len(cases) == args.sequences:
            return cases
    raise SystemExit(
        f"only {len(cases)} sequences have enough tokens above the threshold: train longer, or lower --least."
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments."""
    parser = masking_parser(__doc__.splitlines()[0], "")
    parser.add_argument("--path", default="data/human_or_worm_mini.csv.gz")
    parser.add_argument("--family", choices=FAMILIES, default="hyena")
    parser.add_argument("--threshold", type=float, default=0.35, help="predicted above this (default: %(default)s)")
    parser.add_argument("--least", type=int, default=20, help="by more tokens than this (default: %(default)s)")
    parser.set_defaults(mask_share=0.0)  # a mask would also be a token to predict
    args = parser.parse_args(argv)
    args.folder = args.folder or f"runs/masking_next_token_{args.family}"
    if args.tiny:
        args.hidden_size, args.epochs, args.sequences, args.exact = 8, 1, 3, 2
        args.threshold, args.least = 0.0, 5
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Train or load, select, probe with the three strategies, compare, draw and write."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    folder = Path(args.folder)
    sections = settings(args, human_rows(args.path, folder / "human.csv"))
    model, tokenizer, test = trained(sections, args)
    print(f"{args.family}: test perplexity {test['perplexity']:.3f}, {test['training_seconds']:.0f} s.")
    rows = load_sequences(sections["data"]["dataset"], label_column=None, seed=args.seed)["test"]
    cases = find_cases(model, [torch.tensor(tokenizer(text)["input_ids"]) for text in rows["sequence"]], args)

    sequences, targets = [case.ids for case in cases], [case.target for case in cases]
    results, measured, shown = probe_all(model, tokenizer, args, sequences, targets)
    probe = MaskingProbe(model, tokenizer, args.replace, draws=args.draws)
    others = [
        probe.evaluate(case.ids, result.order, target=mean_of(case.others, case.ids))
        for case, result in zip(cases, results[shown], strict=True)
    ]
    random = [
        probe.evaluate(case.ids, result.order[torch.randperm(len(result.order))], target=case.target)
        for case, result in zip(cases, results[shown], strict=True)
    ]
    content: dict[str, Any] = {
        "command": shlex.join(["python", "examples/masking_next_token.py", *argv]),
        "settings": {**sections, "data": {**sections["data"], "dataset": "the human rows"}},
        "test": test,
        "tokens_predicted": statistics.mean(case.predicted for case in cases),
        "other_targets": statistics.mean(len(case.others) for case in cases),
        "chosen": summary([result.probabilities for result in results[shown]]),
        "others": summary(others),
        "random order": summary(random),
        **measured,
    }
    report(content)
    title = f"{args.family}, human DNA"
    curves = {"chosen target": list(results[shown]), "other targets, same masks": others}
    plot_masking_curves(curves, folder / "curves.png", title=title, value="probability of the right token")
    plot_sequences(results[shown][:1], folder / "strip.png", title=title)
    write_results(args, content)


if __name__ == "__main__":
    main()
