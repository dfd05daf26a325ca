"""Packed rows and padded batches, on the lengths of real sequences.

    python benchmarks/packing.py TABLE.csv [TABLE.csv ...] --column sequence   # both sections; minutes on two cores
    python benchmarks/packing.py layouts TABLE.csv --column text --longest 2048
    python benchmarks/packing.py --tiny                  # takes seconds; the numbers are meaningless

`models` measures steps (forward and backward) of small causal language models on the same documents, once as padded
batches of documents in random order and once as packed rows. A ratio is the tokens per second of packed rows divided by
those of padded batches. `layouts` compares ways to convolve the documents of a packed row with a long kernel; a ratio
is the time of a way divided by that of the package. All contenders run alternately in one process and must agree.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial

import datasets
import torch
from _measure import TABLE_HEAD, Row, add_output, check_agreement, race, ratios, write_rows
from torch import Tensor

import hf_ssm
from hf_ssm.ops.documents import Documents
from hf_ssm.ops.long_conv import long_conv

SECTIONS = ("models", "layouts")
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


def each_alone(documents: Documents, u: Tensor, kernel: Tensor) -> Tensor:
    """A transform of the whole row for each document, with all others set to zero."""
    numbers = torch.arange(len(documents)).repeat_interleave(documents.lengths)
    total = torch.zeros_like(u)
    for number in range(len(documents)):
        own = (numbers == number).view(1, -1, 1)
        total = total + long_conv(u * own, kernel) * own
    return total


def in_a_loop(documents: Documents, u: Tensor, kernel: Tensor) -> Tensor:
    """One convolution for each document."""
    return torch.cat([long_conv(part, kernel) for part in u.split(documents.lengths.tolist(), dim=1)], dim=1)


def in_buckets(documents: Documents, u: Tensor, kernel: Tensor) -> Tensor:
    return documents.restore(documents.map(lambda batch, _: long_conv(batch, kernel), documents.arrange(u)))


def compare_layouts(lengths: Sequence[int], channels: int, masked: bool, **how) -> list[Row]:
    sizes = torch.tensor(lengths)
    starts = sizes.cumsum(0) - sizes
    make = partial(Documents, torch.zeros_like(sizes), starts, sizes, (1, int(sizes.sum())))
    u = torch.randn(1, int(sizes.sum()), channels, requires_grad=True)
    kernel = torch.randn(channels, int(sizes.max())) * 0.99 ** torch.arange(int(sizes.max()))
    kernel.requires_grad_()
    default = make()

    def call(way: Callable[[Documents, Tensor, Tensor], Tensor], documents: Documents) -> tuple[Tensor, ...]:
        y = way(documents, u, kernel)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (u, kernel))

    ways = {"buckets of the package": (in_buckets, default)}
    ways |= {f"buckets, share {share}": (in_buckets, make(share=share)) for share in (0.5, 0.7, 0.9, 0.95)}
    ways["one padded batch"] = in_buckets, make(share=0.0)
    ways["equal lengths together"] = in_buckets, make(share=1.0)
    ways["one document at a time"] = in_a_loop, default
    if masked:
        ways["masked transforms of the row"] = each_alone, default
    calls = {name: partial(call, *way) for name, way in ways.items()}
    times = race(calls, check_agreement(calls, how["tolerance"]), how["repetitions"], how["turn"])
    first, *others = calls
    print(f"{len(lengths)} documents of {min(lengths)} to {max(lengths)} positions.\n\n{TABLE_HEAD}")
    rows = []
    for name in others:
        rows.append(Row(f"layouts, {len(lengths)} documents", name, "time / package", ratios(times, [name], [first])))
        print(rows[-1], flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arguments", nargs="*", metavar="SECTION or TABLE", help=f"{', '.join(SECTIONS)}; csv files")
    parser.add_argument("--column", default="sequence", help="the column of the sequences (default: sequence)")
    parser.add_argument("--longest", type=int, default=2048, help="longer sequences are cut (default: 2048)")
    parser.add_argument("--batch-size", type=int, default=32, help="documents of a batch (default: 32)")
    parser.add_argument("--batches", type=int, default=4, help="default: 4")
    parser.add_argument("--hidden-size", type=int, default=64, help="default: 64")
    parser.add_argument("--repetitions", type=int, default=7, help="default: 7")
    parser.add_argument("--tiny", action="store_true", help="a few tokens, to check that the script runs")
    add_output(parser)
    args = parser.parse_args(argv)
    sections = [name for name in args.arguments if name in SECTIONS] or SECTIONS
    tables = [name for name in args.arguments if name not in SECTIONS]
    if not tables and not args.tiny:
        parser.error("give at least one table, or --tiny")
    random.seed(0)
    torch.manual_seed(0)
    lengths = lengths_of_tables(tables, args.column, args.longest) if tables else [1, 9, 30, 3, 40, 17, 2, 2]
    random.shuffle(lengths)
    if args.tiny:
        args.batch_size, args.batches, args.hidden_size, args.repetitions = 4, 2, 8, 2
    how = {"repetitions": args.repetitions, "turn": 0.0 if args.tiny else 0.1, "tolerance": 1e-4}
    rows = []
    if "models" in sections:
        models = build_models(args.hidden_size, args.longest)
        rows += compare_models(models, lengths, args.batch_size, args.batches, **how)
    if "layouts" in sections:
        for count in (args.batch_size, 8 * args.batch_size):
            print()
            rows += compare_layouts(lengths[:count], args.hidden_size, masked=count == args.batch_size, **how)
    write_rows(args.output, rows)


if __name__ == "__main__":
    main()
