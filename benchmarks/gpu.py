"""The Triton kernels on a GPU: parity with the references in double precision, then times beside other implementations.

    python benchmarks/gpu.py                            # on a GPU; minutes
    python benchmarks/gpu.py scan --repetitions 9       # selected sections
    python benchmarks/gpu.py --output gpu.json
    TRITON_INTERPRET=1 python benchmarks/gpu.py --tiny  # without a GPU, in Triton's interpreter; times are meaningless

Contenders run alternately in one process and must agree. A row has milliseconds, or a ratio: the time of a peer divided
by the time of hf_ssm within one repetition (above 1, hf_ssm is faster). Sequences and models are bfloat16, and the
dynamics float32. A kernel of mamba_ssm is compared where that package is installed. After `--seconds`, sections that
have not begun are left out, and their names are printed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import transformers
from _measure import TABLE_HEAD, Row, describe_machine, write_rows
from _parity import CASES, parity
from speed import Bench

from hf_ssm.ops.backends import set_backend

Sizes = dict[str, Any]


def _label(sizes: Sizes) -> str:
    names = {"batch": "batch", "length": "L", "channels": "D", "heads": "H", "hidden": "hidden", "layers": "layers"}
    return ", ".join(f"{names[key]} {value:,}" for key, value in sizes.items() if key in names)


def _both_ways(bench: Bench, section: str, name: str, real: Sizes, tiny: Sizes, what: str = "") -> None:
    for way, backward in (("forward", False), ("forward + backward", True)):
        sizes = bench.sizes({**real, "backward": backward}, tiny)
        label = ", ".join(part for part in (what, _label(sizes), way) if part)
        bench.times(section, label, name, sizes)


def scan(bench: Bench) -> None:
    tiny = {"batch": 1, "channels": 8, "states": 4, "length": 9}
    for batch, channels, length in ((8, 2048, 2048), (1, 2048, 16384)):
        real = {"batch": batch, "channels": channels, "states": 16, "length": length}
        _both_ways(bench, "scan", "scan", real, tiny)
        if bench.tiny:
            return


def short_conv(bench: Bench) -> None:
    real = {"batch": 8, "channels": 2048, "taps": 4, "length": 4096}
    _both_ways(bench, "short_conv", "short_conv", real, {"batch": 1, "channels": 8, "length": 9})


def ssd(bench: Bench) -> None:
    for batch, length in ((8, 2048), (1, 16384)):
        real = {"batch": batch, "heads": 24, "states": 128, "length": length}
        tiny = {"batch": 1, "heads": 2, "states": 16, "length": 20}
        _both_ways(bench, "ssd", "ssd", real, tiny)
        if bench.tiny:
            return


def lti(bench: Bench) -> None:
    for length in (1024, 16384):
        real = {"channels": 1024, "pairs": 32, "length": length}
        _both_ways(bench, "lti", "lti", real, {"channels": 2, "pairs": 4, "length": 20}, "S4D")
        _both_ways(bench, "lti", "lti_s4", real, {"channels": 2, "pairs": 4, "length": 20}, "S4")
        if bench.tiny:
            return


def convolution(bench: Bench) -> None:
    for batch, length in ((32, 512), (8, 16384), (1, 262144)):
        real = {"batch": batch, "channels": 256, "length": length}
        tiny = {"batch": 1, "channels": 4, "length": 20}
        _both_ways(bench, "convolution", "convolution", real, tiny)
        if bench.tiny:
            return


def training(bench: Bench) -> None:
    real, tiny = {"batch": 8, "length": 2048, "hidden": 1024, "layers": 4}, {"batch": 1, "length": 9, "layers": 1}
    sizes = bench.sizes(real, {**tiny, "hidden": 8})
    bench.times("training", f"Mamba, {_label(sizes)}, step", "training", sizes)
    sizes = bench.sizes({**real, "states": 128, "backward": True}, {**tiny, "hidden": 64, "states": 16})
    bench.times("training", f"Mamba-2, {_label(sizes)}, step", "mamba2", sizes)


def decoding(bench: Bench) -> None:
    tiny = {"tokens": 2, "layers": 1}
    real = {"tokens": 128, "hidden": 1024, "layers": 8}
    for model, name, small in (
        ("Mamba", "decoding", {"hidden": 16}),
        ("Mamba-2", "decoding2", {"hidden": 64, "states": 16}),
    ):
        sizes = bench.sizes(real, {**tiny, **small})
        what = f"{model}, {_label(sizes)}, {sizes['tokens']} tokens, batch 1"
        bench.times("decoding", what, name, sizes, most=3)


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "scan": scan,
    "ssd": ssd,
    "convolution": convolution,
    "short_conv": short_conv,
    "lti": lti,
    "decoding": decoding,
    "training": training,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"one of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--repetitions", type=int, default=5, help="of each contest (default 5)")
    parser.add_argument("--seconds", type=float, default=450.0, help="no section begins later (default 450)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="file for all numbers")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to check that the script runs")
    args = parser.parse_args(argv)
    unknown = [name for name in args.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    if args.repetitions < 1:
        parser.error(f"--repetitions must be at least 1, got {args.repetitions}")
    try:
        # One clear error without Triton, or without a GPU and an interpreter.
        set_backend("triton")
    except ImportError as error:
        sys.exit(str(error))
    from hf_ssm.ops.gpu.kernels import INTERPRETED

    if INTERPRETED and not args.tiny:
        parser.error("Triton's interpreter is far too slow for real sizes: add --tiny, or unset TRITON_INTERPRET")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    begin, device = time.monotonic(), "cpu" if INTERPRETED else "cuda"
    machine = describe_machine(device)
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    print(f"{machine['device']}{' (Triton interpreter)' if INTERPRETED else ''}; {versions}")
    print("\nLargest error of values and gradients, relative to the largest number, against float64\n")
    length = {"length": 9} if args.tiny else {}
    found = {name: parity(name, device, **length) for name in CASES}
    bench = Bench(device, 1 if args.tiny else args.repetitions, args.tiny, lambda row: print(row, flush=True))
    bench.add(*(Row("parity", name, "error", [error]) for name, error in found.items()))
    left_out = []
    for section in args.sections or SECTIONS:
        if time.monotonic() - begin > args.seconds:
            left_out.append(section)
            continue
        print(f"\n{section}\n\n{TABLE_HEAD}", flush=True)
        SECTIONS[section](bench)
        # After each section, so that an interrupted run keeps its results.
        write_rows(args.output, bench.rows, device, tiny=args.tiny)
    if left_out:
        print(f"\nLeft out after {args.seconds:g} seconds: {', '.join(left_out)}")


if __name__ == "__main__":
    main()
