"""Converter of Caduceus checkpoints (`kuleshov-group/caduceus-*`, PlantCaduceus) to two-sided selective models.

Legend: `V` padded vocabulary, `D` hidden size of one strand, `E` inner size, `N` states, `R` rank of the step
projection, `K` taps of the short convolution.

Source: Schiff et al. 2024 (Caduceus); Zhai et al. 2025 (PlantCaduceus).
"""

from collections.abc import Mapping
from typing import Any

from hf_ssm.models.base.caduceus import CaduceusLayout, field_value
from hf_ssm.models.selective.modeling_selective import (
    SelectiveSSMForMaskedLM,
    SelectiveSSMForSequenceClassification,
    SelectiveSSMModel,
)

__all__ = ["CONVERTERS", "CaduceusConverter"]

# Options of `ssm_cfg`, the fields here, types and the values that absent options stand for.
_SSM_FIELDS: dict[str, tuple[str, type, Any]] = {
    "d_state": ("state_size", int, 16),
    "d_conv": ("conv_kernel", int, 4),
    "conv_bias": ("use_conv_bias", bool, True),
    "bias": ("use_bias", bool, False),
    "dt_min": ("time_step_min", float, 0.001),
    "dt_max": ("time_step_max", float, 0.1),
    "dt_init": ("time_step_init_scheme", str, "random"),
    "dt_scale": ("time_step_scale", float, 1.0),
    "dt_init_floor": ("time_step_floor", float, 1e-4),
}


class CaduceusConverter(CaduceusLayout):
    """Converts Caduceus; `from_pretrained` of the selective models reads its folders."""

    name = "Caduceus"
    version = "v1"
    heads = {
        "CaduceusForMaskedLM": SelectiveSSMForMaskedLM,
        "CaduceusForSequenceClassification": SelectiveSSMForSequenceClassification,
        "Caduceus": SelectiveSSMModel,
    }
    backbone_class = SelectiveSSMModel
    mixer_tensors = {
        "in_proj.weight": ("2E", "D"),
        "in_proj.bias": ("2E",),
        "conv1d.weight": ("E", 1, "K"),
        "conv1d.bias": ("E",),
        "x_proj.weight": ("R+2N", "E"),
        "dt_proj.weight": ("E", "R"),
        "dt_proj.bias": ("E",),
        "A_log": ("E", "N"),
        "D": ("E",),
        "out_proj.weight": ("D", "E"),
        "out_proj.bias": ("D",),
    }
    mixer_names = {
        r"\.mixer\.(reverse_)?(A_log$|D$|x_proj\.|dt_proj\.weight$)": r".mixer.\1scan.\2",
        r"\.mixer\.(reverse_)?dt_proj\.bias$": r".mixer.\1scan.dt_bias",
    }
    size_fields = {
        "E": "ssm_cfg.expand",
        "2E": "ssm_cfg.expand",
        "K": "ssm_cfg.d_conv",
        "N": "ssm_cfg.d_state",
        "R": "ssm_cfg.dt_rank",
        "R+2N": "ssm_cfg.dt_rank or ssm_cfg.d_state",
    }

    def convert_ssm(self, options: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
        unknown = sorted(options.keys() - {*_SSM_FIELDS, "expand", "dt_rank", "use_fast_path"})
        if unknown:
            raise ValueError(f"`ssm_cfg` has options that Mamba does not have: {', '.join(map(repr, unknown))}")
        own = {
            new: field_value(options, name, kind, default, "ssm_cfg.")
            for name, (new, kind, default) in _SSM_FIELDS.items()
        }
        own["intermediate_size"] = field_value(options, "expand", int, 2, "ssm_cfg.") * hidden_size
        rank = options.get("dt_rank", "auto")
        own["time_step_rank"] = rank if rank == "auto" else field_value(options, "dt_rank", int, "auto", "ssm_cfg.")
        return own

    def mixer_sizes(self, config: Any) -> dict[str, int]:
        E, N, R = config.intermediate_size, config.state_size, config.time_step_rank
        return {"E": E, "2E": 2 * E, "K": config.conv_kernel, "N": N, "R": R, "R+2N": R + 2 * N}


CONVERTERS = (CaduceusConverter(),)
