"""Converter of PlantCAD2 checkpoints (`kuleshov-group/PlantCAD2-*`) to two-sided Mamba-2 models.

Legend: `D` hidden size of one strand, `E` inner size, `M` groups times states, `C` = E + 2 M channels of the short
convolution, `H` heads, `K` taps.

PlantCAD2 is Caduceus with two whole Mamba-2 layers in place of two Mamba layers: each direction is gated and normalised
by itself before the out-projection that both share (`bidirectional_norm_tie=False`). The epsilon of these norms is
always 1e-5 there, and that of all norms here.

Source: Zhai et al. 2025 (PlantCAD2); public code of the checkpoints' configuration and model classes.
"""

import math
from collections.abc import Mapping
from typing import Any

from hf_ssm.models.base.caduceus import CaduceusLayout, field_value
from hf_ssm.models.ssd.modeling_ssd import SSDForMaskedLM, SSDForSequenceClassification, SSDModel

__all__ = ["CONVERTERS", "PlantCAD2Converter"]

# Options of `ssm_cfg`, the fields here, types and the values that absent options stand for.
_SSM_FIELDS: dict[str, tuple[str, type, Any]] = {
    "d_state": ("state_size", int, 128),
    "d_conv": ("conv_kernel", int, 4),
    "expand": ("expand", int, 2),
    "headdim": ("head_dim", int, 64),
    "ngroups": ("n_groups", int, 1),
    "D_has_hdim": ("D_has_hdim", bool, False),
    "rmsnorm": ("rms_norm", bool, True),
    "norm_before_gate": ("norm_before_gate", bool, False),
    "bias": ("use_bias", bool, False),
    "conv_bias": ("use_conv_bias", bool, True),
    "dt_min": ("time_step_min", float, 0.001),
    "dt_max": ("time_step_max", float, 0.1),
    "dt_init_floor": ("time_step_floor", float, 1e-4),
}
# Options about speed, several devices or the initial weights.
_UNUSED = frozenset(
    {"chunk_size", "use_mem_eff_path", "conv_init", "A_init_range", "process_group", "sequence_parallel"}
)
_EPSILON = 1e-5


class PlantCAD2Converter(CaduceusLayout):
    """Converts PlantCAD2; `from_pretrained` of the Mamba-2 models reads its folders."""

    name = "PlantCAD2"
    version = "v2"
    heads = {
        "CaduceusForMaskedLM": SSDForMaskedLM,
        "CaduceusForSequenceClassification": SSDForSequenceClassification,
        "Caduceus": SSDModel,
    }
    backbone_class = SSDModel
    mixer_tensors = {
        "in_proj.weight": ("E+C+H", "D"),
        "in_proj.bias": ("E+C+H",),
        "conv1d.weight": ("C", 1, "K"),
        "conv1d.bias": ("C",),
        "dt_bias": ("H",),
        "A_log": ("H",),
        "D": ("H or E",),
        "norm.weight": ("E",),
        "out_proj.weight": ("D", "E"),
        "out_proj.bias": ("D",),
    }
    mixer_names = {r"\.mixer\.(reverse_)?(A_log|D|dt_bias)$": r".mixer.\1scan.\2"}
    size_fields = {
        "E": "ssm_cfg.expand",
        "C": "ssm_cfg.d_state or ssm_cfg.ngroups",
        "E+C+H": "ssm_cfg.d_state or ssm_cfg.headdim",
        "H": "ssm_cfg.headdim",
        "H or E": "ssm_cfg.D_has_hdim",
        "K": "ssm_cfg.d_conv",
    }
    named_by = {r"\.mamba_(fwd|rev)\.norm\.weight$": "ssm_cfg.rmsnorm"}

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        own = super().convert_config(config)
        strategy, is_tied = own.pop("bidirectional_strategy"), own.pop("bidirectional_weight_tie")
        if strategy != "add" or not is_tied:
            raise ValueError(
                f"`bidirectional_strategy`={strategy!r} and `bidirectional_weight_tie`={is_tied} cannot be converted: "
                "both directions of Mamba-2 models here are added and have the same projections"
            )
        if own["rms_norm"] and own["layer_norm_epsilon"] != _EPSILON:
            raise ValueError(
                f"`norm_cfg.norm_epsilon`={own['layer_norm_epsilon']!r} cannot be converted: the norms before the "
                f"out-projections have {_EPSILON}, and all norms of the models here have the same epsilon"
            )
        own["bidirectional_norm_tie"] = not (own["bidirectional"] and own["rms_norm"])
        return own

    def convert_ssm(self, options: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
        unknown = sorted(options.keys() - {*_SSM_FIELDS, *_UNUSED, "d_ssm", "dt_limit"})
        if unknown:
            raise ValueError(f"`ssm_cfg` has options that Mamba-2 does not have: {', '.join(map(repr, unknown))}")
        own = {
            new: field_value(options, name, kind, default, "ssm_cfg.")
            for name, (new, kind, default) in _SSM_FIELDS.items()
        }
        if options.get("d_ssm") not in (None, own["expand"] * hidden_size):
            raise ValueError(
                f"`ssm_cfg.d_ssm`={options['d_ssm']!r} cannot be converted: all {own['expand'] * hidden_size} channels "
                "of Mamba-2 models here are channels of the scan"
            )
        limit = options.get("dt_limit") or (0.0, math.inf)
        if not isinstance(limit, (list, tuple)) or len(limit) != 2:
            raise ValueError(f"`ssm_cfg.dt_limit` must be the least and the greatest step size, got {limit!r}")
        return own | {"time_step_limit": tuple(limit)}

    def lacks(self, name: str, config: Any) -> bool:
        return not config.rms_norm if name == "norm.weight" else super().lacks(name, config)

    def mixer_sizes(self, config: Any) -> dict[str, int]:
        E, H = config.intermediate_size, config.num_heads
        C = E + 2 * config.n_groups * config.state_size
        skips = E if config.D_has_hdim else H
        return {"E": E, "C": C, "H": H, "E+C+H": E + C + H, "H or E": skips, "K": config.conv_kernel}


CONVERTERS = (PlantCAD2Converter(),)
