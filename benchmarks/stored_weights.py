"""Decoding on a CPU with weights in bfloat16 and int8, beside the same model in float32.

    python benchmarks/stored_weights.py           # minutes; int8 needs torchao (the extra quantization)
    python benchmarks/stored_weights.py --tiny    # takes seconds; the numbers are meaningless

A ratio is the time of the float32 model divided by that of the other model, for greedy generation with batch 1. All
models of a size run alternately in one process. The errors are those of the logits of one forward pass, relative to the
largest logit of the float32 model. The weights are random: trained models have other errors.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from _measure import TABLE_HEAD, Row, benchmark_parser, check_agreement, race, ratios, write_rows

import hf_ssm

FAMILIES = {"Mamba": "SelectiveSSM", "Mamba-2": "SSD"}
SIZES = ((256, 4), (768, 24), (1024, 48))


def stored_forms(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The model in float32, with all weights in bfloat16, and with int8 in the linear maps of the blocks."""
    forms = {"float32": model, "bfloat16": copy.deepcopy(model).bfloat16()}
    try:
        from torchao.quantization import Int8WeightOnlyConfig, quantize_
    except ImportError:
        print("int8 is left out: torchao is not installed")
        return forms
    forms["int8"] = copy.deepcopy(model)
    # The language-model head stays as it is, as in `from_pretrained`.
    quantize_(forms["int8"].model, Int8WeightOnlyConfig())
    return forms


def generate(model: torch.nn.Module, prompt: torch.Tensor, tokens: int) -> tuple[torch.Tensor, ...]:
    # Their tokens may differ, so that nothing is compared.
    model.generate(prompt, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    return ()


def compare(name: str, hidden: int, layers: int, tokens: int, repetitions: int, turn: float) -> list[Row]:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "initializer_range": 0.02}
    config = getattr(hf_ssm, f"{FAMILIES[name]}Config")(**sizes)
    forms = stored_forms(getattr(hf_ssm, f"{FAMILIES[name]}ForCausalLM")(config).eval())
    # Without the id of padding.
    prompt, row = torch.randint(1, 12, (1, 8)), torch.randint(1, 12, (1, 64))
    what = f"{name}, hidden {hidden}, {layers} layers, {tokens} tokens"
    with torch.no_grad():
        logits = {form: model(row, use_cache=False).logits.float() for form, model in forms.items()}
    calls: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
        form: partial(generate, model, prompt, tokens) for form, model in forms.items()
    }
    times = race(calls, check_agreement(calls, 0.0), repetitions, turn)
    exact, rows = logits["float32"], []
    for form in [form for form in forms if form != "float32"]:
        error = ((logits[form] - exact).abs().max() / exact.abs().max()).item()
        rows.append(Row("decoding", what, f"float32 / {form}", ratios(times, ["float32"], [form])))
        rows.append(Row("errors", what, f"largest error of a logit, {form}", [error]))
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    args = benchmark_parser(__doc__, {"repetitions": 7}, {}, "minutes on one core").parse_args(argv)
    tokens, repetitions, turn = (4, 2, 0.0) if args.tiny else (256, args.repetitions, 0.1)
    print(TABLE_HEAD)
    rows = []
    for hidden, layers in ((64, 2),) if args.tiny else SIZES:
        for name in FAMILIES:
            for row in compare(name, hidden, layers, tokens, repetitions, turn):
                rows.append(row)
                print(row, flush=True)
    write_rows(args.output, rows)


if __name__ == "__main__":
    main()
