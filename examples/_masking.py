"""Shared by the masking experiments: training with a stored model, probes with their costs, summaries of curves.

Legend: `B` rows of a batch, `L` tokens of a sequence, `M` maskable tokens.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _experiment import experiment_parser, print_table
from datasets import Dataset
from torch import Tensor
from transformers import AutoTokenizer, EarlyStoppingCallback, PrinterCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_ssm.data import with_random_reverse_complement
from hf_ssm.probes import MaskingProbe, MaskingResult, MaskingResults
from hf_ssm.training import SSMTrainer, SSMTrainingArguments
from hf_ssm.training.build import build_model
from hf_ssm.training.inputs import RunData, build_collator, load_data
from hf_ssm.training.settings import RunSettings, parse_assignments, resolve
from hf_ssm.training.tasks import TASKS

# Passes of a single sequence from which the time of the plain loop is extrapolated.
_TIMED_PASSES = 20
_SHARES = 21
STRATEGIES = ("exact", "screened", "one_shot")


def masking_parser(description: str, folder: str) -> argparse.ArgumentParser:
    """Options of both masking experiments."""
    parser = experiment_parser(description, report)
    parser.add_argument("--folder", default=folder, help="folder of model, probes and figures (default: %(default)s)")
    how = "replacement of masked tokens, such as composition (default: %(default)s, as in the paper)"
    parser.add_argument("--replace", default="mask", help=how)
    parser.add_argument("--draws", type=int, default=16, help="number of draws (default: %(default)s)")
    parser.add_argument("--sequences", type=int, default=20, help="sequences to probe (default: %(default)s)")
    parser.add_argument(
        "--exact", type=int, default=5, help="number of them that are also probed exactly (default: %(default)s)"
    )
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument(
        "--patience",
        type=int,
        default=3,
        help="epochs without improvement on the validation split before training stops (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="other settings of the training, as of `hf-ssm train`, such as model.hidden_dropout=0.2",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of data, weights and selection")
    return parser


def with_assignments(sections: dict[str, dict[str, Any]], args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The settings with those of `--set`."""
    chosen = parse_assignments(args.set)
    return {name: {**section, **chosen.get(name, {})} for name, section in sections.items()}


def with_random_masks(
    tokens: Dataset, mask_id: int, special: Sequence[int], share: float, motif: Sequence[int] = ()
) -> Dataset:
    """Replace random tokens by the mask each time a row is read.

    Without masks in training, the mask has its initial embedding, and the prediction for masked rows is arbitrary. A
    model may also recognise a motif by a part of it. With `motif`, half of the rows with the motif lose one or more of
    its letters and have label 0, and the other half keep all of them, so that the model needs the whole motif.

    Args:
        tokens: Rows with `input_ids` and, for a motif, `labels`.
        mask_id: Id of the mask.
        special: Tokens that are not masked.
        share: Largest share of masked tokens; the share of a row is uniform from 0 to this.
        motif: Tokens of the motif.
    """
    kept = torch.tensor(list(special), dtype=torch.long)
    site = torch.tensor(list(motif), dtype=torch.long)

    def masked(row: list[int], label: int) -> tuple[list[int], int]:
        ids = torch.tensor(row)
        hit = (torch.rand(len(ids)) < share * torch.rand(())) & ~torch.isin(ids, kept)
        if len(site) and label:
            start = int((ids.unfold(0, len(site), 1) == site).all(1).nonzero()[0])
            hit[start : start + len(site)] = False
            if torch.rand(()) < 0.5:
                lost = 1 if torch.rand(()) < 0.5 else int(torch.randint(1, len(site) + 1, ()))
                hit[start + torch.randperm(len(site))[:lost]] = True
                label = 0
        return ids.masked_fill(hit, mask_id).tolist(), label

    def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        labels = batch.get("labels", [0] * len(batch["input_ids"]))
        rows = [masked(row, label) for row, label in zip(batch["input_ids"], labels, strict=True)]
        found = {**batch, "input_ids": [row for row, _ in rows]}
        return {**found, "labels": [label for _, label in rows]} if "labels" in batch else found

    return tokens.with_transform(transform)


