"""The Triton kernels without a GPU: the resources that each takes, compiled ahead of time, and predicted times.

    python benchmarks/kernels.py resources           # all kernels, configurations and GPUs
    python benchmarks/kernels.py resources --output resources.json
    python benchmarks/kernels.py resources --check   # compares with the stored table
    python benchmarks/kernels.py predictions --output predictions.json

For NVIDIA GPUs, registers, spilled bytes and shared memory are those that ptxas reports. For AMD GPUs, they are the
vector registers, and the bytes of private memory and of LDS, in the compiled code. Predictions follow from the bytes
and operations that the tests count, and from rates of the GPUs (`benchmarks/costs/rates.py`). They are bounds that a
good kernel comes near to, not measurements.
"""

import argparse
import hashlib
import importlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import hf_ssm.ops

RESULTS = Path(__file__).parent / "results"
GPUS = ("sm_80", "sm_90", "sm_100", "gfx942")
OPS = Path(hf_ssm.ops.__file__).parent

Row = dict[str, Any]


def load_kernels() -> dict[str, Any]:
    """All declared kernels."""
    for path in sorted(OPS.glob("*/triton*.py")):
        importlib.import_module(f"hf_ssm.ops.{path.parent.name}.{path.stem}")
    from hf_ssm.ops.gpu.kernels import INTERPRETED, KERNELS

    if INTERPRETED:
        raise SystemExit("kernels cannot be compiled with TRITON_INTERPRET=1: unset it")
    return KERNELS


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\*?(i|u|fp|bf)\d+(:16)?", value) is not None


