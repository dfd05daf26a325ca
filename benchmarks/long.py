"""Training on long sequences: memory and time of the routes, one sequence at a time.

    python benchmarks/long.py                                        # some ten minutes on two cores
    python benchmarks/long.py --families S4D Mamba --lengths 131072
    python benchmarks/long.py --lengths 1048576 --routes layers --repetitions 0
    python benchmarks/long.py --tiny                                 # takes seconds; the numbers are meaningless

A step computes the loss of a byte language model on one sequence, and its gradients. There are three routes: `usual`;
`layers`, which keeps the inputs of layers and computes the layers again (`activation_checkpointing_enable()`); and
`shared`, where each of two processes holds half of the positions (`hf_ssm.parallel.split_sequences`). For `shared`,
only the memory of the larger process is measured. Peak memory is the largest resident memory during a step minus the
resident memory before it, in a fresh process after a small step. Times are CPU seconds on a CPU, which other processes
change less than the time on the clock. The routes alternate in one process, and their losses and gradients must agree.
Ratios are those of a route to `usual`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _measure import Row, benchmark_parser, check_agreement, write_rows
from _memory import _ALLOCATOR, can_measure, measure
from torch import Tensor

import hf_ssm
from hf_ssm.parallel import split_sequences

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "S4D": ("S4", {}),
    "S4": ("S4", {"kernel_type": "s4"}),
    "S5": ("S5", {}),
    "Mamba": ("SelectiveSSM", {}),
    "Mamba-2": ("SSD", {}),
    "Hyena, S4D filters": ("Hyena", {"filter_type": "s4d"}),
    "Hyena": ("Hyena", {}),
    "Mamba, two-sided": ("SelectiveSSM", {"bidirectional": True}),
}
ROUTES = ("usual", "layers", "shared")
QUANTITIES = ("memory per token", "memory / usual", "time per 1,000 tokens", "time / usual")
WARM_UP = 256


def build(family: str, route: str, length: int, sizes: dict[str, Any]) -> Callable[[], tuple[Tensor, ...]]:
    """A training step without optimizer: the loss and the gradients of all parameters."""
    name, flags = FAMILIES[family]
    flags = {"max_position_embeddings": length, **flags} if name == "Hyena" else flags
    fields = {"hidden_size": sizes["hidden_size"], "num_hidden_layers": sizes["layers"], "vocab_size": 256}
    if name == "SSD":
        fields["head_dim"] = min(64, sizes["hidden_size"])
    head = "ForMaskedLM" if flags.get("bidirectional") else "ForCausalLM"
    torch.manual_seed(0)
    model = getattr(hf_ssm, f"{name}{head}")(getattr(hf_ssm, f"{name}Config")(**fields, **flags)).to(sizes["device"])
    if route == "shared":
        split_sequences(model)
    elif route == "layers":
        model.activation_checkpointing_enable()
    tokens = torch.randint(0, 256, (1, length)).to(sizes["device"])

    def step() -> tuple[Tensor, ...]:
        model.zero_grad()
        loss = model.train()(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)

    return step


def peak(family: str, route: str, length: int, sizes: dict[str, Any]) -> int:
    """Peak memory of a step in bytes, in a fresh process; of `shared` that of the larger one of two processes."""
    request = json.dumps({"family": family, "route": route, "length": length, "sizes": sizes})
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", request]
    count = 2 if route == "shared" else 1
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, **_ALLOCATOR, "WORLD_SIZE": str(count), "MEETING_POINT": f"file://{folder}/store"}
        processes = [
            subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env={**variables, "RANK": str(rank)})
            for rank in range(count)
        ]
        outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise RuntimeError(f"peak memory of {family}, {route}: exit {process.returncode}\n{errors[-2000:]}")
    return max(json.loads(printed.splitlines()[-1])["extra"] for printed, _ in outputs)


def print_peak(request: dict[str, Any]) -> None:
    family, route, length, sizes = (request[name] for name in ("family", "route", "length", "sizes"))
    if route == "shared":
        backend = "nccl" if sizes["device"] == "cuda" else "gloo"
        where = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group(backend, init_method=os.environ["MEETING_POINT"], **where)
    build(family, route, WARM_UP, sizes)()
    print(json.dumps(measure(build(family, route, length, sizes), sizes["device"])))


def seconds(step: Callable[[], object], device: str) -> float:
    """CPU seconds of a call, of all threads; on a GPU seconds on the clock."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def compare(family: str, length: int, routes: Sequence[str], repetitions: int, sizes: dict[str, Any]) -> list[Row]:
    rows = []
    section = f"{family}, {length:,} tokens"
    memory = {route: peak(family, route, length, sizes) for route in routes} if can_measure(sizes["device"]) else {}
    for route, size in memory.items():
        rows.append(Row(section, route, "memory per token", [size / length / 1024], "KiB"))
        if route != "usual" and "usual" in memory:
            rows.append(Row(section, route, "memory / usual", [size / memory["usual"]]))
    if repetitions:
        steps = {route: build(family, route, length, sizes) for route in routes if route != "shared"}
        check_agreement(steps, 1e-3)
        times: dict[str, list[float]] = {route: [] for route in steps}
        for _ in range(repetitions):
            for route, step in steps.items():
                times[route].append(seconds(step, sizes["device"]))
        for route in steps:
            rows.append(Row(section, route, "time per 1,000 tokens", [t / length * 1e6 for t in times[route]], "ms"))
            if route != "usual" and "usual" in times:
                paired = zip(times[route], times["usual"], strict=True)
                rows.append(Row(section, route, "time / usual", [one / other for one, other in paired]))
    return rows


def print_lines(family: str, length: int, rows: Sequence[Row], routes: Sequence[str]) -> None:
    """One line of the table for each route: the medians."""
    for route in routes:
        medians = {row.quantity: f"{row.middle[1]:.3g} {row.unit}".strip() for row in rows if row.what == route}
        cells = [family, f"{length:,}", route, *(medians.get(name, "") for name in QUANTITIES)]
        print(f"| {' | '.join(cells)} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    settings = {
        **{"families": list(FAMILIES), "lengths": [65_536], "routes": list(ROUTES), "hidden_size": 64, "layers": 4},
        "repetitions": (3, "timed steps of each route; 0: memory"),
    }
    tiny = {"lengths": [512], "hidden_size": 8, "layers": 2, "repetitions": 1}
    parser = benchmark_parser(__doc__, settings, tiny, "some ten minutes on two cores")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        return print_peak(json.loads(args.measure))
    sizes = {"hidden_size": args.hidden_size, "layers": args.layers, "device": args.device}
    print(f"Hidden size {args.hidden_size}, {args.layers} layers, 256 bytes.\n")
    print(f"| family | tokens | route | {' | '.join(QUANTITIES)} |\n|{'---|' * (3 + len(QUANTITIES))}", flush=True)
    rows = []
    for length in args.lengths:
        for family in args.families:
            family_rows = compare(family, length, args.routes, args.repetitions, sizes)
            print_lines(family, length, family_rows, args.routes)
            rows += family_rows
    write_rows(args.output, rows, args.device)


if __name__ == "__main__":
    main()
