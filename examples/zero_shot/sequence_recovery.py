"""Sequence recovery: the share of the next bases that a causal model generates correctly.

A model reads a context and generates the next bases greedily, as in the evaluations of Evo 2 and Carbon. The share of
correct bases is averaged over random windows of a FASTA file. "Next base" is the accuracy by teacher forcing: the most
probable base after the true ones. The baseline is a Markov chain: the most frequent base after the last k bases, in the
sequences of `--baseline` (default: the contexts themselves), with fewer bases where these have not occurred.

    python examples/zero_shot/sequence_recovery.py CHECKPOINT --fasta GENOME.fa.gz --baseline TRAINING.fa.gz

± is the standard error over windows.

Legend: `B` windows, `L` bases of a context or a sequence, `n` generated bases.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _markov import MarkovChain, matches
from _zero_shot import (
    mean_and_error,
    print_table,
    random_bases,
    recipe_model,
    recipe_parser,
    run_recipe,
    sampled,
    windows,
    with_error,
    write_results,
)
from torch import Tensor

from hf_ssm.data.records import Record, read_records
from hf_ssm.inference.likelihoods import without_end
from hf_ssm.inference.model import SequenceModel
from hf_ssm.utils.evaluation import evaluating


def continuations(reader: SequenceModel, contexts: Sequence[str], count: int) -> list[str]:
    """The next `count` letters after each context, generated greedily."""
    encoded = [without_end(own) for own in reader.encode([Record(text, "a context") for text in contexts])]
    by_length: dict[int, list[int]] = {}
    for number, ids in enumerate(encoded):
        by_length.setdefault(len(ids), []).append(number)
    found: dict[int, str] = {}
    for length, numbers in by_length.items():
        size = max(1, reader.max_tokens_per_batch // (length + count))
        for first in range(0, len(numbers), size):
            part = numbers[first : first + size]
            ids = generated(reader, torch.stack([encoded[number] for number in part]), count)
            texts = reader.tokenizer.batch_decode(ids, skip_special_tokens=True)
            found |= {number: "".join(text.split()) for number, text in zip(part, texts, strict=True)}
    return [found[number][:count].upper() for number in range(len(contexts))]


def generated(reader: SequenceModel, ids: Tensor, count: int) -> Tensor:
    """The most probable next `count` tokens `(B, count)` after `(B, L)`, without special tokens."""
    ids = ids.to(reader.device)
    vocabulary = len(reader.model.get_input_embeddings().weight)
    special = [token for token in reader.tokenizer.all_special_ids if token < vocabulary]
    if hasattr(reader.model, "generate"):
        options: dict[str, Any] = {} if reader.tokenizer.pad_token_id is not None else {"pad_token_id": 0}
        mask = torch.ones_like(ids)
        written = reader.model.generate(
            ids, attention_mask=mask, max_new_tokens=count, do_sample=False, suppress_tokens=special, **options
        )
        return written[:, ids.shape[1] :]
    # Code of the Hub for older versions of transformers has no `generate`, and no cache.
    for _ in range(count):
        logits = reader.forward(ids).logits[:, -1]
        logits[:, special] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    return ids[:, -count:]


def next_base_accuracy(reader: SequenceModel, texts: Sequence[str], count: int) -> list[float] | None:
    """Accuracy by teacher forcing over the last `count` bases; `None` if a token is not one base."""
    encoded = reader.encode([Record(text, "a window") for text in texts])
    if any(int((~own.special).sum()) != len(text) for own, text in zip(encoded, texts, strict=True)):
        return None
    found: dict[int, float] = {}
    for batch in reader.run(encoded):
        predicted = batch.outputs.logits.argmax(-1).cpu()
        for row, own in zip(batch.rows, predicted, strict=True):
            ids = without_end(encoded[row])
            found[row] = float((own[len(ids) - count - 1 : len(ids) - 1] == ids[-count:]).double().mean())
    return [found[row] for row in range(len(texts))]


def evaluate(reader: SequenceModel, texts: Sequence[str], count: int) -> dict[str, dict[str, float] | None]:
    """Means and standard errors of a model over windows, whose last `count` bases it has to find."""
    with evaluating(reader.model):
        found = continuations(reader, [text[:-count] for text in texts], count)
        forced = next_base_accuracy(reader, texts, count)
    recovered = [matches(own, text[-count:]) for own, text in zip(found, texts, strict=True)]
    return {"recovery": mean_and_error(recovered), "next_base": None if forced is None else mean_and_error(forced)}


def evaluate_chain(chain: MarkovChain, texts: Sequence[str], count: int, order: int) -> dict[str, dict[str, float]]:
    """As `evaluate`, for a Markov chain."""
    pairs = [chain.recovery(text[:-count], text[-count:], order) for text in texts]
    recovered, forced = zip(*pairs, strict=True)
    return {"recovery": mean_and_error(recovered), "next_base": mean_and_error(forced)}


def read_windows(args: argparse.Namespace, rng: random.Random) -> list[str]:
    """Windows of the FASTA file; generated bases with `--tiny` and without a file."""
    length = args.context + args.bases
    if args.fasta is None:
        if not args.tiny:
            raise ValueError("--fasta is missing: give the file whose windows are recovered.")
        return [random_bases(rng, length) for _ in range(args.windows)]
    found = sampled(windows(read_records(args.fasta), length), args.windows, rng)
    if not found:
        raise ValueError(
            f"--fasta {str(args.fasta)!r} has no window of {length} bases A, C, G and T: lower --context or --bases."
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """The model, the baselines, and the table."""
    settings = {
        "windows": (500, "number of windows"),
        "context": (1000, "bases before the generated ones"),
        "bases": (30, "bases to generate"),
        "orders": (list(range(12)), "of the Markov chains, at most 11"),
    }
    tiny = {"windows": 4, "context": 40, "bases": 6, "orders": [0, 2]}
    parser = recipe_parser(__doc__, show, settings, tiny)
    parser.add_argument("--fasta", type=Path, help="sequences to recover (FASTA or table, also .gz)")
    parser.add_argument("--baseline", type=Path, help="sequences to count for the baseline; default: the contexts")
    args = parser.parse_args(argv)
    if min(args.windows, args.context, args.bases) < 1:
        raise ValueError("--windows, --context and --bases must be positive.")
    texts = read_windows(args, random.Random(args.seed))
    reader = recipe_model(args)
    if reader.head != "causal":
        raise ValueError(f"{type(reader.model).__name__} is no causal language model, which generation needs.")
    found = {"model": evaluate(reader, texts, args.bases)}
    counted = (text[: args.context] for text in texts)
    if args.baseline is not None:
        counted = (record.sequence for record in read_records(args.baseline))
    chain = MarkovChain(counted, max(args.orders))
    found |= {f"Markov chain, order {k}": evaluate_chain(chain, texts, args.bases, k) for k in args.orders}
    print(f"The {args.bases} bases after {args.context}, {len(texts)} windows")
    content = {"windows": len(texts), "accuracy": found}
    show(content)
    write_results(args, content)


def show(content: dict[str, Any]) -> None:
    """Print the accuracies."""
    print_table(
        ["", "generated bases", "next base"],
        [
            [name, *("" if part is None else with_error(part) for part in own.values())]
            for name, own in content["accuracy"].items()
        ],
    )


if __name__ == "__main__":
    run_recipe(main)