def trained(sections: dict[str, dict[str, Any]], args: argparse.Namespace) -> tuple[Any, Any, dict[str, float]]:
    """Model, tokenizer and test metrics, loaded from the folder if its settings are the same, otherwise trained.

    Training that was interrupted continues from its last epoch.
    """
    settings = resolve(sections)
    told = {"model": settings.model, "data": settings.data, "training": settings.training}
    told |= {"mask": args.replace, "mask_share": args.mask_share}
    if args.patience != 3:
        told["patience"] = args.patience
    folder = Path(args.folder) / "model"
    record = folder / "experiment.json"
    content: dict[str, Any] = {"settings": json.loads(json.dumps(told))}
    if record.is_file():
        stored = json.loads(record.read_text(encoding="utf-8"))
        if stored["settings"] != content["settings"]:
            raise SystemExit(f"{str(folder)!r} holds a model with other settings: use another --folder.")
        content = stored
    if "test" not in content:
        folder.mkdir(parents=True, exist_ok=True)
        begin, spent = time.process_time(), content.get("training_seconds", 0.0)
        try:
            metrics = _train(settings, args, folder)
            content["test"] = {**metrics, "training_seconds": spent + time.process_time() - begin}
        finally:
            content["training_seconds"] = spent + time.process_time() - begin
            record.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    model = TASKS[settings.task].auto_class.from_pretrained(folder).eval()
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    return model, AutoTokenizer.from_pretrained(folder), content["test"]


