"""Memory and traffic of a training step on many devices, predicted by formulas; nothing of that size is run.

    python benchmarks/plan.py                # 1 M tokens on 64 devices, about 20 seconds
    python benchmarks/plan.py --length 131072 --context 8 --data 8 --hidden-size 2048 --layers 48

The script measures the memory that a layer keeps for the backward pass: the tensors that autograd saves in models of
one and of three layers, without the weights. All other numbers follow from the formulas of
docs/explanation/larger-than-a-machine.md.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import hf_ssm

GIB = 2**30
# Weights, gradients and both moments of AdamW, in float32.
BYTES_PER_PARAMETER = 16
VOCABULARY = 256


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run: positions L, rows of each data-parallel group, ranks of a sequence R, data-parallel groups, and the size.

    Attributes:
        bytes: Bytes of a number of the activations.
    """

    length: int
    rows: int
    context: int
    data: int
    hidden_size: int
    layers: int
    bytes: int


def configs(hidden_size: int, layers: int, length: int) -> dict[str, Any]:
    """The models that are compared, with the defaults of their families."""
    size = {"hidden_size": hidden_size, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    return {
        "S4D": hf_ssm.S4Config(**size),
        "S5": hf_ssm.S5Config(**size),
        "Hyena": hf_ssm.HyenaConfig(**size, max_position_embeddings=length),
        "Mamba": hf_ssm.SelectiveSSMConfig(**size),
        "Mamba-2": hf_ssm.SSDConfig(**size),
    }


def model_of(config: Any) -> Any:
    """A causal language model without values."""
    with torch.device("meta"):
        return getattr(hf_ssm, type(config).__name__.replace("Config", "ForCausalLM"))(config)


def saved_numbers(config: Any, length: int) -> int:
    """Numbers that the layers keep for the backward pass, the weights left out; each memory is counted once."""
    torch.manual_seed(0)
    model = getattr(hf_ssm, type(config).__name__.replace("Config", "Model"))(config).train()
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


def kept_per_position(name: str, hidden_size: int, length: int) -> float:
    """Numbers that a layer keeps for each position, in units of the hidden size."""
    one, three = (configs(hidden_size, layers, length)[name] for layers in (1, 3))
    return kept_of_layer(one, three, length)


def kept_of_layer(one: Any, three: Any, length: int) -> float:
    """The same from configurations of a model with one layer and with three."""
    return (saved_numbers(three, length) - saved_numbers(one, length)) / 2 / length / one.hidden_size


def traffic(name: str, config: Any, plan: Plan) -> float:
    """Numbers that a rank sends in a layer and a step to the ranks of its sequences; see `split_sequences`."""
    rows, ranks = plan.rows, plan.context
    if name == "Hyena":
        streams = (config.hyena_order + 1) * config.hidden_size
        halo = (ranks + 1) * rows * (config.conv_kernel - 1) * streams
        return halo + config.num_filters * 4 * rows * plan.length * config.hidden_size / ranks
    if name in ("S4D", "S5"):
        # The states, and the product of their decays; those of S4 are in double precision.
        states = config.state_size if name == "S5" else 2 * config.hidden_size * config.state_size
        return (ranks + 1) * (rows + 1) * states
    inner = config.intermediate_size
    states = inner * config.state_size
    if name == "Mamba":
        return (ranks + 1) * rows * (2 * states + (config.conv_kernel - 1) * inner)
    mixed = inner + 2 * config.n_groups * config.state_size
    return (ranks + 1) * rows * (states + config.num_heads + (config.conv_kernel - 1) * mixed)


def whole_kernels(name: str, config: Any, plan: Plan) -> float:
    """Bytes of the kernels of a layer, which each rank computes for all positions, in float32."""
    return 4.0 * config.num_filters * config.hidden_size * plan.length if name == "Hyena" else 0.0


def rows_of(plan: Plan, measured_size: int, measured_length: int) -> list[list[str]]:
    """The cells of the table, a row for each family."""
    cells = []
    for name, config in configs(plan.hidden_size, plan.layers, plan.length).items():
        parameters = sum(parameter.numel() for parameter in model_of(config).parameters())
        kept = kept_per_position(name, measured_size, measured_length)
        positions = plan.rows * plan.length / plan.context
        layer = kept * plan.hidden_size * positions * plan.bytes + whole_kernels(name, config, plan)
        logits = 2 * VOCABULARY * positions * 4
        sharded = BYTES_PER_PARAMETER * parameters / (plan.context * plan.data)
        inputs = plan.layers * plan.hidden_size * positions * plan.bytes
        sent = traffic(name, config, plan) * plan.layers * 4
        gathered = 3 * parameters * plan.bytes
        amounts = (sharded, layer * plan.layers + logits, inputs + layer + logits, sent, gathered)
        cells.append(
            [name, f"{parameters / 1e6:,.0f} M", f"{kept:.0f}", *(f"{amount / GIB:.2f}" for amount in amounts)]
        )
    return cells


HEADER = (
    "family", "parameters", "numbers kept / (position, D)", "weights, gradients, AdamW", "activations",
    "activations, layers computed again", "sent for sequences", "sent for weights",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2**20, help="positions of a row, L")
    parser.add_argument("--rows", type=int, default=1, help="rows of each data-parallel group")
    parser.add_argument("--context", type=int, default=16, help="ranks that share a sequence, R")
    parser.add_argument("--data", type=int, default=4, help="data-parallel groups")
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--bytes", type=int, default=2, help="bytes of a number of the activations")
    parser.add_argument("--tiny", action="store_true", help="measure with a smaller model, for tests")
    options = vars(parser.parse_args(arguments))
    size, length = (16, 64) if options.pop("tiny") else (64, 1024)
    plan = Plan(**options)
    print(f"{plan}\n")
    print(f"| {' | '.join(HEADER)} |")
    print("|" + "---|" * len(HEADER))
    for row in rows_of(plan, size, length):
        print(f"| {' | '.join(row)} |")
    print("\nGiB of each device; sent: GiB that a device sends in a step.")


if __name__ == "__main__":
    main()
