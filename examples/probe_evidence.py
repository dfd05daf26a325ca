"""Which replacement of masked bases makes a probe believable: one token, draws, or an attribution?

Planted motifs: models learn to tell two copies of a motif in 60 bases from shuffled copies. For each method the table
has the bases that keep 90 % of the probability, their precision and recall against the motif, and two tests with fresh
draws: sufficiency (kept, the rest drawn) beside random sets of as many bases and all drawn, and necessity (kept ones
drawn, the rest as it is). Low necessity values mean that the bases are necessary.

Real DNA: coding and intergenic windows of 200 bases, with each replacement and several numbers of draws.

Null: by how much the area under the curve of the search exceeds that of a random order, in the trained model and in an
untrained copy, with N and with draws.

All numbers are means over rows ± two standard errors. Models are kept in the folder; a second call trains nothing.

    python examples/probe_evidence.py --output examples/results/probe_evidence.json
    python examples/probe_evidence.py --tiny
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from _experiment import experiment_parser, print_table, write_results
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, TrainingArguments, set_seed
from transformers.utils import logging

import hf_ssm
from hf_ssm.data import load_sequences, tokenize
from hf_ssm.probes import MaskingProbe, MaskingResult

FAMILIES = ("Hyena", "S4", "SelectiveSSM")
TABLE = Path(__file__).parent / "data" / "coding_or_intergenic.csv.gz"
ATTRIBUTIONS = ("occlusion", "integrated_gradients", "deep_lift", "in_silico_mutagenesis")
PLANTED = [("shortlist", "n"), *((method, "composition") for method in ("shortlist", *ATTRIBUTIONS))]
REAL = [("n", 16), ("composition", 4), ("composition", 16), ("shuffle", 16), ("dinucleotide", 16), ("uniform", 16)]
HEAD = ["kept", "sufficiency", "random sets", "all drawn", "necessity", "random sets drawn", "explained", "passes"]


def fit(name: str, data: Any, tokenizer: Any, args: argparse.Namespace, epochs: int, rate: float, **model: Any) -> Any:
    """A classifier, from the folder if it was trained before."""
    folder, family = Path(args.folder) / name, name.partition("_")[0]
    if not (folder / "config.json").is_file():
        set_seed(0)
        options = {"num_hidden_layers": 2, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        config = getattr(hf_ssm, f"{family}Config")(rescale_init=True, **options, **model)
        training = TrainingArguments(
            str(folder),
            num_train_epochs=1 if args.tiny else epochs,
            learning_rate=rate,
            lr_scheduler_type="cosine",
            per_device_train_batch_size=32,
            dataloader_pin_memory=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        fresh = AutoModelForSequenceClassification.from_config(config)
        hf_ssm.SSMTrainer(fresh, training, DataCollatorWithPadding(tokenizer), data["train"]).train()
        fresh.save_pretrained(folder)
    return AutoModelForSequenceClassification.from_pretrained(folder).eval()


@torch.no_grad()
def sure_rows(model: Any, data: Any, count: int, least: float, wanted: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Numbers and labels of the first test rows whose right class has at least this probability."""
    rows: list[tuple[int, int]] = []
    for number, (ids, label) in enumerate(zip(data["input_ids"], data["labels"], strict=True)):
        if wanted(label) and model(input_ids=torch.tensor([ids])).logits.softmax(-1)[0, label] >= least:
            rows.append((number, label))
        if len(rows) == count:
            break
    if not rows:
        raise SystemExit(f"no row has the probability {least}: train longer")
    return rows


def summary(values: Sequence[float]) -> list[float]:
    """Mean and two standard errors."""
    numbers = torch.tensor(values, dtype=torch.float64)
    return [numbers.mean().item(), 2 * numbers.std(correction=int(len(numbers) > 1)).item() / len(numbers) ** 0.5]


def measures(results: Sequence[MaskingResult]) -> dict[str, list[float]]:
    tests = [result.evidence for result in results]
    columns = [
        [test.kept for test in tests],
        *([getattr(test, name)[0] for test in tests] for name in ("sufficiency", "random_sufficiency", "all_drawn")),
        *([getattr(test, name)[0] for test in tests] for name in ("necessity", "random_necessity")),
        [float(not result.why_unexplained) for result in results],
        [result.tokens / len(result.input_ids) for result in results],
    ]
    return dict(zip(HEAD, map(summary, columns), strict=True))