def _train(settings: RunSettings, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Train with early stopping, save the best model, and evaluate it on the test split."""
    set_seed(args.seed)
    loaded = load_data(settings)
    trainer = _trainer(settings, loaded, args, folder)
    trainer.remove_callback(PrinterCallback)
    checkpoints = folder / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    trainer.remove_callback(EarlyStoppingCallback)  # it requires metrics of the validation split
    found = trainer.evaluate(loaded.splits["test"], metric_key_prefix="test")
    trainer.save_model(str(folder))
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle with local paths
    metrics = {name.removeprefix("test_"): value for name, value in found.items() if name.startswith("test_")}
    metrics = {name: value for name, value in metrics.items() if not name.endswith(("runtime", "per_second"))}
    return {**metrics, "epochs": trainer.state.epoch or 0.0}


def _trainer(settings: RunSettings, loaded: RunData, args: argparse.Namespace, folder: Path) -> SSMTrainer:
    task, tokenizer = TASKS[settings.task], loaded.tokenizer
    assert tokenizer is not None
    model = build_model(settings, loaded)
    rows = loaded.splits["train"]
    if settings.data["reverse_complement"]:
        if args.mask_share:
            raise SystemExit("data.reverse_complement and --mask-share both change rows when they are read: take one.")
        rows = with_random_reverse_complement(rows, tokenizer)
    if args.mask_share:
        mask_id = MaskingProbe(model, tokenizer, args.replace).replacement.token_id
        if mask_id is None:
            raise SystemExit("--mask-share needs a mask that is a token, not 'zero'.")
        planted = settings.data["dataset"] == "planted-motifs"
        motif = tokenizer(loaded.classes[-1])["input_ids"] if planted and loaded.classes else []
        rows = with_random_masks(rows, mask_id, tokenizer.all_special_ids, args.mask_share, motif)
    training: dict[str, Any] = {
        "metric_for_best_model": task.best_metric,
        "greater_is_better": task.greater_is_better,
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "use_cpu": not torch.accelerator.is_available(),
        "disable_tqdm": True,
        **settings.training,
    }
    return SSMTrainer(
        model=model,
        args=SSMTrainingArguments(output_dir=str(folder / "checkpoints"), **training),
        train_dataset=rows,
        eval_dataset=loaded.splits["validation"],
        data_collator=build_collator(settings, loaded),
        processing_class=tokenizer,
        compute_metrics=task.compute_metrics,
        preprocess_logits_for_metrics=task.preprocess,
        callbacks=[EarlyStoppingCallback(args.patience)],
    )


def probed(
    model: Any, tokenizer: Any, args: argparse.Namespace, strategy: str, sequences: Sequence[Tensor], targets: list[int]
) -> tuple[MaskingResults, float]:
    """Probe sequences; return the results and the processor time in seconds, summed over interrupted calls.

    A file in the folder stores finished sequences.
    """
    folder = Path(args.folder)
    times = folder / f"{strategy}_seconds.json"
    spent = json.loads(times.read_text())["seconds"] if times.is_file() else 0.0
    probe = MaskingProbe(model, tokenizer, args.replace, strategy, draws=args.draws, allow_wrong=args.tiny)
    begin = time.process_time()
    try:
        results = probe.run(list(sequences), target=targets, output=folder / f"{strategy}.safetensors", progress=False)
    finally:
        times.write_text(json.dumps({"seconds": spent + time.process_time() - begin}))
    return results, spent + time.process_time() - begin


def cost(results: Sequence[MaskingResult], seconds: float) -> dict[str, float]:
    """Mean cost per sequence."""
    count = len(results)
    return {
        "sequences": count,
        "evaluations": sum(result.evaluations for result in results) / count,
        "tokens": sum(result.tokens for result in results) / count,
        "seconds": seconds / count,
    }


@torch.no_grad()
def cost_of_plain_loop(model: Any, results: Sequence[MaskingResult]) -> dict[str, float]:
    """Mean cost per sequence if each variant is a separate complete forward pass, extrapolated from a few passes."""
    costs = []
    for result in results:
        count, length = len(result.order), len(result.input_ids)
        if result.target["kind"] == "token":
            length = result.target["position"]
        row = result.input_ids[:length].unsqueeze(0).to(model.device)
        model(input_ids=row)
        begin = time.process_time()
        for _ in range(_TIMED_PASSES):
            model(input_ids=row)
        seconds = (time.process_time() - begin) / _TIMED_PASSES
        evaluations = count * (count + 1) // 2
        costs.append((evaluations, evaluations * length, evaluations * seconds))
    means = [statistics.mean(part) for part in zip(*costs, strict=True)]
    return {"sequences": len(costs), **dict(zip(("evaluations", "tokens", "seconds"), means, strict=True))}


def agreement(results: MaskingResults, exact: MaskingResults) -> dict[str, float]:
    """Agreement with the exact search on common sequences: means, and the largest difference of areas."""
    pairs = results[: len(exact)].agreement(exact)
    differences = [pair["area_difference"] for pair in pairs]
    return {
        "sequences": len(pairs),
        "spearman": statistics.mean(pair["spearman"] for pair in pairs),
        "area_difference": statistics.mean(differences),
        "largest_area_difference": max(differences, key=abs),
    }


def probe_all(
    model: Any, tokenizer: Any, args: argparse.Namespace, sequences: Sequence[Tensor], targets: list[int]
) -> tuple[dict[str, MaskingResults], dict[str, Any], str]:
    """Probe with the three strategies; the exact one only for the first `args.exact` sequences.

    Returns:
        The results of each strategy, their measures, and the strategy to report: exact if used for all sequences.
    """
    results: dict[str, MaskingResults] = {}
    costs: dict[str, dict[str, float]] = {}
    for strategy in STRATEGIES:
        count = min(args.exact, len(sequences)) if strategy == "exact" else len(sequences)
        if count:
            results[strategy], seconds = probed(model, tokenizer, args, strategy, sequences[:count], targets[:count])
            costs[strategy] = cost(results[strategy], seconds)
    shown = "exact" if args.exact >= len(sequences) else "screened"
    costs["plain loop"] = cost_of_plain_loop(model, results.get("exact", results[shown]))
    found: dict[str, Any] = {
        "strategy_shown": shown,
        "areas": {name: [round(result.area, 4) for result in own] for name, own in results.items()},
        "cost_of_a_sequence": costs,
        "times_less": speedups(costs),
    }
    if "exact" in results:
        fast = [name for name in results if name != "exact"]
        found["agreement_with_exact"] = {name: agreement(results[name], results["exact"]) for name in fast}
    return results, found, shown


def speedups(costs: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Ratios of costs for pairs of strategies."""
    pairs = [("plain loop", "exact"), ("exact", "screened"), ("exact", "one_shot"), ("plain loop", "screened")]
    names = ("evaluations", "tokens", "seconds")
    return {
        f"{slow} / {fast}": {name: costs[slow][name] / max(costs[fast][name], 1e-9) for name in names}
        for slow, fast in pairs
        if slow in costs and fast in costs
    }


def summary(curves: Sequence[Tensor]) -> dict[str, Any]:
    """Summary of curves `(M + 1,)`.

    Returns:
        "share", "mean" and "deviation" of the probability; "area" and "masked_until", the share of tokens masked before
        the probability falls below nine tenths, and half, of its initial value; mean and standard deviation of each.
    """
    results = [_curve_as_result(curve) for curve in curves]
    share, mean, deviation = MaskingResults(results).mean_curve(_SHARES)
    until = {
        str(part): _mean_and_deviation(
            [1 - own.tokens_left(part * own.probabilities[0].item()) / len(own.order) for own in results]
        )
        for part in (0.9, 0.5)
    }
    rounded = {"share": share, "mean": mean, "deviation": deviation}
    return {
        **{name: [round(number, 4) for number in values.tolist()] for name, values in rounded.items()},
        "area": _mean_and_deviation([result.area for result in results]),
        "masked_until": until,
        "curves": len(results),
    }


def _curve_as_result(curve: Tensor) -> MaskingResult:
    order = torch.arange(len(curve) - 1)
    return MaskingResult(order, order, curve, {"kind": "callable", "name": "curve"}, "exact", "", 0, 0)


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "deviation": statistics.stdev(values) if len(values) > 1 else 0.0}


