"""CPU time per generated token of a hybrid of convolutions and attention, beside a hybrid of transformers.

    python benchmarks/hybrids.py            # about two minutes on one core
    python benchmarks/hybrids.py --tiny     # takes seconds; the numbers are meaningless

`Hyena2ForCausalLM` has layers of all four types, and `Lfm2ForCausalLM` of transformers has gated convolutions of 3 taps
and attention. Widths, depths, heads, MLPs and vocabularies are equal, and both models run in one process. Each
repetition reads the same prompt with either model, and decodes the same number of tokens from its cache. The script
prints ratios of the times per token, Lfm2 / Hyena2 (above 1, Hyena2 is faster): the median over the repetitions, and
their range. Run the script with OMP_NUM_THREADS=1: waiting threads count as work.
"""

import statistics
import time

import torch
import transformers
from _measure import Row, benchmark_parser, print_environment, write_rows

import hf_ssm

LAYERS = ["short_conv", "medium_conv", "long_conv", "full_attention"]


def build_models(hidden_size: int) -> dict[str, torch.nn.Module]:
    """Both models, with 8 layers, of which 2 are attention."""
    sizes = {
        "hidden_size": hidden_size,
        "num_hidden_layers": 8,
        "vocab_size": 512,
        "intermediate_size": 3 * hidden_size,
    }
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    kinds = ["full_attention" if kind == "full_attention" else "conv" for kind in 2 * LAYERS]
    theirs = {"layer_types": kinds, "block_auto_adjust_ff_dim": False, "pad_token_id": 0, "eos_token_id": None}
    torch.manual_seed(0)
    return {
        "Hyena2": hf_ssm.Hyena2ForCausalLM(hf_ssm.Hyena2Config(**sizes, **heads, layer_types=2 * LAYERS)).eval(),
        "Lfm2": transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**sizes, **heads, **theirs)).eval(),
    }


@torch.no_grad()
def seconds_per_token(model: torch.nn.Module, prompt: torch.Tensor, count: int) -> float:
    """CPU time of one token, given the cache of a prompt and the tokens before it."""
    output = model(prompt, use_cache=True, logits_to_keep=1)
    # Of the process, as other work on the machine would change the ratio.
    start = time.process_time()
    for _ in range(count):
        token = output.logits[:, -1].argmax(-1, keepdim=True)
        output = model(token, cache=output.cache, use_cache=True)
    return (time.process_time() - start) / count


def main() -> None:
    settings = {
        "prompts": ([256, 2048], "lengths of the prompts"),
        **{"new_tokens": 64, "hidden_size": 512, "repetitions": 5},
    }
    tiny = {"prompts": [4], "new_tokens": 2, "hidden_size": 16, "repetitions": 1}
    args = benchmark_parser(__doc__, settings, tiny, "minutes on one core").parse_args()
    models = build_models(args.hidden_size)
    sizes = ", ".join(f"{name} {model.num_parameters():,}" for name, model in models.items())
    print_environment(f"hidden size {args.hidden_size}; parameters: {sizes}")
    print("| prompt | Lfm2 / Hyena2 | range |\n|---|---|---|")
    rows = []
    for length in args.prompts:
        prompt = torch.randint(0, 512, (1, length))
        times = [
            {name: seconds_per_token(model, prompt, args.new_tokens) for name, model in models.items()}
            for _ in range(args.repetitions + 1)
        ]
        # Kernels are compiled in the first repetition.
        ratios = [time["Lfm2"] / time["Hyena2"] for time in times[1:]]
        rows.append(Row("hybrids", f"prompt of {length}", "Lfm2 / Hyena2", ratios))
        print(f"| {length} | {statistics.median(ratios):.2f} | {min(ratios):.2f} to {max(ratios):.2f} |", flush=True)
        write_rows(args.output, rows)


if __name__ == "__main__":
    main()
