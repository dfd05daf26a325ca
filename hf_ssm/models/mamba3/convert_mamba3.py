"""Converter of Mamba-3 checkpoints of mamba_ssm; `docs/explanation/mamba3.md` lists the facts.

Legend: `N` states, `K` pairs of states that turn.

Source: Lahoti et al. 2026 (Mamba-3), and its code in state-spaces/mamba.
"""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.converter import EMPTY, Converter, Fields, Tensors, field_value, rename
from hf_ssm.models.base.mamba_ssm import INITIAL, NAMES, convert_options, convert_outer, layer_of, object_of
from hf_ssm.models.hybrid.modeling_hybrid import HybridForCausalLM
from hf_ssm.models.mamba3.configuration_mamba3 import Mamba3Config
from hf_ssm.models.mamba3.modeling_mamba3 import Mamba3ForCausalLM

__all__ = ["CONVERTERS", "Mamba3Converter"]

# Options of `ssm_cfg`, the fields here, and the values that absent options stand for.
_SSM_FIELDS: dict[str, tuple[str, Any]] = {
    "d_state": ("state_size", 128),
    "expand": ("expand", 2),
    "headdim": ("head_dim", 64),
    "ngroups": ("n_groups", 1),
    "rope_fraction": ("rope_fraction", 0.5),
    "A_floor": ("A_floor", 1e-4),
    "is_outproj_norm": ("rms_norm", False),
    "mimo_rank": ("mimo_rank", 4),
    **INITIAL,
}
# The width of an MLP is a multiple of this number.
_MULTIPLE = 128


class Mamba3Converter(Converter):
    """Converts `MambaLMHeadModel` with layers of Mamba-3; with MLPs (`d_intermediate`), to a hybrid."""

    name = "Mamba-3"
    options = ("A_activation",)
    heads = {"Mamba3": Mamba3ForCausalLM, "hybrid": HybridForCausalLM}
    names = {
        **NAMES,
        r"\.mixer\.(dt_bias|B_bias|C_bias|D|mimo_x|mimo_o)$": r".mixer.scan.\1",
        r"\.mlp\.fc2\.": ".mlp.down_proj.",
    }

    def recognises(self, config: Fields, names: Collection[str]) -> bool:
        return layer_of(config) == "Mamba3"

    def head_of(self, config: Fields, names: Collection[str]) -> Any:
        return self.heads["hybrid" if config.get("d_intermediate") else "Mamba3"]

    def convert_config(self, config: Fields, tensors: Tensors = EMPTY) -> dict[str, Any]:
        """Return the arguments of the `Mamba3Config`, or of the `HybridConfig`.

        Raises:
            ValueError: An unknown option, or a value of another type.
        """
        options, outer = object_of(config, "ssm_cfg"), convert_outer(config)
        mixer = convert_options(options, _SSM_FIELDS, "Mamba-3", ("layer", "is_mimo", "dropout"))
        mixer["A_activation"] = config.get("A_activation", Mamba3Config.A_activation)
        if not field_value(options, "is_mimo", False, "ssm_cfg."):
            mixer["mimo_rank"] = 1
        outer["dtype"] = str(_stored_type(tensors)).removeprefix("torch.")
        width = config.get("d_intermediate")
        if not width:
            return outer | mixer
        layers, width = ["mamba3"] * outer["num_hidden_layers"], width + -width % _MULTIPLE
        return outer | {"layer_types": layers, "mixers": {"mamba3": mixer}, "intermediate_size": width}

    def convert_weights(self, tensors: Tensors, found: Fields, config: Any) -> dict[str, Tensor]:
        weights = rename(tensors, self.names)
        mixer = config.mixer_config("mamba3") if found.get("d_intermediate") else config
        exact = _stored_type(tensors)
        for layer in range(config.num_hidden_layers):
            _split_gate(weights, f"model.layers.{layer}.mlp.")
            if object_of(found, "ssm_cfg").get("is_mimo"):
                _pair_neighbours(weights, f"model.layers.{layer}.mixer.", mixer)
                if mixer.mimo_rank == 1:
                    _fold(weights, f"model.layers.{layer}.mixer.", exact)
        return weights


CONVERTERS = (Mamba3Converter(),)


def _stored_type(tensors: Tensors) -> torch.dtype:
    """Return the type of the weights: of those that are products, one that holds the products exactly."""
    first = next((t for name, t in tensors.items() if name.endswith("embedding.weight")), torch.zeros(()))
    is_folded = any(name.endswith(".mimo_x") and tensor.shape[1:2] == (1,) for name, tensor in tensors.items())
    return {2: torch.float32, 4: torch.float64}.get(first.dtype.itemsize, first.dtype) if is_folded else first.dtype


def _split_gate(weights: dict[str, Tensor], mlp: str) -> None:
    """Split the first map of an MLP, which stacks what is gated and the gate."""
    stacked = weights.pop(f"{mlp}fc1.weight", None)
    if stacked is not None:
        weights[f"{mlp}up_proj.weight"], weights[f"{mlp}gate_proj.weight"] = stacked.chunk(2)


def _pair_neighbours(weights: dict[str, Tensor], mixer: str, config: Any) -> None:
    """Reorder the states, of which the kernels with several inputs turn i with i + N/2, for the first K states."""
    size, pairs = config.state_size, config.num_rope_angles
    first, second = torch.arange(size).chunk(2)
    turned = torch.stack([first[:pairs], second[:pairs]], dim=1).flatten()
    order = torch.cat([turned, first[pairs:], second[pairs:]])
    for name in ("B_norm.weight", "C_norm.weight", "scan.B_bias", "scan.C_bias"):
        if weights.get(mixer + name, torch.empty(0)).shape[-1] == size:
            weights[mixer + name] = weights[mixer + name][..., order]
    rows, start = weights.get(f"{mixer}in_proj.weight"), 2 * config.intermediate_size
    count = 2 * config.mimo_rank * config.n_groups * size
    if rows is not None and len(rows) >= start + count:
        matrices = rows[start : start + count].view(-1, size, rows.shape[1])[:, order].flatten(0, 1)
        weights[f"{mixer}in_proj.weight"] = torch.cat([rows[:start], matrices, rows[start + count :]])


def _fold(weights: dict[str, Tensor], mixer: str, dtype: torch.dtype) -> None:
    """Multiply the projections by the factors of one input and one output."""
    names = ("mimo_z", "scan.mimo_x", "scan.mimo_o", "in_proj.weight", "out_proj.weight")
    parts = [weights.get(mixer + name) for name in names]
    gate, up, down, into, out = (None if part is None else part.to(dtype) for part in parts)
    if gate is None or up is None or down is None or into is None or out is None:
        return  # Reported by the caller.
    factors = torch.cat([gate.flatten(), up.flatten()])
    if len(into) >= len(factors) and out.shape[-1] == down.numel():
        weights[f"{mixer}in_proj.weight"] = torch.cat(
            [into[: len(factors)] * factors.unsqueeze(1), into[len(factors) :]]
        )
        weights[f"{mixer}out_proj.weight"] = out * down.flatten()
        for name in names[:3]:
            del weights[mixer + name]
