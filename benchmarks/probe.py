"""Cost of the `exact` strategy of the masking probe relative to the plain double loop, in turn, in one process.

    python benchmarks/probe.py                 # some ten minutes on two idle cores
    python benchmarks/probe.py --steps 2       # a minute: only the first two steps of the plain loop, see below
    python benchmarks/probe.py --draws         # the default search: tokens, kept bases, long rows
    python benchmarks/probe.py --tiny          # seconds; the numbers are meaningless

The plain loop calls the model once for each candidate of each step, with the whole sequence in a batch of one. The
script prints a table of ratios, plain loop / exact, of CPU time (less sensitive to other programs than wall time), of
wall time, and of the tokens processed by the model. Both searches must mask the same tokens in the same order, except
where two candidates are closer than the rounding of single precision; otherwise the script fails. With `--steps N`, the
plain loop ends after N steps, and its time is extrapolated: all calls cost the same, so the time per call is multiplied
by the number of calls of the whole loop.

With `--draws`, a model is trained on planted motifs (two of 12 bases in a row). The table has the tokens of the default
search and of its tests relative to the exact search with one token, the share of the kept bases in the motif, and
Jaccard indices of kept bases: of two default searches with different draws, of the default search and an exact search
with 64 draws, and of two such exact searches, which no search can exceed. Exact searches are left out above
`--longest-exact` bases. The last line is a search of 1,000 bases.
"""

import copy
import functools
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import transformers
from _measure import Row, benchmark_parser, print_environment, write_rows

import hf_ssm
from hf_ssm.data import load_sequences, tokenize
from hf_ssm.probes import MaskingProbe
from hf_ssm.probes.evidence import PASSES

VOCABULARY, MASK, FIRST_LETTER = 12, 3, 7
# Two candidates may differ by less than the rounding of single precision.
ROUNDING = 1e-7
HEADS = {"causal": "CausalLM", "last": "SequenceClassification", "mean": "SequenceClassification"}


class Cost(NamedTuple):
    """Seconds of CPU time and of wall time, and tokens processed by the model."""

    processor: float
    wall: float
    tokens: float


def build_model(family: str, head: str, hidden_size: int, longest: int) -> torch.nn.Module:
    """A small model with weights large enough for every token to matter."""
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2, "vocab_size": VOCABULARY, "initializer_range": 0.2}
    common |= {} if head == "causal" else {"pooling": head}
    if family == "Hyena":
        common |= {"max_position_embeddings": longest}
    torch.manual_seed(0)
    config = getattr(hf_ssm, f"{family}Config")(**common)
    return getattr(transformers, f"AutoModelFor{HEADS[head]}").from_config(config).eval()


def clocks() -> tuple[float, float]:
    """CPU time and wall time now."""
    return time.process_time(), time.perf_counter()


@torch.no_grad()
def plain_loop(model: torch.nn.Module, ids: torch.Tensor, index: int, steps: int) -> tuple[Cost, list[int]]:
    """The double loop of Nishikawa & Suzuki for the probability `index` at the end of the ids, and its order.

    Args:
        model: A causal model or a classifier.
        ids: `(L,)`.
        index: The token that follows, or the class.
        steps: Number of steps; the cost is extrapolated to all.
    """
    masked, left, order, calls = ids.clone(), list(range(len(ids))), [], 0
    before = clocks()
    while left and len(order) < steps:
        values = []
        for place in left:
            variant = masked.clone()
            variant[place] = MASK
            logits = model(input_ids=variant.unsqueeze(0)).logits[0]
            last = logits if logits.dim() == 1 else logits[-1]
            values.append(last.double().softmax(-1)[index].item())
        calls += len(left)
        best = left.pop(values.index(max(values)))
        masked[best] = MASK
        order.append(best)
    after = clocks()
    all_calls = len(ids) * (len(ids) + 1) / 2
    processor, wall = ((b - a) * all_calls / calls for a, b in zip(before, after, strict=True))
    return Cost(processor, wall, all_calls * len(ids)), order


