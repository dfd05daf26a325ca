"""Cost of the regulariser: training steps with and without λ Σ τ in the loss, alternately, in one process.

    python benchmarks/tau_overhead.py            # about ten minutes on two cores
    python benchmarks/tau_overhead.py --tiny     # takes seconds; the numbers are meaningless

A step is forward, backward and AdamW. Both kinds of step use one model, in alternating order. The script prints a table
of ratios, time with τ / time without: the median over the repetitions and the interquartile range, of wall time and of
CPU time (which other programs on the machine affect less).

Liu & Li 2024 (Table 2, grayscale CIFAR) train 1.10 times as long with their regulariser.
"""

import statistics
import time
from collections.abc import Sequence

import torch
import transformers
from _measure import Row, benchmark_parser, print_environment, write_rows

import hf_ssm

CLASSES = 10


def build_models(hidden_size: int, longest: int) -> dict[str, torch.nn.Module]:
    """Sequence classifiers of equal width and depth, of the families to which the τ of the paper applies."""
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2, "vocab_size": 64, "num_labels": CLASSES}
    hyena = {"max_position_embeddings": longest, **common}
    configs = {
        "S4D": hf_ssm.S4Config(**common),
        "Hyena": hf_ssm.HyenaConfig(**hyena),
        "Hyena, S4D filter": hf_ssm.HyenaConfig(filter_type="s4d", **hyena),
    }
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    return {name: auto.from_config(config).train() for name, config in configs.items()}


def step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
    weight: float,
) -> tuple[float, float]:
    """Wall time and CPU time of one training step in seconds; λ = 0 omits τ."""
    start = time.perf_counter(), time.process_time()
    outputs = model(**batch, output_tau=weight > 0)
    loss = outputs.loss + weight * outputs.tau.sum() if weight > 0 else outputs.loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def compare(
    model: torch.nn.Module, batch: dict[str, torch.Tensor], repetitions: int
) -> tuple[list[float], list[float]]:
    """Ratios of wall time and of CPU time, with τ / without."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for weight in (0.0, 1e-4):
        step(model, optimizer, batch, weight)
    wall, processor = [], []
    for repetition in range(repetitions):
        # The order alternates, because the second step finds warm caches.
        weights = (0.0, 1e-4) if repetition % 2 else (1e-4, 0.0)
        found = {weight: step(model, optimizer, batch, weight) for weight in weights}
        wall.append(found[1e-4][0] / found[0.0][0])
        processor.append(found[1e-4][1] / found[0.0][1])
    return wall, processor


def cell(ratios: Sequence[float]) -> str:
    """Median and interquartile range."""
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"


def main(argv: Sequence[str] | None = None) -> None:
    settings = {
        **{"lengths": [1024, 16384], "hidden_size": 128, "batch_size": 16},
        "repetitions": (40, "at the shortest length; fewer at longer ones"),
    }
    tiny = {"lengths": [16, 32], "hidden_size": 8, "repetitions": 4}
    args = benchmark_parser(__doc__, settings, tiny, "about ten minutes on two cores").parse_args(argv)
    lengths, hidden, repetitions = sorted(args.lengths), args.hidden_size, args.repetitions
    models = build_models(hidden, lengths[-1])
    print_environment(f"batch {args.batch_size}, hidden size {hidden}, 2 layers")
    print("| model | length | wall time | CPU time | repetitions |\n" + "|---" * 5 + "|")
    rows = []
    for length in lengths:
        batch = {
            "input_ids": torch.randint(0, 64, (args.batch_size, length)),
            "labels": torch.randint(0, CLASSES, (args.batch_size,)),
        }
        number = max(min(5, repetitions), repetitions * lengths[0] // length)
        for name, model in models.items():
            wall, processor = compare(model, batch, number)
            rows += [Row(name, f"L {length:,}", "wall time", wall), Row(name, f"L {length:,}", "CPU time", processor)]
            print(f"| {name} | {length} | {cell(wall)} | {cell(processor)} | {number} |", flush=True)
        write_rows(args.output, rows)


if __name__ == "__main__":
    main()
