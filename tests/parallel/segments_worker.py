"""What one of several processes does in `test_segments_of_processes.py`: a training step in segments.

    RANK=0 WORLD_SIZE=2 python segments_worker.py FOLDER gloo

Writes the largest error of the gradients, by family and wrapper, relative to the step of one process with all rows.
"""

import copy
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hf_ssm

MODELS = {
    "S4D": ("S4", "ForCausalLM", {}),
    "Mamba": ("SelectiveSSM", "ForCausalLM", {}),
    "S4D, two-sided": ("S4", "ForMaskedLM", {"bidirectional": True}),
}


def wrapped(model: torch.nn.Module, wrapper: str) -> torch.nn.Module:
    if wrapper == "DDP":
        return DistributedDataParallel(model)
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in named.items()}


def run(rank: int, world: int, device: torch.device) -> dict[str, float]:
    tokens = torch.randint(0, 12, (4, 200), generator=torch.Generator().manual_seed(0)).to(device)
    share = tokens[rank::world]
    errors = {}
    for name, (family, head, flags) in MODELS.items():
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "state_size": 8, "num_hidden_layers": 2, "initializer_range": 0.4}
        config = getattr(hf_ssm, f"{family}Config")(**sizes, **flags)
        alone = getattr(hf_ssm, f"{family}{head}")(config).double().to(device).train()
        models = {wrapper: copy.deepcopy(alone) for wrapper in ("DDP", "FSDP2")}
        alone(input_ids=tokens, labels=tokens).loss.backward()
        for wrapper, model in models.items():
            model.activation_checkpointing_enable({"segments": 3})
            # Kept, because DDP reduces gradients only while it exists.
            parallel = wrapped(model, wrapper)
            parallel(input_ids=share, labels=share).loss.backward()
            pairs = zip(gradients(model).values(), gradients(alone).values(), strict=True)
            errors[f"{name}, {wrapper}"] = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
    return errors


def main(folder: Path, backend: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", rank)
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = f"file://{(folder / 'store').absolute()}"
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world)
    (folder / f"{rank}.json").write_text(json.dumps(run(rank, world, device)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
