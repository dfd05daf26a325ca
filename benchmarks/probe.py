"""What the `exact` strategy of the masking probe costs against the plain double loop, in turn, in one process.

    python benchmarks/probe.py                 # some ten minutes on two idle cores
    python benchmarks/probe.py --steps 2       # a minute: of the plain loop the first two steps alone, see below
    python benchmarks/probe.py --tiny          # seconds; the numbers mean nothing

The plain loop calls the model once for each candidate of each step, with the whole sequence in a batch of one. Prints a
table of ratios, plain loop / exact, of CPU time (which other programs on the machine disturb less than wall time), of
wall time, and of the tokens that went through the model. Both must mask the same tokens in the same order, up to where
two candidates are closer than single precision can tell, or there is no table. With `--steps N` the plain loop ends
after N steps, and its time is reckoned: that per call, of which all calls cost the same, times the number of calls of
the whole loop.
"""

import argparse
import copy
import platform
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
import transformers

import hf_ssm
from hf_ssm.probes import MaskingProbe

VOCABULARY, MASK, FIRST_LETTER = 12, 3, 7
# Two candidates may be closer than single precision can tell.
ROUNDING = 1e-7
HEADS = {"causal": "CausalLM", "last": "SequenceClassification", "mean": "SequenceClassification"}


class Cost(NamedTuple):
    """Seconds of CPU time and of wall time, and tokens that went through the model."""

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
        steps: After how many to stop; the cost is scaled to all.
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
    """The same by the probe."""
    probe = MaskingProbe(model, mask=MASK, allow_wrong=True)
    sequence, target = ([*ids.tolist(), index], len(ids)) if is_causal else (ids.tolist(), index)
    before = clocks()
    result = probe.run(sequence, target=target, progress=False)
    after = clocks()
    return Cost(after[0] - before[0], after[1] - before[1], result.tokens), result.order.tolist()


def compare(model: torch.nn.Module, ids: torch.Tensor, index: int, is_causal: bool, steps: int) -> list[float]:
    """Ratios plain loop / exact of CPU time, wall time and tokens.

    Raises:
        RuntimeError: Other tokens were masked, or in another order.
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
            raise RuntimeError(f"{type(model).__name__}: another order than that of the plain loop, from {parting} on")
    return [a / b for a, b in zip(slow, quick, strict=True)]


@torch.no_grad()
def value_after(model: torch.nn.Module, ids: torch.Tensor, index: int, masked: list[int]) -> float:
    """The probability with these positions masked, in double precision."""
    variant = ids.clone()
    variant[masked] = MASK
    logits = copy.deepcopy(model).double()(input_ids=variant.unsqueeze(0)).logits
    return float((logits[0, -1] if logits.dim() == 3 else logits[0]).softmax(-1)[index])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--steps", type=int, help="of the plain loop, whose time is then reckoned; default: all")
    parser.add_argument("--families", nargs="+", default=["S4", "Hyena", "SelectiveSSM"])
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=list(HEADS), help="causal model, or pooling")
    parser.add_argument("--tiny", action="store_true", help="a few tokens, to see that it runs")
    args = parser.parse_args(argv)
    length, hidden = (10, 8) if args.tiny else (args.length, args.hidden_size)
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; length {length}, hidden size {hidden}, 2 layers; plain loop "
        f"{'whole' if args.steps is None else f'reckoned from {args.steps} steps'}\n"
    )
    print("| family | reads | CPU time | wall time | tokens |\n" + "|---" * 5 + "|")
    for family in args.families:
        for head in args.heads:
            model = build_model(family, head, hidden, length + 1)
            ids = torch.randint(FIRST_LETTER, VOCABULARY, (length,))
            found = compare(model, ids, FIRST_LETTER if head == "causal" else 1, head == "causal", args.steps or length)
            print(f"| {family} | {head} | " + " | ".join(f"{ratio:.1f}" for ratio in found) + " |", flush=True)


if __name__ == "__main__":
    main()
