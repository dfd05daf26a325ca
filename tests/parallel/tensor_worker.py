"""The models of `test_tensor.py`, and what one of several processes finds that splits them.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=... python tensor_worker.py FOLDER BACKEND

Writes the largest errors relative to one whole model, by case and quantity, into FOLDER.
"""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from transformers.distributed import DistributedConfig

import hf_ssm
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.rows import Rows, zero_padding
from hf_ssm.ops.long_conv import long_conv
from hf_ssm.parallel import clip_grad_norm_, tensor_parallel
from hf_ssm.parallel.splits import named_splits
from hf_ssm.training.rescale import rescale_init_

TAU_WEIGHT = 0.3
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "S4D": ("S4", "ForCausalLM", {"tau_detach_statistics": False}),
    "S4D, two-sided, gated": ("S4", "ForMaskedLM", {"bidirectional": True, "output_glu": True}),
    "S4, copies": ("S4", "ForCausalLM", {"kernel_type": "s4", "n_ssm": 2}),
    "S4D, trained filter": ("S4", "ForCausalLM", {"sobolev_order": 0.5, "sobolev_trainable": True}),
    "Hyena": ("Hyena", "ForCausalLM", {}),
    "Hyena of order 3": ("Hyena", "ForSequenceClassification", {"hyena_order": 3, "filter_type": "s4d"}),
    "Hyena, two-sided, stored": ("Hyena", "ForMaskedLM", {"bidirectional": True, "filter_positions": "stored"}),
    "sinusoids, no projection": (
        "Hyena",
        "ForCausalLM",
        {"filter_type": "sinusoid", "use_output_projection": False, "conv_kernel": 0, "mlp_depth": 3},
    ),
    "Mamba": ("SelectiveSSM", "ForCausalLM", {"tau_detach_statistics": False}),
    "Mamba, two-sided, complex": (
        "SelectiveSSM",
        "ForMaskedLM",
        {"bidirectional": True, "complex_state": True, "bidirectional_weight_tie": False, "use_bias": True},
    ),
    "plain": ("SelectiveSSM", "ForCausalLM", {"block": "plain", "initializer_range": None}),
    "plain, two-sided": ("SelectiveSSM", "ForMaskedLM", {"block": "plain", "bidirectional": True}),
    "Mamba-2, one group": ("SSD", "ForCausalLM", {"n_groups": 1, "use_bias": True}),
    "Mamba-2, two groups": ("SSD", "ForCausalLM", {"n_groups": 2, "complex_state": True, "rescale_init": True}),
    "Mamba-2, two-sided": (
        "SSD",
        "ForMaskedLM",
        {"n_groups": 1, "bidirectional": True, "bidirectional_norm_tie": False, "norm_before_gate": True},
    ),
}
OWN = "own mixer"
CASES["a family of one's own"] = "S4", "ForMaskedLM", {OWN: True}
# The same sums are split in both precisions.
RUNS = [(name, "float64") for name in CASES] + [(name, "float32") for name in list(CASES)[::4]]
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Average(SequenceOperator):
    """An operator that hf_ssm does not know, y_t = g Σ_l exp(-exp(r) l) u_{t-l}."""

    def __init__(self, channels: int):
        super().__init__(channels, use_skip=False)
        self.log_rate = torch.nn.Parameter(torch.randn(channels))
        # One for all channels.
        self.gain = torch.nn.Parameter(torch.ones(1))

    def channel_axes(self) -> dict[str, int]:
        return {"log_rate": 0}

    def forward(self, inputs: torch.Tensor, rows: Rows = Rows(), state: Any = None) -> torch.Tensor:
        lags = torch.arange(rows.longest(inputs), device=inputs.device)
        kernel = self.gain * torch.exp(-self.log_rate.exp()[:, None] * lags)
        self.observe(rows, inputs, kernel=kernel.unsqueeze(0))
        return rows.map(lambda batch, _: long_conv(batch, kernel), inputs)


class GatedAverage(torch.nn.Module):
    """A mixer that hf_ssm does not know."""

    def __init__(self, channels: int):
        super().__init__()
        self.average, self.gate = Average(channels), torch.nn.Linear(channels, channels)

    def forward(self, hidden_states: torch.Tensor, rows: Rows = Rows(), state: Any = None) -> torch.Tensor:
        return self.average(zero_padding(hidden_states, rows.mask), rows, state) * self.gate(hidden_states).sigmoid()