def planted(args: argparse.Namespace, tokenizer: Any) -> list[dict[str, Any]]:
    sizes = {"num_train": 3000, "num_validation": 20, "num_test": 200}
    sizes = {"num_train": 40, "num_validation": 8, "num_test": 20} if args.tiny else sizes
    raw = load_sequences("planted-motifs", length=24 if args.tiny else 60, motif_length=6 if args.tiny else 12, **sizes)
    data, motif = tokenize(raw, tokenizer), len(raw["test"].features["label"].int2str(1))
    found = []
    for family in args.families:
        model = fit(family, data, tokenizer, args, 8, 5e-3, hidden_size=8 if args.tiny else 32)
        rows = sure_rows(model, data["test"], args.rows, 0.0 if args.tiny else 0.8, lambda label: label == 1)
        sites = [{start + k for start in raw["test"][n]["motif_positions"] for k in range(motif)} for n, _ in rows]
        for strategy, replace in PLANTED:
            probe = MaskingProbe(model, tokenizer, replace, strategy, draws=args.draws, allow_wrong=True)
            results = [probe.run(raw["test"][n]["sequence"], label, progress=False) for n, label in rows]
            kept = [set(result.kept.tolist()) for result in results]
            hits = [len(own & site) for own, site in zip(kept, sites, strict=True)]
            scores = {
                "precision": summary([hit / max(len(own), 1) for hit, own in zip(hits, kept, strict=True)]),
                "recall": summary([hit / len(site) for hit, site in zip(hits, sites, strict=True)]),
            }
            found.append({"model": family, "method": f"{strategy}, {replace}", **measures(results), **scores})
            report([found[-1]])
        found += null(model, tokenizer, [raw["test"][n]["sequence"] for n, _ in rows], family, args)
    return found


def null(model: Any, tokenizer: Any, texts: list[str], name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The gain of the area over a random order, in the model and in an untrained copy."""
    found = []
    for replace in ("n", "composition"):
        for kind in ("trained", "untrained"):
            set_seed(1)
            own = model if kind == "trained" else type(model)(model.config).eval()
            probe = MaskingProbe(own, tokenizer, replace, draws=args.draws, tests=False, allow_wrong=True)
            gains, areas = [], []
            for text in texts:
                result = probe.run(text, progress=False)
                random = probe.evaluate(text, result.order[torch.randperm(len(result.order))], points=20)
                areas.append(result.auc)
                gains.append(result.auc - torch.trapezoid(random, dx=1 / (len(random) - 1)).item())
            row = {"model": name, "method": f"{kind}, {replace}", "area": summary(areas), "gain": summary(gains)}
            found.append(row)
            report([row])
    return found


def real(args: argparse.Namespace, tokenizer: Any) -> list[dict[str, Any]]:
    raw = load_sequences(TABLE)
    if args.tiny:
        raw = type(raw)({name: rows.select(range(8)) for name, rows in raw.items()})
        raw = raw.map(lambda row: {"sequence": row["sequence"][:24]})
    data = tokenize(raw, tokenizer)
    size = {"hidden_size": 8 if args.tiny else 64, "bidirectional": True}
    model = fit("S4_coding", data, tokenizer, args, 5, 3e-3, **size)
    rows = sure_rows(model, data["test"], args.real_rows, 0.0 if args.tiny else 0.9, lambda label: True)
    found = []
    for replace, draws in REAL:
        probe = MaskingProbe(model, tokenizer, replace, draws=min(draws, args.draws), allow_wrong=True)
        results = [probe.run(raw["test"][n]["sequence"], label, progress=False) for n, label in rows]
        name = replace if replace == "n" else f"{replace}, K = {draws}"
        found.append({"model": "S4, coding", "method": name, **measures(results)})
        report([found[-1]])
    return found


def report(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        numbers = {name: value for name, value in row.items() if name not in ("model", "method")}
        cells = [f"{mean:.3g} ± {error:.2g}" for mean, error in numbers.values()]
        print_table(["model", "method", *numbers], [[row["model"], row["method"], *cells]])


def main(argv: Sequence[str] | None = None) -> None:
    parser = experiment_parser(__doc__.splitlines()[0], lambda content: report(content["rows"]))
    parser.add_argument("--folder", default="runs/probe_evidence", help="models (default: %(default)s)")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--parts", nargs="+", choices=("planted", "real"), default=["planted", "real"])
    parser.add_argument("--rows", type=int, default=6, help="rows of planted motifs (default: %(default)s)")
    parser.add_argument("--real-rows", type=int, default=3, help="rows of real DNA (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=16, help="number of draws (default: %(default)s)")
    args = parser.parse_args(argv)
    logging.set_verbosity_error()
    if args.tiny:
        args.rows, args.real_rows, args.draws, args.families = 2, 2, 2, args.families[:1]
    tokenizer = hf_ssm.build_dna_tokenizer()
    rows: list[dict[str, Any]] = []
    for part in args.parts:
        rows += {"planted": planted, "real": real}[part](args, tokenizer)
    words = ["python", "examples/probe_evidence.py", *(sys.argv[1:] if argv is None else argv)]
    write_results(args, {"command": shlex.join(words), "rows": rows})


if __name__ == "__main__":
    main()
