"""The data of the experiments on length: Figures 3 and 4 and Table 1 of Honarpisheh et al. 2025, Appendix A.

Figure 3: how many ones the strings of the sparse-majority task hold (T = 200, 1,000 strings for training, of which a
tenth of the ones were turned into zeros, and 1,000 for testing). Figure 4 and Table 1: how many tokens the reviews of
IMDb have. The paper counts the word pieces of BERT; here tokens are words and punctuation marks, as in
`imdb_length.py`, because BERT's tokenizer is a download.

    python examples/get_data.py imdb_full
    python examples/length_data.py --output examples/results/length_data.json
    python docs/figures.py length_data
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from _experiment import experiment_parser, print_table, write_results
from _tasks import sparse_majority
from datasets import Dataset

from hf_ssm.data import load_sequences
from hf_ssm.tokenization import build_word_tokenizer

REVIEWS = "data/imdb_full.csv.gz"  # of get_data.py
# Table 1.
PAPER = {
    "train": {"max": 3127, "min": 13, "mean": 314, "median": 233},
    "test": {"max": 3157, "min": 10, "mean": 307, "median": 230},
}
# Width of the bins of the histograms.
ONES, TOKENS = 10, 100


def main(argv: Sequence[str] | None = None) -> None:
    settings = {"dataset": (REVIEWS, "a table with text, label and split, or a Hub id")}
    args = experiment_parser(__doc__, show, settings, cost="tokenizing 50,000 reviews").parse_args(argv)
    strings = sparse_majority(num_train=1000, num_validation=0, num_test=1000, length=200, seed=0)
    ones = {name: [text.count("1") for text in split["sequence"]] for name, split in strings.items()}
    reviews = load_sequences(args.dataset, sequence_column="text", validation_fraction=0.0, seed=0)
    lengths = {name: count_tokens(split) for name, split in reviews.items()}
    for name, values in ones.items():
        print(
            f"sparse majority, {name}: {min(values)} to {max(values)} ones of 200, mean {statistics.mean(values):.1f}"
        )
    content = {
        "ones": {name: histogram(values, ONES) for name, values in ones.items()},
        "most ones": {name: max(values) for name, values in ones.items()},
        "tokens": {name: histogram(values, TOKENS) for name, values in lengths.items()},
        "reviews": {name: len(values) for name, values in lengths.items()},
        "table 1": {name: summary(values) for name, values in lengths.items()},
        "paper": PAPER,
    }
    show(content)
    write_results(args, content)


def show(content: dict[str, Any]) -> None:
    """Print the lengths of the reviews, and those of the paper."""
    table, paper = content["table 1"], content["paper"]
    header = ["split", "reviews", *PAPER["train"], *(f"paper's {name}" for name in PAPER["train"])]
    rows = [[name, content["reviews"][name], *row.values(), *paper[name].values()] for name, row in table.items()]
    print_table(header, rows)


def count_tokens(split: Dataset) -> list[int]:
    """Number of words and punctuation marks of each review."""
    tokenizer = build_word_tokenizer(["word"], prose=True)
    return [len(ids) for ids in tokenizer(list(split["text"]))["input_ids"]]


def summary(values: Sequence[int]) -> dict[str, int]:
    """The columns of Table 1, rounded to whole tokens."""
    mean, median = round(statistics.mean(values)), round(statistics.median(values))
    return {"max": max(values), "min": min(values), "mean": mean, "median": median}


def histogram(values: Sequence[int], width: int) -> list[int]:
    """How many values lie in [0, width), [width, 2 width), ..."""
    counts: Any = Counter(value // width for value in values)
    return [counts[place] for place in range(max(counts) + 1)]


if __name__ == "__main__":
    main()
