"""Windows and variants per second, relative to a loop that reads one window at a time through transformers.

    OMP_NUM_THREADS=1 python benchmarks/inference.py     # about five minutes on one core
    python benchmarks/inference.py --tiny                # takes seconds; the numbers are meaningless

The loop works like a short script: for each window, it computes the token ids, calls the model once, and keeps the
numbers of the window; for variants, it reads the windows of both alleles on both strands. Both contenders take turns in
one process. The script prints ratios of times, loop / hf_ssm, and the throughput of hf_ssm. It fails if a number
differs by more than 1e-4 of the largest number (float32).
"""

import random
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _measure import Call, Row, benchmark_parser, check_agreement, race, ratios, write_rows
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import hf_ssm
from hf_ssm.data.genome import Genome
from hf_ssm.data.records import reverse_complement

MODELS = ("S4D", "Mamba-2", "Llama")
TASKS = ("predict", "embed", "score")
LOOP, OURS = "loop", "hf_ssm"
TOKENIZER = hf_ssm.build_dna_tokenizer()


def build_model(name: str, task: str, hidden_size: int, longest: int) -> Any:
    """A causal model, or a classifier of sequences, of two layers."""
    torch.manual_seed(0)
    common = {"hidden_size": hidden_size, "num_hidden_layers": 2, "vocab_size": 12, "pad_token_id": 4}
    if name == "Llama":
        sizes = {"intermediate_size": 2 * hidden_size, "num_attention_heads": 2}
        config = LlamaConfig(**common, **sizes, max_position_embeddings=longest)
        return (LlamaForSequenceClassification if task == "predict" else LlamaForCausalLM)(config).eval()
    family = {"S4D": "S4", "Mamba-2": "SSD"}[name]
    head = "ForSequenceClassification" if task == "predict" else "ForCausalLM"
    return getattr(hf_ssm, f"{family}{head}")(getattr(hf_ssm, f"{family}Config")(**common)).eval()


def read(model: Any, text: str, **options: Any) -> Any:
    """One call of the model."""
    ids = torch.tensor([TOKENIZER(text)["input_ids"]], device=model.device)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, **options)


def predict_call(model: Any, windows: list[str]) -> dict[str, Call]:
    def loop() -> tuple[Tensor, ...]:
        rows = [read(model, window).logits.float().softmax(-1).cpu() for window in windows]
        return (torch.cat(rows).double(),)

    def ours() -> tuple[Tensor, ...]:
        table = hf_ssm.predict(model, TOKENIZER, windows)
        names = [name for name in table.column_names if name.startswith("probability_")]
        return (torch.stack([torch.tensor(table[name][:], dtype=torch.double) for name in names], 1),)

    return {LOOP: loop, OURS: ours}


def embed_call(model: Any, windows: list[str]) -> dict[str, Call]:
    def loop() -> tuple[Tensor, ...]:
        rows = [read(model, window, output_hidden_states=True).hidden_states[-1][0].mean(0) for window in windows]
        return (torch.stack(rows).cpu().double(),)

    def ours() -> tuple[Tensor, ...]:
        table = hf_ssm.embed(model, TOKENIZER, windows).with_format("numpy")
        return (torch.tensor(table["embedding"][:]).double(),)

    return {LOOP: loop, OURS: ours}


def score_call(model: Any, genome: Genome, text: str, places: list[int], window: int) -> dict[str, Call]:
    half = window // 2
    bases = {"A": "C", "C": "G", "G": "T", "T": "A"}

    def log_likelihood(sequence: str) -> float:
        logits = read(model, sequence).logits[0].double().log_softmax(-1)
        ids = torch.tensor(TOKENIZER(sequence)["input_ids"], device=logits.device)
        return float(logits[:-1].gather(1, ids[1:, None]).sum())

    def loop() -> tuple[Tensor, ...]:
        scores = []
        for at in places:
            # The other strand has half a window before the variant, too.
            forward, reverse = text[at - half : at + half], text[at - half + 1 : at + half + 1]
            turned = reverse_complement(reverse)
            alt = bases[text[at]]
            pairs = (
                (forward, forward[:half] + alt + forward[half + 1 :]),
                (turned, turned[:half] + reverse_complement(alt) + turned[half + 1 :]),
            )
            scores.append(sum(log_likelihood(b) - log_likelihood(a) for a, b in pairs) / 2)
        return (torch.tensor(scores, dtype=torch.double),)

    def ours() -> tuple[Tensor, ...]:
        rows = [{"chrom": "c", "pos": at + 1, "ref": text[at], "alt": bases[text[at]]} for at in places]
        table = hf_ssm.score_variants(model, TOKENIZER, rows, genome, window=window, scores=["llr"])
        return (torch.tensor(table["llr"][:], dtype=torch.double),)

    return {LOOP: loop, OURS: ours}


def compare(contenders: dict[str, Call], repetitions: int) -> tuple[list[float], list[float]]:
    """Ratios of times, loop / hf_ssm, and the seconds of hf_ssm.

    Raises:
        RuntimeError: The numbers differ.
    """
    first_calls = check_agreement(contenders, 1e-4)
    times = race(contenders, first_calls, repetitions, 0.0)
    return ratios(times, [LOOP], [OURS]), times[OURS]


def main() -> None:
    settings = {
        "items": (64, "windows, or variants"),
        **{"window": 512, "hidden_size": 64, "models": list(MODELS), "tasks": list(TASKS), "repetitions": 5},
    }
    tiny = {"items": 4, "window": 32, "hidden_size": 8, "repetitions": 1}
    parser = benchmark_parser(__doc__, settings, tiny, "about five minutes on one core")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    letters = random.Random(0)
    text = "".join(letters.choices("ACGT", k=args.items * args.window + 2 * args.window))
    windows = [text[args.window * number :][: args.window] for number in range(args.items)]
    places = letters.sample(range(args.window, len(text) - args.window), args.items)
    rows: list[Row] = []
    print("| task | model | loop / hf_ssm | per second |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "genome.fa")
        path.write_text(f">c\n{text}\n")
        with Genome(path) as genome:
            builders: dict[str, Callable[[Any], dict[str, Call]]] = {
                "predict": partial(predict_call, windows=windows),
                "embed": partial(embed_call, windows=windows),
                "score": partial(score_call, genome=genome, text=text, places=places, window=args.window),
            }
            for task in args.tasks:
                for name in args.models:
                    model = build_model(name, task, args.hidden_size, 2 * args.window).to(args.device)
                    found, seconds = compare(builders[task](model), args.repetitions)
                    rates = [args.items / value for value in seconds]
                    rows += [
                        Row(task, name, "loop / hf_ssm", found),
                        Row(task, name, "throughput", rates, "per second"),
                    ]
                    middle = statistics.median(found), statistics.median(rates)
                    print(f"| {task} | {name} | {middle[0]:.2f} | {middle[1]:,.0f} |", flush=True)
                    write_rows(args.output, rows, args.device)


if __name__ == "__main__":
    main()