def build(family: str, head: str, config: dict[str, Any], dtype: torch.dtype, device: str) -> Any:
    """The same model in every process, in which each part changes the output."""
    sizes = {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 2, "initializer_range": 0.4}
    more = {"Hyena": {"max_position_embeddings": 64, "filter_order": 16}, "SSD": {"head_dim": 4}}.get(family, {})
    torch.manual_seed(0)
    config = dict(config)
    is_own = config.pop(OWN, False)
    model = getattr(hf_ssm, f"{family}{head}")(getattr(hf_ssm, f"{family}Config")(**(sizes | more | config)))
    for block in model.model.layers if is_own else ():
        block.mixer = GatedAverage(model.config.hidden_size)
    return model.to(dtype).to(device)


def difference(value: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference relative to the largest expected value."""
    return ((value - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


def compare(family: str, head: str, config: dict[str, Any], dtype: torch.dtype, device: str) -> dict[str, float]:
    """Errors of a step of training with τ, of a padded batch, and of reading with a cache."""
    whole, model = (build(family, head, config, dtype, device) for _ in range(2))
    assert tensor_parallel(model, MESH) is model
    errors: dict[str, float] = {}
    ids, mask = torch.randint(0, 12, (3, 12), device=device), torch.ones(3, 12, dtype=torch.long, device=device)
    mask[1, 8:] = 0
    labels = torch.randint(0, 2, (3,), device=device) if "Sequence" in head else ids
    outputs = []
    for one in (whole, model):
        output = one(input_ids=ids, attention_mask=mask, labels=labels, output_tau=True)
        (output.loss + TAU_WEIGHT * output.tau.log().sum()).backward()
        outputs.append(output)
    expected, output = outputs
    for name in ("loss", "logits", "tau"):
        errors[name] = difference(getattr(output, name), getattr(expected, name))
    pairs = zip(named_splits(model), whole.named_parameters(), strict=True)
    errors["gradients"] = 0.0
    for (parameter, split), (name, reference) in pairs:
        grad = reference.grad if split is None else split.local(reference.grad)
        error = difference(parameter.grad, grad)
        assert parameter.shape == grad.shape and error < 1e-3, (name, error)
        errors["gradients"] = max(errors["gradients"], error)
    norms = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1), clip_grad_norm_(model, 0.1)
    errors["norm of gradients"] = difference(norms[1], norms[0])
    for one in (whole, model):
        torch.optim.SGD(one.parameters(), lr=0.1).step()
        one.eval()
    with torch.no_grad():
        errors["logits after a step"] = difference(*(one(ids).logits for one in (model, whole)))
        if head == "ForCausalLM":
            cache = model(ids[:, :7], use_cache=True).cache
            rest = model(ids[:, 7:], cache=cache).logits
            errors["logits with a cache"] = difference(rest, whole(ids, use_cache=False).logits[:, 7:])
            generated = [one.generate(ids[:, :4], max_new_tokens=8, do_sample=False) for one in (whole, model)]
            errors["tokens"] = float((generated[0] != generated[1]).sum())
    state = model.state_dict()
    assert state.keys() == whole.state_dict().keys()
    errors["saved weights"] = max(difference(state[name], value) for name, value in whole.state_dict().items())
    # The split model takes whole weights, too.
    fresh = build(family, head, config, dtype, device)
    model.load_state_dict(fresh.state_dict())
    with torch.no_grad():
        errors["loaded weights"] = difference(model(ids).logits, fresh.eval()(ids).logits)
    return errors


def packed_and_checkpointed(device: str) -> dict[str, float]:
    """Errors of packed rows with recomputed layers."""
    arguments = "SelectiveSSM", "ForCausalLM", {"bidirectional": False}, torch.float64, device
    whole, model = (build(*arguments).train() for _ in range(2))
    tensor_parallel(model)
    model.gradient_checkpointing_enable()
    ids = torch.randint(0, 12, (2, 12), device=device)
    seq_idx = torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [1] * 3], device=device)
    losses = [one(ids, labels=ids, seq_idx=seq_idx).loss for one in (whole, model)]
    for loss in losses:
        loss.backward()
    pairs = zip(named_splits(model), whole.parameters(), strict=True)
    grads = [(p.grad, q.grad if split is None else split.local(q.grad)) for (p, split), q in pairs]
    return {"loss": difference(losses[1], losses[0]), "gradients": max(difference(*pair) for pair in grads)}


def rescaled(device: str) -> dict[str, float]:
    """Errors of the rescaled initialisation: τ before it, and logits after it."""
    errors = {}
    ids = torch.randint(0, 12, (3, 12), device=device)
    for family, config in (("SelectiveSSM", {}), ("SSD", {"n_groups": 1, "rescale_init": True})):
        whole, model = (build(family, "ForCausalLM", config, torch.float64, device) for _ in range(2))
        taus = [rescale_init_(one, {"input_ids": ids}) for one in (whole, tensor_parallel(model))]
        errors[f"τ, {family}"] = difference(taus[1], taus[0])
        with torch.no_grad():
            errors[f"logits, {family}"] = difference(model.eval()(ids).logits, whole.eval()(ids).logits)
    return errors


def memory_and_saving(folder: Path, device: str) -> dict[str, Any]:
    """Parameters of a process and of the whole model, and a saved model."""
    model = build("SSD", "ForCausalLM", {"n_groups": 2, "hidden_size": 64, "head_dim": 16}, torch.float32, device)
    counts = [sum(p.numel() for p in model.model.layers.parameters())]
    ids = torch.arange(12, device=device).unsqueeze(0)
    with torch.no_grad():
        expected = model.eval()(ids).logits
        tensor_parallel(model)
        counts.append(sum(p.numel() for p in model.model.layers.parameters()))
        model.save_pretrained(folder / "saved", is_main_process=dist.get_rank() == 0)
        dist.barrier()
        loaded = hf_ssm.SSDForCausalLM.from_pretrained(folder / "saved").to(device).eval()
        return {"counts": counts, "saved": difference(loaded(ids).logits, expected)}


def refusals(folder: Path, device: str) -> dict[str, str]:
    """The messages of models that cannot be split."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "channels": ("S4", {"hidden_size": 7}),
        "heads": ("SSD", {"hidden_size": 6, "head_dim": 4}),
        "groups": ("SSD", {"hidden_size": 24, "head_dim": 8, "n_groups": 3}),
        "S5": ("S5", {}),
        "batch norm": ("S4", {"norm_type": "batch"}),
    }
    messages = {}
    for name, (family, config) in cases.items():
        model = build(family, "ForCausalLM", config, torch.float32, device)
        before = [parameter.shape for parameter in model.parameters()]
        try:
            tensor_parallel(model)
        except ValueError as error:
            messages[name] = str(error)
        assert [parameter.shape for parameter in model.parameters()] == before
    model = tensor_parallel(build("S4", "ForCausalLM", {}, torch.float32, device))
    again: dict[str, Callable[[], Any]] = {
        "twice": lambda: tensor_parallel(model),
        "copy": lambda: copy.deepcopy(model),
        "DDP": lambda: DistributedDataParallel(model),
        "plan of transformers": lambda: hf_ssm.SSDForCausalLM.from_pretrained(
            folder / "saved", distributed_config=DistributedConfig(tp_size=dist.get_world_size())
        ),
    }
    for name, call in again.items():
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as error:
            messages[name] = str(error)
    return messages


if __name__ == "__main__":
    folder, backend = Path(sys.argv[1]), sys.argv[2]
    dist.init_process_group(backend)
    device = "cpu" if backend == "gloo" else f"cuda:{dist.get_rank()}"
    if backend == "nccl":
        torch.cuda.set_device(device)
    MESH = init_device_mesh("cpu" if backend == "gloo" else "cuda", (dist.get_world_size(),))
    chosen = {name: case for name, case in CASES.items() if name in sys.argv[3:] or len(sys.argv) == 3}
    found: dict[str, Any] = {}
    for name, case in chosen.items():
        for precision, dtype in DTYPES.items():
            if (name, precision) not in RUNS and len(sys.argv) == 3:
                continue
            found[f"{name}, {precision}"] = compare(*case, dtype, device)
    found["packed"] = packed_and_checkpointed(device)
    found["rescaled"] = rescaled(device)
    found["memory"] = memory_and_saving(folder, device)
    found["refusals"] = refusals(folder, device)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
