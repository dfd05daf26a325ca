"""Cost of a training step of each family: parameters, activations, and CPU time relative to S4D.

    OMP_NUM_THREADS=1 python benchmarks/cost.py --output benchmarks/results/cost.json      # a few minutes
    python benchmarks/cost.py --tiny                                                      # for tests

The parameters of a layer, and the numbers that autograd keeps for the backward pass, are differences of models with
three layers and with one layer, so that embedding and head do not count. Times are ratios of neighbouring steps in one
process.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _measure import TABLE_HEAD, Row, benchmark_parser, write_rows
from torch import Tensor

import hf_ssm

FAMILIES = {
    "S4D": hf_ssm.S4Config,
    "S5": hf_ssm.S5Config,
    "LinOSS": hf_ssm.LinOSSConfig,
    "Hyena": hf_ssm.HyenaConfig,
    "StripedHyena 2": hf_ssm.Hyena2Config,
    "Mamba": hf_ssm.SelectiveSSMConfig,
    "Mamba-2": hf_ssm.SSDConfig,
    "Mamba-3": hf_ssm.Mamba3Config,
}
VOCABULARY = 256


def config_of(name: str, hidden_size: int, layers: int, length: int) -> Any:
    """The default configuration of a family, for rows of this length."""
    options = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    if name == "Hyena":
        options["max_position_embeddings"] = length
    return FAMILIES[name](**options)


def model_of(config: Any, head: str = "Model") -> Any:
    """A model of the family of a configuration."""
    return getattr(hf_ssm, type(config).__name__.replace("Config", head))(config)


def parameters_of_layer(name: str, hidden_size: int, length: int) -> float:
    """Parameters of a layer, in units of the square of the hidden size; the mean where layers differ."""
    with torch.device("meta"):
        one, three = (model_of(config_of(name, hidden_size, layers, length)).num_parameters() for layers in (1, 3))
    return (three - one) / 2 / hidden_size**2


def saved_numbers(config: Any, length: int) -> int:
    """Numbers that the layers keep for the backward pass, the weights left out; each memory is counted once."""
    torch.manual_seed(0)
    model = model_of(config).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    # The storages themselves, so that no memory is used a second time.
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(1, length, dtype=torch.long)).last_hidden_state
    assert hidden.requires_grad
    return sum(storage.nbytes() // 4 for storage in kept.values())


def kept_of_layer(name: str, hidden_size: int, length: int) -> float:
    """Numbers that a layer keeps for each position, in units of the hidden size."""
    one, three = (saved_numbers(config_of(name, hidden_size, layers, length), length) for layers in (1, 3))
    return (three - one) / 2 / length / hidden_size


def step_of(name: str, hidden_size: int, length: int, rows: int) -> Callable[[], None]:
    """A training step of a causal language model of two layers: forward, backward, AdamW."""
    torch.manual_seed(0)
    model = model_of(config_of(name, hidden_size, 2, length), "ForCausalLM").train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, VOCABULARY, (rows, length))

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds(step: Callable[[], None]) -> float:
    """CPU time of a step."""
    started = time.process_time()
    step()
    return time.process_time() - started


def rows_of(hidden_size: int, length: int, rows: int, repetitions: int) -> list[Row]:
    """The measurements of all families."""
    steps = {name: step_of(name, hidden_size, length, rows) for name in FAMILIES}
    for step in steps.values():
        step()  # Compiles, and makes the states of AdamW.
    times: dict[str, list[float]] = {name: [] for name in FAMILIES}
    for _ in range(repetitions):
        for name, step in steps.items():
            times[name].append(seconds(step))
    found = []
    for name in FAMILIES:
        kept = kept_of_layer(name, hidden_size, length)
        ratios = [own / reference for own, reference in zip(times[name], times["S4D"], strict=True)]
        found += [
            Row("cost", name, "parameters of a layer / D²", [parameters_of_layer(name, hidden_size, length)]),
            Row("cost", name, "numbers kept / (position, layer, D)", [kept]),
            Row("cost", name, "CPU time of a step / S4D", ratios),
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and write it to --output."""
    settings = {
        "length": (1024, "positions of a row"),
        "rows": (4, "rows of a step"),
        **{"hidden_size": 128, "repetitions": 7},
    }
    tiny = {"hidden_size": 64, "length": 64, "rows": 1, "repetitions": 1}
    parser = benchmark_parser(__doc__, settings, tiny, "a few minutes on one core")
    options = vars(parser.parse_args(arguments))
    output, _ = options.pop("output"), options.pop("tiny")
    rows = rows_of(**options)
    print(TABLE_HEAD, *rows, sep="\n")
    write_rows(output, rows, sizes=options)


if __name__ == "__main__":
    main()
