"""Loading of a FASTA file larger than the memory that it may take: memory, and rows against steps.

    python benchmarks/data.py                # generates 500 MB, needs 4 GB of disk; minutes on two cores
    python benchmarks/data.py --megabases 50
    python benchmarks/data.py --tiny         # takes seconds; the numbers are meaningless

`hf-ssm train` keeps the tokens of a language model on windows of a genome in the Arrow cache of `datasets`.

`memory`: a process prepares the file and reads batches, first with an empty cache, and then another one with the cache
of the first. Private memory is the memory that the process needs; resident memory also counts
pages of the cached files, which the system may drop at any time and shares among processes. Bytes are also given per
base.

`loading`: batches and training steps (forward, backward, AdamW) on them alternate in one process. A
ratio is the number of rows that one process loads in the time in which a model trains on one row.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import TABLE_HEAD, Row, benchmark_parser, check_agreement, race, ratios, write_rows

MODELS = ("S4D", "SSD")


def write_genome(path: Path, bases: int, contigs: int = 4) -> None:
    """Random contigs with soft-masked letters and a run of N, in lines of 60 letters."""
    rng, letters = np.random.default_rng(0), np.frombuffer(b"ACGT", dtype=np.uint8)
    with path.open("wb") as file:
        for contig in range(contigs):
            file.write(b">chr%d\n" % (contig + 1))
            lines = bases // contigs // 60
            for first in range(0, lines, 1000):
                drawn = letters[rng.integers(0, 4, (min(1000, lines - first), 60))]
                drawn[:10] += 32  # lower case
                if first == 0:
                    drawn[-len(drawn) // 4 :] = ord("N")
                file.write(b"\n".join(line.tobytes() for line in drawn) + b"\n")


def load_splits(path: Path, window: int) -> Any:
    from hf_ssm.training.inputs import load_data
    from hf_ssm.training.settings import resolve

    data = {"dataset": str(path), "tokenizer": "dna", "window": window}
    return load_data(resolve({"data": data, "model": {"task": "causal-lm"}}))


def loader(loaded: Any, batch_size: int) -> torch.utils.data.DataLoader:
    """Batches in random order, as the Trainer reads them."""
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(loaded.tokenizer, mlm=False)
    generator = torch.Generator().manual_seed(0)
    rows = loaded.splits["train"]
    return torch.utils.data.DataLoader(rows, batch_size, shuffle=True, collate_fn=collator, generator=generator)


class PrivateMemory(threading.Thread):
    """The largest `RssAnon` of this process while it runs, in bytes, looked up a hundred times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self._done = 0, threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.01):
            self.peak = max(self.peak, status("RssAnon"))

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.peak


def status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def use(path: Path, window: int, batches: int) -> dict[str, float]:
    """Memory of a process that prepares a file and reads batches of it, without libraries, and CPU time to prepare."""
    import hf_ssm.training.run  # noqa: F401

    before, start, watch = status("RssAnon"), time.process_time(), PrivateMemory()
    watch.start()
    loaded = load_splits(path, window)
    longest = loaded.longest
    seconds = time.process_time() - start
    for number, batch in enumerate(loader(loaded, 32)):
        if number == batches:
            break
        assert batch["input_ids"].shape[1] <= longest
    return {"private": watch.stop() - before, "resident": status("VmHWM"), "seconds": seconds}


def use_apart(path: Path, window: int, batches: int, cache: str) -> dict[str, float]:
    """`use` in a process of its own, with its own cache."""
    command = [sys.executable, __file__, "--use", str(path), "--window", str(window)]
    command += ["--batches", str(batches)]
    environment = {**os.environ, "HF_DATASETS_CACHE": cache, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare_memory(path: Path, window: int, batches: int, apart: bool) -> list[Row]:
    size, rows, first_seconds = path.stat().st_size, [], None
    print(f"A FASTA file of {size:,} bytes, windows of {window}.\n\n{TABLE_HEAD}")
    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        for when in ("first run", "later runs"):
            found = use_apart(path, window, batches, cache) if apart else use(path, window, batches)
            first_seconds = first_seconds or found["seconds"]
            rows += [
                Row("memory", when, "private memory", [found["private"] / 2**20], "MiB"),
                Row("memory", when, "resident memory", [found["resident"] / 2**20], "MiB"),
                Row("memory", when, "CPU time to prepare / first run", [found["seconds"] / first_seconds]),
            ]
            print(*rows[-3:], sep="\n", flush=True)
        stored = sum(file.stat().st_size for file in Path(cache).rglob("*") if file.is_file())
        rows.append(Row("memory", "all runs", "files in the cache / file", [stored / size]))
        print(rows[-1], flush=True)
    return rows


def build_model(name: str, hidden_size: int) -> torch.nn.Module:
    import hf_ssm

    torch.manual_seed(0)
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2, "vocab_size": 12, "use_cache": False}
    if name == "SSD":
        return hf_ssm.SSDForCausalLM(hf_ssm.SSDConfig(head_dim=min(16, hidden_size), **common))
    return hf_ssm.S4ForCausalLM(hf_ssm.S4Config(**common))


def compare_loading(path: Path, window: int, batch_size: int, hidden_size: int, **how: Any) -> list[Row]:
    batches = loader(load_splits(path, window), batch_size)
    endless = itertools.chain.from_iterable(itertools.repeat(batches))
    first = next(endless)
    print(f"\nBatches of {batch_size} windows of {window}, one process.\n\n{TABLE_HEAD}")
    rows = []
    for name in MODELS:
        model = build_model(name, hidden_size)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(model: torch.nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> tuple[()]:
            model(**first).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return ()

        calls: dict[str, Any] = {"step": step, "load": lambda: tuple(next(endless).values())[:0]}
        times = race(calls, check_agreement(calls, 0.0), how["repetitions"], how["turn"])
        what = f"{name} of hidden size {hidden_size}"
        rows.append(Row("loading", what, "rows loaded / trained", ratios(times, ["step"], ["load"])))
        print(rows[-1], flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    settings = {
        "megabases": (500.0, "size of the generated file"),
        "window": 1024,
        "batches": (200, "batches that are read"),
        **{"batch_size": 32, "hidden_size": 64, "repetitions": 5},
    }
    tiny = {"megabases": 0.02, "window": 64, "batches": 2, "batch_size": 4, "hidden_size": 8, "repetitions": 2}
    parser = benchmark_parser(__doc__, settings, tiny, "minutes on two cores, and 4 GB of disk")
    parser.add_argument("--folder", type=Path, help="folder of the generated file (default: that of temporary files)")
    parser.add_argument("--use", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.use:
        print(json.dumps(use(args.use, args.window, args.batches)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        # Read when `datasets` is imported, by the first section that needs it.
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder) / "cache")
        path = Path(folder) / "genome.fa"
        write_genome(path, int(args.megabases * 1e6))
        rows = compare_memory(path, args.window, args.batches, apart=not args.tiny)
        small = Path(folder) / "small.fa"
        write_genome(small, min(int(args.megabases * 1e6), 5_000_000))
        how = {"repetitions": args.repetitions, "turn": 0.0 if args.tiny else 0.5}
        rows += compare_loading(small, args.window, args.batch_size, args.hidden_size, **how)
    write_rows(args.output, rows)


if __name__ == "__main__":
    main()