def _source(kernel: Any, config: Any, example: dict[str, Any]) -> Any:
    """What Triton compiles: types, constants, and what it would find out about the arguments of a launch."""
    from triton.compiler import ASTSource

    names = kernel.function.arg_names
    values = {**example, **config.kwargs}
    missing, unknown = set(names) - set(values), set(values) - set(names)
    if missing or unknown:
        raise ValueError(f"example of {kernel.name}: missing {sorted(missing)}, unknown {sorted(unknown)}")
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def type_of(value: Any, path: tuple[int, ...]) -> Any:
        # Tuples of types are groups of arguments, other tuples are constants. No constant is called like a type.
        if isinstance(value, tuple) and _is_type(value[0]):
            parts = [type_of(part, (*path, place)) for place, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if not _is_type(value):
            constants[path] = value
            return "constexpr"
        if value.startswith("*") or value.endswith(":16"):
            attributes[path] = [["tt.divisibility", 16]]
        return value.removesuffix(":16")

    signature = {name: type_of(values[name], (place,)) for place, name in enumerate(names)}
    return ASTSource(kernel.function, signature, constants, attributes)


def _target(gpu: str) -> Any:
    from triton.backends.compiler import GPUTarget

    if gpu.startswith("gfx"):
        return GPUTarget("hip", gpu, 64)
    return GPUTarget("cuda", int(gpu.removeprefix("sm_")), 32)


def _numbers(pattern: str, text: str) -> int:
    return sum(int(number) for number in re.findall(pattern, text))


def compile_kernel(name: str, index: int, label: str, gpu: str) -> Row:
    """Resources of a program of a kernel, by name, number of the configuration, example and GPU."""
    import triton
    from triton import knobs

    kernel = load_kernels()[name]
    config, log = kernel.configs[index], io.StringIO()
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = True, True
        compiled = triton.compile(_source(kernel, config, kernel.examples[label]), target=_target(gpu), options=options)
    if gpu.startswith("gfx"):
        text = compiled.asm["amdgcn"]
        registers = _numbers(r"\.vgpr_count:\s+(\d+)", text)
        # Scalar registers that are kept in vector registers are in no memory, and not counted.
        spills = _numbers(r"\.private_segment_fixed_size:\s+(\d+)", text)
    else:
        report = log.getvalue()
        registers = _numbers(r"Used (\d+) registers", report)
        spills = _numbers(r"(\d+) bytes spill (?:stores|loads)", report)
    sizes = ", ".join(f"{key} {value}" for key, value in sorted(config.kwargs.items()))
    return {
        "kernel": name,
        "example": label,
        "configuration": f"{sizes}; {config.num_warps} warps, {config.num_stages} stages",
        "default": index == 0,
        "gpu": gpu,
        "registers": registers,
        "spilled bytes": spills,
        "shared memory": compiled.metadata.shared,
    }


def jobs(gpus: Sequence[str], chosen: str) -> list[tuple[str, int, str, str]]:
    """Arguments of `compile_kernel`: every configuration and example for every GPU."""
    return [
        (name, index, label, gpu)
        for name, kernel in sorted(load_kernels().items())
        for index in range(len(kernel.configs))
        for label in kernel.examples
        for gpu in gpus
        if chosen in name
    ]


def sources() -> str:
    """A digest of all files that the compiled code follows from."""
    digest = hashlib.sha256()
    for path in sorted((*OPS.glob("*/triton*.py"), *OPS.glob("gpu/*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def resources(args: argparse.Namespace) -> int:
    import triton

    stored = json.loads(args.table.read_text()) if args.check else None
    if stored is not None and stored["triton"] != triton.__version__:
        print(f"the stored table is of Triton {stored['triton']}, not {triton.__version__}", file=sys.stderr)
        return 3
    wanted = jobs(args.gpus, args.kernel)
    with ProcessPoolExecutor(args.processes) as pool:
        rows = list(pool.map(compile_kernel, *zip(*wanted, strict=True), chunksize=4))
    for row in rows:
        print(*row.values(), sep=" | ")
    failed = False
    for row in rows:
        if row["default"] and row["spilled bytes"]:
            failed = True
            where = f"{row['kernel']} ({row['example']}, {row['gpu']})"
            print(f"spills in a default configuration: {where}", file=sys.stderr)
    if stored is not None:
        complete = len(wanted) == len(jobs(GPUS, ""))
        before = [row for row in stored["rows"] if row not in rows] if complete else []
        for row in [row for row in rows if row not in stored["rows"]] + before:
            failed = True
            print(f"differs from the stored table: {row}", file=sys.stderr)
    if args.output:
        _store(args.output, {"triton": triton.__version__, "sources": sources(), "rows": rows})
    return int(failed)


def _store(path: Path, found: dict[str, Any]) -> None:
    command = shlex.join(["python", "benchmarks/kernels.py", *sys.argv[1:]])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"command": command, **found}, indent=1) + "\n")


# Sizes of a training step of a model of some hundred million parameters; sequences of bfloat16 (2 bytes).
_B, _L, _D = 8, 4096, 2048
Forecast = tuple[str, str, Any, int]


def _of_scans() -> Iterator[Forecast]:
    from costs import selective_scan as mamba
    from costs import ssd as mamba2

    from hf_ssm.ops.selective_scan.triton import chunk_positions
    from hf_ssm.ops.ssd.triton_tiles import Tiling, chunk_size_of

    states = 16
    for batch, length in ((_B, _L), (1, 65536)):
        sizes, numbers = f"B {batch}, L {length:,}, D {_D:,}, N {states}", batch * length * _D
        chunks = -(-length // chunk_positions(batch, length, _D))
        shape = batch, length, _D, states, 2, chunks
        weights = 2 * 2 * batch * length * states
        forward, backward = mamba.forward_cost(*shape), mamba.backward_cost(*shape)
        yield "selective scan, forward", sizes, forward, 2 * 4 * numbers + weights
        yield "selective scan, backward", sizes, backward, 2 * 7 * numbers + 2 * weights
    heads, channels, states = 32, 64, 128
    for batch, length in ((_B, _L), (1, 65536)):
        sizes, numbers = f"B {batch}, L {length:,}, H {heads}, P {channels}, N {states}", batch * length * _D
        x = torch.empty(batch, length, heads, channels, dtype=torch.bfloat16, device="meta")
        B = torch.empty(batch, length, 1, states, dtype=torch.bfloat16, device="meta")
        tiling = Tiling.of(x, B, chunk_size_of(x, B, None))
        steps, weights = 4 * batch * length * heads, 2 * 2 * batch * length * states
        forward, backward = mamba2.forward_cost(tiling, 2), mamba2.backward_cost(tiling, 2)
        yield "Mamba-2 scan, forward", sizes, forward, 2 * 2 * numbers + steps + weights
        yield "Mamba-2 scan, backward", sizes, backward, 2 * 3 * numbers + 2 * steps + 2 * weights


def _of_convolutions() -> Iterator[Forecast]:
    from costs import long_conv, short_conv

    sizes, numbers = f"B {_B}, L {_L:,}, D {_D:,}, K 4", _B * _L * _D
    forward = short_conv.forward_cost(_B, _L, _D, 4, 2, tile=32)
    yield "short convolution, forward", sizes, forward, 2 * 2 * numbers
    yield "short convolution, backward", sizes, short_conv.backward_cost(_B, _L, _D, 4, 2, tile=32), 3 * 2 * numbers
    for batch, length, channels in ((32, 512, 256), (8, 16384, 256), (1, 262144, 256)):
        sizes, numbers = f"B {batch}, L {length:,}, D {channels}", batch * length * channels
        taps = 4 * channels * length
        for way, function, least in (
            ("forward", long_conv.forward_cost, 2 * 2 * numbers + taps),
            ("backward", long_conv.backward_cost, 3 * 2 * numbers + 2 * taps),
        ):
            kernels, others = function(batch, length, channels, length, 2)
            yield f"long convolution, {way}", sizes, kernels + others, least


def _of_kernel_generation() -> Iterator[Forecast]:
    from costs import exponential_sums as s4d
    from costs import krylov as s4

    channels, states = 1024, 64
    for length in (1024, 16384):
        sizes, taps = f"D {channels:,}, N {states}, L {length:,}", 4 * channels * length
        yield "S4D kernel, forward", sizes, s4d.forward_cost(channels, states // 2, length), taps
        yield "S4D kernel, backward", sizes, s4d.backward_cost(channels, states // 2, length), taps
        yield "S4 kernel, forward", sizes, s4.forward_cost(channels, states, length), taps
        yield "S4 kernel, backward", sizes, s4.backward_cost(channels, states, length), taps


def _of_decoding() -> Iterator[Forecast]:
    from costs import decoding

    layers, hidden, channels = 48, 2048, 4096
    states, rank = 16, 128
    weights = layers * (3 * hidden * channels + (rank + 2 * states + rank) * channels)
    cost = decoding.blocks_cost(layers, 1, hidden, channels, states, rank, 4, 2, tile=16)
    label = f"{layers} blocks, hidden {hidden:,}, N {states}, batch 1"
    yield "Mamba, a token, bfloat16", label, cost, 2 * weights + layers * 8 * channels * states
    states = 128
    weights = layers * (3 * hidden * channels + 2 * states * hidden)
    cost = decoding.ssd_blocks_cost(layers, 1, hidden, channels // 64, 64, 1, states, 4, tile=8)
    label = f"{layers} blocks, hidden {hidden:,}, N {states}, batch 1"
    yield "Mamba-2, a token, float32", label, cost, 4 * weights + layers * 8 * channels * states


def forecasts() -> Iterator[Forecast]:
    """Operation, sizes, cost and the least number of bytes: all inputs and results once."""
    for forecasts_of in (_of_scans, _of_convolutions, _of_kernel_generation, _of_decoding):
        yield from forecasts_of()


def predictions(args: argparse.Namespace) -> int:
    from costs.rates import GPUS as RATES

    rows = []
    for operation, sizes, cost, least in forecasts():
        parts = {gpu: cost.parts(rates) for gpu, rates in RATES.items()}
        rows.append(
            {
                "operation": operation,
                "sizes": sizes,
                "megabytes": (cost.read + cost.written) / 1e6,
                "cost": asdict(cost),
                "microseconds": {gpu: 1e6 * max(part.values()) for gpu, part in parts.items()},
                "bound": {gpu: max(part, key=lambda name: part[name]) for gpu, part in parts.items()},
                "ratio to limit": {gpu: max(part.values()) * RATES[gpu].memory / least for gpu, part in parts.items()},
            }
        )
        print(*(f"{key}: {value}" for key, value in rows[-1].items()), sep=" | ")
    if args.output:
        _store(args.output, {"rates": {gpu: rates._asdict() for gpu, rates in RATES.items()}, "rows": rows})
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("resources", help="compile ahead of time, and list what a program takes")
    compiling.add_argument("--gpus", nargs="+", choices=GPUS, default=GPUS)
    compiling.add_argument("--kernel", default="", help="only kernels whose name contains this")
    compiling.add_argument("--processes", type=int, default=2)
    compiling.add_argument(
        "--check", action="store_true", help="compare with the stored table; exit status 1 if not equal"
    )
    compiling.add_argument("--table", type=Path, default=RESULTS / "kernel_resources.json", help="for --check")
    compiling.add_argument("--output", type=Path)
    compiling.set_defaults(run=resources)
    predicting = commands.add_parser("predictions", help="times that follow from bytes and operations")
    predicting.add_argument("--output", type=Path)
    predicting.set_defaults(run=predictions)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
