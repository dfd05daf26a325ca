"""Accuracy of two constant guesses on ListOps, for comparison with models.

The first guess is the most frequent answer in training, the second the most frequent answer in training of expressions
with the same outermost operator (a maximum is often 9, a minimum 0).

    python examples/listops_baseline.py
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from _experiment import experiment_parser, print_table, write_results
from datasets import DatasetDict

from hf_ssm.data import load_sequences
from hf_ssm.tokenization import build_listops_tokenizer

FILES = {"dataset": "train", "test_file": "test"}
DATA = "data"  # of get_data.py


def main(argv: Sequence[str] | None = None) -> None:
    files = {name: f"{DATA}/listops_len95-105_{split}.tsv.gz" for name, split in FILES.items()}
    args = experiment_parser(__doc__, show, files, cost="counts of 10,000 rows").parse_args(argv)
    columns = {"sequence_column": "Source", "label_column": "Target"}
    data = load_sequences(args.dataset, test_file=args.test_file, validation_fraction=0.0, **columns)
    found = {"most frequent answer": guess(data, False), "most frequent answer of the operator": guess(data, True)}
    content = {"accuracy": found, "rows": {name: split.num_rows for name, split in data.items()}}
    show(content)
    write_results(args, content)


def show(content: dict[str, Any]) -> None:
    """Print the accuracies."""
    print_table(["guess", "test accuracy"], [[name, f"{value:.4f}"] for name, value in content["accuracy"].items()])


def guess(data: DatasetDict, by_operator: bool) -> float:
    """Accuracy of the most frequent value in training, optionally per first token."""
    tokenizer = build_listops_tokenizer()
    kinds = {}
    for name, split in data.items():
        first = [ids[0] for ids in tokenizer(list(split["Source"]))["input_ids"]]
        kinds[name] = first if by_operator else [0] * split.num_rows
    counts = Counter(zip(kinds["train"], data["train"]["Target"], strict=True))
    answers: dict[int, int] = {}
    for (kind, answer), _ in counts.most_common():
        answers.setdefault(kind, answer)
    right = [answers.get(kind) == value for kind, value in zip(kinds["test"], data["test"]["Target"], strict=True)]
    return sum(right) / len(right)


if __name__ == "__main__":
    main()