def exact(model: torch.nn.Module, ids: torch.Tensor, index: int, is_causal: bool) -> tuple[Cost, list[int]]:
    """The search by the probe."""
    probe = MaskingProbe(model, replace=MASK, strategy="exact", tests=False, allow_wrong=True)
    sequence, target = ([*ids.tolist(), index], len(ids)) if is_causal else (ids.tolist(), index)
    before = clocks()
    result = probe.run(sequence, target=target, progress=False)
    after = clocks()
    return Cost(after[0] - before[0], after[1] - before[1], result.tokens), result.order.tolist()


def compare(model: torch.nn.Module, ids: torch.Tensor, index: int, is_causal: bool, steps: int) -> list[float]:
    """Ratios plain loop / exact of CPU time, wall time and tokens.

    Raises:
        RuntimeError: The orders differ by more than rounding.
    """
    with torch.no_grad():
        model(input_ids=ids.unsqueeze(0))
    quick, found = exact(model, ids, index, is_causal)
    slow, expected = plain_loop(model, ids, index, steps)
    parting = next((k for k, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    if parting is not None:
        first, second = (
            value_after(model, ids, index, [*found[:parting], order[parting]]) for order in (found, expected)
        )
        if abs(first - second) > ROUNDING:
            raise RuntimeError(f"{type(model).__name__}: order differs from the plain loop from {parting} on")
    return [a / b for a, b in zip(slow, quick, strict=True)]


@torch.no_grad()
def value_after(model: torch.nn.Module, ids: torch.Tensor, index: int, masked: list[int]) -> float:
    """The probability with these positions masked, in double precision."""
    variant = ids.clone()
    variant[masked] = MASK
    logits = copy.deepcopy(model).double()(input_ids=variant.unsqueeze(0)).logits
    return float((logits[0, -1] if logits.dim() == 3 else logits[0]).softmax(-1)[index])


def train(length: int, tiny: bool) -> tuple[torch.nn.Module, Any, list[tuple[str, set[int]]]]:
    """A Hyena that classifies planted motifs, its tokenizer, and test rows with the motif."""
    sizes = {"num_train": 1200, "num_validation": 20, "num_test": 40}
    sizes = {"num_train": 32, "num_validation": 8, "num_test": 8, "motif_length": 4} if tiny else sizes
    raw = load_sequences("planted-motifs", length=length, **sizes)
    tokenizer = hf_ssm.build_dna_tokenizer()
    rows = tokenize(raw, tokenizer)["train"]
    transformers.set_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": len(tokenizer), "rescale_init": True}
    model = hf_ssm.HyenaForSequenceClassification(hf_ssm.HyenaConfig(**size, pad_token_id=tokenizer.pad_token_id))
    with tempfile.TemporaryDirectory() as folder:
        options = {"learning_rate": 5e-3, "lr_scheduler_type": "cosine", "per_device_train_batch_size": 32}
        options |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "dataloader_pin_memory": False}
        arguments = transformers.TrainingArguments(folder, num_train_epochs=1 if tiny else 6, **options)
        collator = transformers.DataCollatorWithPadding(tokenizer)
        hf_ssm.SSMTrainer(model, arguments, collator, rows).train()
    motif = len(raw["test"].features["label"].int2str(1))
    sites = [{start + k for start in row["motif_positions"] for k in range(motif)} for row in raw["test"]]
    found = zip(raw["test"]["sequence"], raw["test"]["label"], sites, strict=True)
    return model.eval(), tokenizer, [(text, site) for text, label, site in found if label == 1]


def jaccard(first: set[int], second: set[int]) -> float:
    return len(first & second) / max(len(first | second), 1)


def compare_draws(length: int, count: int, runs_exact: bool, tiny: bool) -> list[float]:
    """Tokens relative to the exact search with one token, share in the motif, and Jaccard indices; see above."""
    model, tokenizer, rows = train(length, tiny)
    make = functools.partial(MaskingProbe, model, tokenizer, allow_wrong=True, tests=False)
    exact = functools.partial(make, strategy="exact", draws=4 if tiny else 64)
    numbers = []
    for text, site in rows[:count]:
        probes = [make(seed=0), make(seed=1), *([exact(seed=2), exact(seed=3)] if runs_exact else [])]
        results = [probe.run(text, 1, progress=False) for probe in probes]
        kept = [set(result.kept.tolist()) for result in results]
        tokens = (results[0].tokens + PASSES * length) / (length * (length * (length + 1) / 2 + 1))
        pairs = [(0, 1), (0, 2), (2, 3)] if runs_exact else [(0, 1)]
        similar = [jaccard(kept[first], kept[second]) for first, second in pairs]
        numbers.append([tokens, len(kept[0] & site) / max(len(kept[0]), 1), *similar])
    return [statistics.mean(column) for column in zip(*numbers, strict=True)]


def seconds_of_long_row(length: int) -> tuple[float, float]:
    """Passes and CPU seconds of the default search of a long row, by a model of two layers."""
    model = build_model("S4", "mean", 32, length)
    before = time.process_time()
    result = MaskingProbe(model, allow_wrong=True).run(torch.randint(FIRST_LETTER, 11, (length,)), 1, progress=False)
    return result.tokens / length + PASSES, time.process_time() - before


def main(argv: Sequence[str] | None = None) -> None:
    settings = {
        **{"length": 200, "hidden_size": 32, "families": ["S4", "Hyena", "SelectiveSSM"]},
        "heads": (list(HEADS), "causal model, or pooling"),
        "lengths": ([60, 200], "of rows with --draws"),
        "rows": (3, "rows of each length with --draws"),
        "longest_exact": (100, "longest rows of exact searches with --draws"),
        "long": (1000, "length of the long row with --draws; 0: none"),
    }
    tiny = {"length": 10, "hidden_size": 8, "lengths": [16], "rows": 1, "long": 300}
    parser = benchmark_parser(__doc__, settings, tiny, "some ten minutes on two idle cores")
    parser.add_argument("--steps", type=int, help="steps of the plain loop, extrapolated to all; default: all")
    parser.add_argument("--draws", action="store_true", help="measure the default search instead")
    args = parser.parse_args(argv)
    if args.draws:
        names = ["bases", "tokens / exact search with one token", "in the motif", "Jaccard: two seeds"]
        names += ["with exact, 64 draws", "two exact, 64 draws"]
        print(f"| {' | '.join(names)} |\n" + "|---" * len(names) + "|")
        for length in args.lengths:
            numbers = compare_draws(length, args.rows, length <= args.longest_exact, args.tiny)
            cells = [f"{number:.2f}" for number in numbers]
            print(f"| {' | '.join([str(length), *cells, *[''] * (len(names) - 1 - len(cells))])} |", flush=True)
        length = args.long
        if length:
            passes, seconds = seconds_of_long_row(length)
            share = passes / (length * (length + 1) / 2 + 1)
            print(f"\n{length} bases: {share:.2f} times the exact search with one token, {seconds:.1f} CPU seconds")
        return
    length, hidden = args.length, args.hidden_size
    loop = "whole" if args.steps is None else f"extrapolated from {args.steps} steps"
    print_environment(f"length {length}, hidden size {hidden}, 2 layers; plain loop {loop}")
    names = ["CPU time", "wall time", "tokens"]
    print(f"| family | reads | {' | '.join(names)} |\n" + "|---" * 5 + "|")
    rows = []
    for family in args.families:
        for head in args.heads:
            model = build_model(family, head, hidden, length + 1)
            ids = torch.randint(FIRST_LETTER, VOCABULARY, (length,))
            index, is_causal = FIRST_LETTER if head == "causal" else 1, head == "causal"
            found = compare(model, ids, index, is_causal, args.steps or length)
            print(
                f"| {family} | {head} | " + " | ".join(f"{number:.1f}" for number in found) + " |",
                flush=True,
            )
            rows += [Row(family, head, name, [number]) for name, number in zip(names, found, strict=True)]
            write_rows(args.output, rows)


if __name__ == "__main__":
    main()
