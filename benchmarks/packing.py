"""Packed rows and padded batches, on the lengths of real sequences.

    python benchmarks/packing.py TABLE.csv [TABLE.csv ...] --column sequence   # minutes on two cores
    python benchmarks/packing.py --tiny                  # takes seconds; the numbers are meaningless

It measures steps (forward and backward) of small causal language models on the same documents, once as padded batches
of documents in random order and once as packed rows. A ratio is the tokens per second of packed rows divided by those
of padded batches. Both run alternately in one process and must agree.
"""

import random
from collections.abc import Sequence
from functools import partial

import datasets
import torch
from _measure import TABLE_HEAD, Row, benchmark_parser, check_agreement, race, ratios, write_rows
from torch import Tensor

import hf_ssm

VOCABULARY = 16


def lengths_of_tables(tables: Sequence[str], column: str, longest: int) -> list[int]:
    """Number of characters of each sequence; longer ones are cut."""
    rows = datasets.load_dataset("csv", data_files=list(tables), split="train")
    return [min(len(text), longest) for text in rows[column]]


def build_models(hidden_size: int, longest: int) -> dict[str, torch.nn.Module]:
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "use_cache": False}
    torch.manual_seed(0)
    return {
        "S4D": hf_ssm.S4ForCausalLM(hf_ssm.S4Config(**common)),
        "S4": hf_ssm.S4ForCausalLM(hf_ssm.S4Config(kernel_type="s4", **common)),
        "Hyena": hf_ssm.HyenaForCausalLM(hf_ssm.HyenaConfig(max_position_embeddings=longest, **common)),
        "Mamba blocks": hf_ssm.SelectiveSSMForCausalLM(hf_ssm.SelectiveSSMConfig(**common)),
        "plain selective blocks": hf_ssm.SelectiveSSMForCausalLM(hf_ssm.SelectiveSSMConfig(block="plain", **common)),
    }


def batches_of(lengths: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The same documents as a padded batch and as one packed row, with labels."""
    documents = [torch.randint(0, VOCABULARY, (length,)) for length in lengths]
    padded = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(part) for part in documents], batch_first=True)
    packed = torch.cat(documents).unsqueeze(0)
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).unsqueeze(0)
    return (
        {"input_ids": padded, "attention_mask": mask, "labels": padded},
        {"input_ids": packed, "seq_idx": numbers, "labels": packed},
    )


def steps(model: torch.nn.Module, batches: Sequence[dict[str, Tensor]]) -> tuple[Tensor, ...]:
    """The sum of the losses and the gradients of all steps."""
    model.zero_grad()
    total = torch.zeros(())
    for batch in batches:
        loss = model(**batch).loss
        loss.backward()
        total += loss.detach()
    return total, *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)


def compare_models(
    models: dict[str, torch.nn.Module], lengths: Sequence[int], per_batch: int, count: int, **how
) -> list[Row]:
    groups = [lengths[start : start + per_batch] for start in range(0, per_batch * count, per_batch)]
    padded, packed = zip(*(batches_of(group) for group in groups), strict=True)
    share = sum(map(sum, groups)) / sum(batch["input_ids"].numel() for batch in padded)
    print(f"{count} batches of {per_batch} documents, {share:.2f} of their positions are tokens.\n\n{TABLE_HEAD}")
    rows = [Row("models", "padded batches", "share of tokens", [share])]
    for name, model in models.items():
        calls = {"packed": partial(steps, model, packed), "padded": partial(steps, model, padded)}
        times = race(calls, check_agreement(calls, how["tolerance"]), how["repetitions"], how["turn"])
        rows.append(Row("models", name, "tokens per second", ratios(times, ["padded"], ["packed"])))
        print(rows[-1], flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    settings = {
        "column": ("sequence", "the column of the sequences"),
        "longest": (2048, "longer sequences are cut"),
        "batch_size": (32, "documents of a batch"),
        **{"batches": 4, "hidden_size": 64, "repetitions": 7},
    }
    tiny = {"batch_size": 4, "batches": 2, "hidden_size": 8, "repetitions": 2}
    parser = benchmark_parser(__doc__, settings, tiny, "minutes on one core")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="csv files")
    args = parser.parse_args(argv)
    if not args.tables and not args.tiny:
        parser.error("give at least one table, or --tiny")
    random.seed(0)
    torch.manual_seed(0)
    lengths = lengths_of_tables(args.tables, args.column, args.longest) if args.tables else [1, 9, 30, 3, 40, 17, 2, 2]
    random.shuffle(lengths)
    how = {"repetitions": args.repetitions, "turn": 0.0 if args.tiny else 0.1, "tolerance": 1e-4}
    models = build_models(args.hidden_size, args.longest)
    rows = compare_models(models, lengths, args.batch_size, args.batches, **how)
    write_rows(args.output, rows)


if __name__ == "__main__":
    main()