def report(content: dict[str, Any]) -> None:
    """Print the summary of the curves, the costs of each strategy and their ratios."""
    for name in ("chosen", "others", "random order"):
        if name not in content:
            continue
        found = content[name]
        parts = [f"area {found['area']['mean']:.3f} ± {found['area']['deviation']:.3f}"]
        for share, until in found["masked_until"].items():
            parts.append(f"{until['mean']:.0%} ± {until['deviation']:.0%} masked until it falls below {share} of it")
        start = f"{name} ({found['curves']}): probability {found['mean'][0]:.3f} ± {found['deviation'][0]:.3f}"
        print("; ".join([start, *parts]) + ".", flush=True)
    rows = []
    for name, own in content["cost_of_a_sequence"].items():
        hits = content.get("precision", {}).get(name)
        same = content.get("agreement_with_exact", {}).get(name)
        costs = [f"{own['evaluations']:.0f}", f"{own['tokens']:.0f}", f"{own['seconds']:.2f}"]
        found = [f"{statistics.mean(hits):.3f} ({len(hits)})"] if hits else [""]
        if same:
            found += [f"{same['area_difference']:+.4f} ({same['largest_area_difference']:+.4f})"]
            found += [f"{same['spearman']:.3f}"]
        rows.append([name, *costs, *found, *[""] * (3 - len(found))])
    print_table(["strategy", "evaluations", "tokens", "seconds", "precision", "area - exact (largest)", "rank"], rows)
    for pair, times in content["times_less"].items():
        print(f"{pair}: " + ", ".join(f"{value:.1f} times fewer {name}" for name, value in times.items()) + ".")
