"""Where the models of `hf-ssm benchmark examples/suites/real_dna.yml` err, beside the counts of words.

Reads the folders that the commands of docs/experiments/real-dna.md have written. The test rows are sorted by their
share of C and G and cut into three equal parts. For each part: the accuracies of the two classifiers, and the share of
the rows that only one of them has right. These shares are means over the seeds. The difference of the two accuracies is
given with its paired standard error: that of the mean over the rows of the difference between the classifiers, itself a
mean over the seeds.

    python examples/real_dna_errors.py --output examples/results/real_dna_errors.json

Needs scikit-learn (the extra `test`).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _experiment import experiment_parser, print_table, write_results
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_ssm.data import load_sequences
from hf_ssm.inference.predict import predict
from hf_ssm.suites.supervised import word_counts

PARTS = ("low", "middle", "high")


def main(argv: Sequence[str] | None = None) -> None:
    parser = experiment_parser(
        "Accuracy by the share of C and G, and rows that only one of two classifiers gets right.", show
    )
    parser.add_argument("--folder", default="runs/real-dna", help="has a folder for each task")
    parser.add_argument("--tasks", nargs="+", default=["human_or_worm", "promoters", "enhancers"])
    args = parser.parse_args(argv)
    found = {name: errors_of(path, name) for name in args.tasks if (path := Path(args.folder, name)).is_dir()}
    if not found:
        raise SystemExit(f"--folder {args.folder!r}: it has none of the folders {', '.join(args.tasks)}")
    show({"errors": found})
    write_results(args, {"errors": found})


def show(content: dict[str, Any]) -> None:
    """Print the accuracies and their differences."""
    columns = ("rows", "CG", "words", "model", "only model", "only words")
    rows = [
        [name, part, *(format(values[column], "" if column == "rows" else ".4f") for column in columns)]
        for name, one in content["errors"].items()
        for part, values in one["parts"].items()
    ]
    print_table(["data", "share of C and G", *columns], rows)
    for name, one in content["errors"].items():
        print(f"{name}: model - words = {one['difference']:+.4f} ± {one['standard error']:.4f}, {one['seeds']} seeds")


def errors_of(folder: Path, task: str) -> dict[str, Any]:
    """The measurements of a task in the folder of its suite."""
    splits = load_sequences(folder / "data" / f"{task}.csv.gz", validation_fraction=0.0, test_fraction=0.0)
    sequences, labels = list(splits["test"]["sequence"]), np.array(splits["test"]["label"])
    runs = json.loads((folder / "results.json").read_text(encoding="utf-8"))["runs"]
    (baseline,) = [run for run in runs if run["how"] == "words"]
    measured = baseline["results"][0]
    words = right_by_words(splits, measured["chosen"]["k"], measured["chosen"]["C"], labels)
    if abs(words.mean() - measured["value"]) > 1e-9:
        raise SystemExit(
            f"{folder / 'results.json'}: the words have an accuracy of {measured['value']:.4f}, fitted again "
            f"{words.mean():.4f}: another version wrote the folder, run `hf-ssm benchmark` on it again"
        )
    # An interrupted run has checkpoints, and no model.
    models = [path.parent for path in sorted((folder / "runs" / task).glob("*/model.safetensors"))]
    model = np.stack([right_by_model(path, sequences, labels) for path in models])
    shares = np.array([(text.upper().count("C") + text.upper().count("G")) / len(text) for text in sequences])
    # Ties keep the order of the rows.
    order = np.argsort(shares, kind="stable")
    parts = dict(zip(PARTS, np.array_split(order, len(PARTS)), strict=True)) | {"all": order}
    difference = model.mean(0) - words
    return {
        "parts": {
            name: {
                "rows": len(rows),
                "CG": float(shares[rows].mean()),
                "words": float(words[rows].mean()),
                "model": float(model[:, rows].mean()),
                "only model": float((model[:, rows] & ~words[rows]).mean()),
                "only words": float((~model[:, rows] & words[rows]).mean()),
            }
            for name, rows in parts.items()
        },
        "difference": float(difference.mean()),
        "standard error": float(difference.std(ddof=1) / np.sqrt(len(difference))),
        "seeds": len(models),
    }


def right_by_words(splits: Any, length: int, penalty: float, labels: np.ndarray) -> np.ndarray:
    """Whether the counts of words of `length` letters have each test row right, `(rows,)`; `penalty` is C."""
    from sklearn.linear_model import LogisticRegression

    train, test = (word_counts(splits[name]["sequence"], length) for name in ("train", "test"))
    model = LogisticRegression(C=penalty, max_iter=2000).fit(train, splits["train"]["label"])
    return np.asarray(model.predict(test) == labels)


def right_by_model(path: Path, sequences: Sequence[str], labels: np.ndarray) -> np.ndarray:
    """Whether a trained model has each test row right, `(rows,)`."""
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    table = predict(model, AutoTokenizer.from_pretrained(path), sequences, aggregate="mean")
    columns = [name for name in table.column_names if name.startswith("probability_")]
    return np.asarray(np.stack([np.array(table[name]) for name in columns], axis=1).argmax(1) == labels)


if __name__ == "__main__":
    main()
