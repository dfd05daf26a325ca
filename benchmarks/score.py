"""Tokens and time that shared prefixes save in saturation mutagenesis: the same scores with and without them.

    OMP_NUM_THREADS=1 python benchmarks/score.py     # about fifteen minutes on one core
    python benchmarks/score.py --tiny                # takes seconds; the numbers are meaningless

Every base of a region is replaced by every other base. The naive loop reads each mutant as a whole, from the beginning
of the context to the horizon of its score, in batches of the same size. The script prints ratios, naive / shared, of
the tokens that the model reads and of time. It fails if a score differs by more than 1e-5 (float32) or 1e-10 (float64)
of the largest score.
"""

import random
import time

import numpy as np
import pyarrow as pa
import torch
from _measure import Row, benchmark_parser, write_rows
from transformers import LlamaConfig, LlamaForCausalLM

import hf_ssm
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.saturation import Saturation
from hf_ssm.utils.evaluation import evaluating

MODELS = ("Hyena", "S4", "S4D", "S5", "selective", "Mamba-2", "Llama")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def build_models(hidden_size: int, longest: int) -> dict[str, torch.nn.Module]:
    """A small causal model of each family, and a Transformer, of equal width and depth."""
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2}
    configs = {
        "Hyena": hf_ssm.HyenaConfig(max_position_embeddings=longest, **common),
        "S4": hf_ssm.S4Config(kernel_type="s4", **common),
        "S4D": hf_ssm.S4Config(**common),
        "S5": hf_ssm.S5Config(**common),
        "selective": hf_ssm.SelectiveSSMConfig(**common),
        "Mamba-2": hf_ssm.SSDConfig(**common),
    }
    sizes = {"intermediate_size": 2 * hidden_size, "num_attention_heads": 2, "vocab_size": 12}
    llama = LlamaConfig(**common, **sizes, max_position_embeddings=longest)
    torch.manual_seed(0)
    models = {
        name: getattr(hf_ssm, f"{type(c).__name__.removesuffix('Config')}ForCausalLM")(c) for name, c in configs.items()
    }
    return {**models, "Llama": LlamaForCausalLM(llama)}


def measured(
    model: torch.nn.Module, text: str, region: range, share: bool, **options: int
) -> tuple[pa.Table, int, float]:
    """The scores, the tokens read and the seconds."""
    reader = SequenceModel(model, hf_ssm.build_dna_tokenizer())
    with evaluating(model):
        saturation = Saturation(reader, both_strands=False, **options)
        assert saturation.likelihood is not None and saturation.likelihood.shares
        saturation.likelihood.shares = share
        reader.tokens = 0
        start = time.perf_counter()
        table = saturation.table(text, region.start, region.stop)
        return table, reader.tokens, time.perf_counter() - start


def compare(
    name: str, model: torch.nn.Module, text: str, region: range, repetitions: int, **options: int
) -> tuple[list[float], list[float]]:
    """Ratios of tokens and of times, naive / shared.

    Raises:
        RuntimeError: The scores differ.
    """
    tolerance = TOLERANCE[next(model.parameters()).dtype]
    tokens, times = [], []
    for _ in range(repetitions):
        ours, own_tokens, own_time = measured(model, text, region, True, **options)
        naive, their_tokens, their_time = measured(model, text, region, False, **options)
        for score in ("llr", "next_token"):
            expected, found = (np.array(table[score].to_pylist()) for table in (naive, ours))
            error = np.abs(found - expected).max()
            if not error <= tolerance * np.abs(expected).max():
                raise RuntimeError(f"{name}: {score} differs by {error:.3g}")
        tokens.append(their_tokens / own_tokens)
        times.append(their_time / own_time)
    return tokens, times


def main() -> None:
    settings = {
        **{"bases": 1000, "window": 1024, "horizon": [128], "hidden_size": 64},
        **{"models": list(MODELS), "repetitions": 3},
    }
    tiny = {"bases": 20, "window": 16, "horizon": [4], "hidden_size": 8, "repetitions": 1}
    parser = benchmark_parser(__doc__, settings, tiny, "about fifteen minutes on one core")
    parser.add_argument("--float64", action="store_true", help="compare in double precision")
    args = parser.parse_args()
    flank = max(args.window, *args.horizon)
    text = "".join(random.Random(0).choices("ACGT", k=args.bases + 2 * flank))
    region = range(flank, flank + args.bases)
    models = build_models(args.hidden_size, len(text))
    rows: list[Row] = []
    print("| model | horizon | tokens | time |\n|---|---|---|---|")
    for name in args.models:
        model = models[name].to(torch.float64 if args.float64 else torch.float32)
        # Compiles what is compiled at first use.
        measured(model, text, range(flank, flank + 2), True, window=16, horizon=4)
        for horizon in args.horizon:
            options = {"window": args.window, "horizon": horizon}
            tokens, times = compare(name, model, text, region, args.repetitions, **options)
            rows += [Row(name, f"{name}, horizon {horizon}", "tokens", tokens[:1])]
            rows += [Row(name, f"{name}, horizon {horizon}", "time", times)]
            print(f"| {name} | {horizon} | {tokens[0]:.2f} | {sorted(times)[len(times) // 2]:.2f} |", flush=True)
            write_rows(args.output, rows)


if __name__ == "__main__":
    main()
