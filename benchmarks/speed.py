"""Comparison with other implementations: ratios of time, peak memory, growth with the length.

    python benchmarks/speed.py                           # all sections; takes minutes on two cores
    python benchmarks/speed.py scan lti --repetitions 9  # selected sections
    python benchmarks/speed.py --output speed.json       # also stores every repetition, versions and machine
    python benchmarks/speed.py --tiny                    # takes seconds; the numbers are meaningless

Contenders run alternately in one process and must agree in values and gradients. A ratio is the time of a peer divided
by the time of hf_ssm within one repetition: above 1, hf_ssm is faster. Relative to a floor (work that cannot be
avoided), the ratio is the time of hf_ssm divided by the floor. On a CUDA device, sequences are bfloat16, and absolute
times are printed too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import transformers
from _contests import AUTOGRAD_FFT, CONTESTS, LISTING, MAMBAPY, OURS, TRANSFORMERS, Contest
from _measure import TABLE_HEAD, Row, benchmark_parser, check_agreement, describe_machine, race, ratios, write_rows
from _memory import can_measure, measure, measure_apart
from _peers import MAMBAPY_MISSING, has_mambapy

FAMILIES = ("selective", "S4D", "Hyena")
Sizes = Mapping[str, Any]


def contenders_to_rows(
    section: str, what: str, contest: Contest, times: Mapping[str, Sequence[float]], absolute: bool
) -> list[Row]:
    """Ratios peer / ours and ours / floor, and with `absolute` also milliseconds."""
    peers = [name for name in contest.contenders if name != OURS and name not in contest.floor]
    rows = [Row(section, what, f"{peer} / {OURS}", ratios(times, [peer], [OURS])) for peer in peers]
    if contest.floor:
        floor = " + ".join(contest.floor)
        named = f"({floor})" if len(contest.floor) > 1 else floor
        rows.append(Row(section, what, f"{OURS} / {named}", ratios(times, [OURS], contest.floor)))
    if absolute:
        rows += [Row(section, what, name, [1000 * t for t in taken], "ms") for name, taken in times.items()]
    return rows


class Bench:
    """State shared by all sections: device, repetitions, and the rows so far."""

    def __init__(self, device: str, repetitions: int, tiny: bool, report: Callable[[Row], None]):
        self.device, self.repetitions, self.tiny, self.report = device, repetitions, tiny, report
        self.turn = 0.0 if tiny else 0.1
        self.rows: list[Row] = []

    def add(self, *rows: Row) -> None:
        for row in rows:
            self.rows.append(row)
            self.report(row)

    def sizes(self, real: Sizes, tiny: Sizes) -> dict[str, Any]:
        return {**real, **(tiny if self.tiny else {}), "device": self.device}

    def times(self, section: str, what: str, name: str, sizes: Sizes, most: int | None = None) -> None:
        """Rows of a contest; `most` limits the repetitions of a slow one."""
        contest = CONTESTS[name](**sizes)
        first = check_agreement(contest.contenders, contest.tolerance)
        repetitions = min(self.repetitions, most or self.repetitions)
        times = race(contest.contenders, first, repetitions, self.turn)
        self.add(*contenders_to_rows(section, what, contest, times, absolute=self.device == "cuda"))

    def memory(self, section: str, what: str, name: str, sizes: Sizes, peers: Sequence[str]) -> None:
        """Peak memory of each contender, and the ratios."""
        if not can_measure(self.device):
            return
        found = {who: self.peak(name, who, sizes)["extra"] / 1e6 for who in (OURS, *peers)}
        self.add(*(Row(section, f"{what}, peak memory", who, [value], "MB") for who, value in found.items()))
        for peer in peers:
            if found[OURS] > 0:
                self.add(Row(section, f"{what}, peak memory", f"{peer} / {OURS}", [found[peer] / found[OURS]]))

    def peak(self, name: str, contender: str, sizes: Sizes) -> dict[str, int]:
        if self.device == "cuda" or self.tiny:
            # A separate process is needed for real sizes on a CPU only.
            call = CONTESTS[name](**sizes).contenders[contender]
            call()
            return measure(call, self.device)
        small = {"batch": 1} if "batch" in sizes else {}
        small["length"] = max(1, sizes["length"] // 8)
        return measure_apart(name, contender, sizes, {**sizes, **small})

    def growth(self, what: str, name: str, lengths: Sequence[int], sizes: Sizes) -> None:
        """Time per token at each length relative to the first length."""
        calls = {
            f"L = {length:,}": CONTESTS[name](**{**sizes, "length": length}).contenders[OURS] for length in lengths
        }
        first = {label: check_agreement({label: call}, math.inf)[label] for label, call in calls.items()}
        times = race(calls, first, self.repetitions, self.turn)
        shortest, *longer = calls
        for label, length in zip(longer, lengths[1:], strict=True):
            values = [ratio * lengths[0] / length for ratio in ratios(times, [label], [shortest])]
            self.add(Row("growth", f"{what}, time per token", f"{label} / {shortest}", values))
        if self.device == "cuda":
            per_token = zip(calls, lengths, strict=True)
            for label, length in per_token:
                taken = [1e6 * t / length for t in times[label]]
                self.add(Row("growth", f"{what}, time per token", label, taken, "us"))


def scan(bench: Bench) -> None:
    tiny = {"batch": 2, "channels": 16, "states": 4, "length": 32}
    real = {"batch": 4, "channels": 512, "states": 16, "length": 2048}
    for what, backward in (("forward", False), ("forward + backward", True)):
        sizes = bench.sizes({**real, "backward": backward}, tiny)
        bench.times("scan", what, "scan", sizes)
        peers = [MAMBAPY] if bench.device == "cpu" and has_mambapy() else []
        if bench.device == "cuda" or not backward:
            peers.append(TRANSFORMERS)
        bench.memory("scan", what, "scan", sizes, peers)


def training(bench: Bench) -> None:
    real = {"batch": 8, "length": 1024, "hidden": 256, "layers": 4}
    sizes = bench.sizes(real, {"batch": 2, "length": 32, "hidden": 16, "layers": 2})
    bench.times("training", "step", "training", sizes, most=3 if bench.device == "cpu" else None)
    peers = ([MAMBAPY] if has_mambapy() else []) if bench.device == "cpu" else [TRANSFORMERS]
    bench.memory("training", "step", "training", sizes, peers)


def decoding(bench: Bench) -> None:
    sizes = bench.sizes({"tokens": 256, "hidden": 256, "layers": 4}, {"tokens": 4, "hidden": 16, "layers": 2})
    bench.times("decoding", f"{sizes['tokens']} tokens, batch 1", "decoding", sizes, most=5)


def ssd(bench: Bench) -> None:
    tiny = {"batch": 2, "heads": 2, "states": 4, "length": 32}
    for what, backward in (("forward", False), ("forward + backward", True)):
        for states in (128,) if bench.tiny else (16, 64, 128, 256):
            real = {"batch": 2, "heads": 8, "states": states, "length": 1024, "backward": backward}
            bench.times("ssd", f"N {states}, {what}", "ssd", bench.sizes(real, tiny), most=5)
        bench.memory("ssd", what, "ssd", bench.sizes({**real, "states": 128}, tiny), [TRANSFORMERS])


def mamba2(bench: Bench) -> None:
    tiny = {"hidden": 64, "layers": 2, "states": 8, "batch": 2, "length": 32}
    shapes = ((64, 4, 128, 4, 1024), (256, 4, 64, 4, 512), (256, 4, 128, 1, 2048), (768, 2, 128, 1, 512))
    for hidden, layers, states, batch, length in shapes[: 1 if bench.tiny else None]:
        for what, backward in (("forward", False), ("step", True)):
            real = {"hidden": hidden, "layers": layers, "states": states, "batch": batch, "length": length}
            label = f"hidden {hidden}, {layers} layers, N {states}, batch {batch}, L {length:,}, {what}"
            bench.times("mamba2", label, "mamba2", bench.sizes({**real, "backward": backward}, tiny), most=3)


def decoding2(bench: Bench) -> None:
    for hidden, layers in ((256, 4),) if bench.tiny else ((256, 4), (768, 2)):
        sizes = bench.sizes({"tokens": 128, "hidden": hidden, "layers": layers}, {"tokens": 4, "hidden": 64})
        label = f"hidden {hidden}, {layers} layers, {sizes['tokens']} tokens, batch 1"
        bench.times("decoding2", label, "decoding2", sizes, most=5)


def lti(bench: Bench) -> None:
    for length in (32,) if bench.tiny else (1024, 16384):
        for what, backward in (("forward", False), ("forward + backward", True)):
            real = {"channels": 256, "pairs": 32, "length": length, "backward": backward}
            sizes = bench.sizes(real, {"channels": 4, "pairs": 4})
            label = f"L {length:,}, {what}"
            bench.times("lti", label, "lti", sizes)
            bench.memory("lti", label, "lti", sizes, [LISTING])


def convolution(bench: Bench) -> None:
    for what, backward in (("forward", False), ("forward + backward", True)):
        real = {"batch": 8, "channels": 256, "length": 16384, "backward": backward}
        sizes = bench.sizes(real, {"batch": 2, "channels": 4, "length": 64})
        bench.times("convolution", what, "convolution", sizes)
        bench.memory("convolution", what, "convolution", sizes, [AUTOGRAD_FFT])


def growth(bench: Bench) -> None:
    lengths = (32, 64, 128) if bench.tiny else tuple(2**k for k in range(10, 18))
    operators = {"scan": {"batch": 1, "channels": 256, "states": 16}, "convolution": {"batch": 1, "channels": 256}}
    for name, real in operators.items():
        for what, backward in (("forward", False), ("forward + backward", True)):
            sizes = bench.sizes({**real, "backward": backward}, {"channels": 4})
            bench.growth(f"{name}, {what}", name, lengths, sizes)
    lengths = (32, 64) if bench.tiny else tuple(2**k for k in range(9, 17))
    for family in FAMILIES:
        sizes = bench.sizes({"family": family, "hidden": 64, "layers": 2}, {"hidden": 8})
        bench.growth(f"{family} model, forward", "forward", lengths, sizes)
    for length in (32, 64) if bench.tiny else (512, 4096, 65536):
        for name, real in operators.items():
            sizes = bench.sizes({**real, "channels": 128, "length": length, "backward": False}, {"channels": 4})
            bench.times("growth", f"{name}, forward, L {length:,}", name, sizes, most=3)


def long(bench: Bench) -> None:
    """Peak memory of models for one long sequence, in a separate process."""
    if not can_measure(bench.device):
        return
    for family in ("Hyena", "S4D"):
        real = {"family": family, "hidden": 128, "layers": 2, "length": 2**20}
        sizes = bench.sizes(real, {"hidden": 8, "length": 512})
        peak = bench.peak("forward", OURS, sizes)
        what = f"{family} model, forward of {sizes['length']:,} tokens"
        bench.add(Row("long", what, "peak memory above the model's", [peak["extra"] / 1e6], "MB"))
        bench.add(Row("long", what, "peak memory of the process", [peak["total"] / 1e6], "MB"))


RUN = {run.__name__: run for run in (scan, training, decoding, ssd, mamba2, decoding2, lti, convolution, growth, long)}


def main(argv: Sequence[str] | None = None) -> None:
    settings = {"repetitions": (9, "of all but the slowest contests")}
    parser = benchmark_parser(__doc__, settings, {}, "minutes for each section on two cores")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one of {', '.join(RUN)}; default: all")
    parser.add_argument("--threads", type=int, help="default: chosen by torch")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if available")
    args = parser.parse_args(argv)
    unknown = [name for name in args.sections if name not in RUN]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}: choose from {', '.join(RUN)}")
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    machine = describe_machine(device)
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    print(
        f"{machine['device']}, {machine['processor']} ({machine['vectors']}), {machine['threads']} threads; {versions}"
    )
    if device == "cpu" and not has_mambapy():
        print(MAMBAPY_MISSING)
    if not can_measure(device):
        print("Peak memory is omitted: it can be measured on Linux and on CUDA only.")
    bench = Bench(device, args.repetitions, args.tiny, lambda row: print(row, flush=True))
    for section in args.sections or RUN:
        print(f"\n{section}\n\n{TABLE_HEAD}", flush=True)
        RUN[section](bench)
        if args.output:
            # After each section, so that an interrupted run keeps its results.
            write_rows(args.output, bench.rows, device, tiny=args.tiny)


if __name__ == "__main__":
    main()
