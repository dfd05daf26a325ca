"""Converter of IBM's FlowState checkpoints; `docs/explanation/flowstate.md` lists their fields and tensors.

Legend: `D` hidden size, `P` complex states of a layer.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.converter import CheckpointConverter, rename
from hf_ssm.models.flowstate.configuration_flowstate import FlowStateConfig
from hf_ssm.models.flowstate.modeling_flowstate import FlowStateForPrediction, FlowStateModel

__all__ = ["CONVERTERS", "FlowStateConverter"]

_FIELDS = {
    "embedding_feature_dim": "hidden_size",
    "encoder_num_layers": "num_hidden_layers",
    **{name: name for name in ("context_length", "scale_factor", "decoder_patch_len", "decoder_dim", "quantiles")},
    **{name: name for name in ("mlp_type", "out_gating", "with_missing")},
}
# What the public code takes for absent fields.
_DEFAULTS: dict[str, Any] = {
    "embedding_feature_dim": 512,
    "encoder_num_layers": 6,
    "encoder_state_dim": 512,
    "encoder_num_hippo_blocks": 8,
    "context_length": 2048,
    "prediction_length": -1,
    "scale_factor": 1.0,
    "decoder_patch_len": 24,
    "decoder_dim": 256,
    "decoder_type": "legs",
    "mlp_type": "gated",
    "out_gating": False,
    "with_missing": True,
    "quantiles": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "prediction_type": "mean",
}
_NAMES = {
    # The class `FlowStateModel` of the public code has the decoder too, and no prefix.
    r"^(model\.)?decoder\.lin\.": "decoder.linear.",
    r"^(model\.)?embed\.embed\.": "model.input_projection.",
    r"^(model\.)?encoder\.layers\.(\d+)\.": r"model.layers.\2.mixer.",
    r"\.mixer\.out\.": ".mixer.out_proj.",
    r"\.mlp\.rms_weight$": ".mlp.norm.weight",
    r"\.mlp\.w1\.": ".mlp.gate_proj.",
    r"\.mlp\.w2\.": ".mlp.up_proj.",
    r"\.mlp\.w3\.": ".mlp.down_proj.",
    r"\.ssm\.log_Delta$": ".ssm.log_dt",
    r"\.ssm\.log_Lambda_real$": ".ssm.log_A_real",
    r"\.ssm\.Lambda_imag$": ".ssm.A_imag",
}


class FlowStateConverter(CheckpointConverter):
    """Converts `FlowStateForPrediction` and `FlowStateModel` of granite-tsfm."""

    name = "FlowState"
    model_type = "flowstate"
    heads = {"FlowStateForPrediction": FlowStateForPrediction, "FlowStateModel": FlowStateForPrediction}
    backbone_class = FlowStateModel

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the `FlowStateConfig` of a checkpoint.

        Raises:
            ValueError: Sizes that are no numbers, or an unknown decoder.
        """
        fields = {name: config.get(name, default) for name, default in _DEFAULTS.items()}
        states, blocks = fields["encoder_state_dim"], fields["encoder_num_hippo_blocks"]
        for name, value in (("encoder_state_dim", states), ("encoder_num_hippo_blocks", blocks)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"`{name}` must be a positive number, got {value!r}")
        if states % blocks:
            raise ValueError(
                f"`encoder_state_dim`={states} must be a multiple of `encoder_num_hippo_blocks`={blocks}: the "
                "configuration is damaged"
            )
        length = fields["prediction_length"]
        converted = {new: fields[old] for old, new in _FIELDS.items()}
        # All complex states are stored, of which the models here store one for each pair of real ones.
        converted["state_size"] = 2 * states
        converted["num_blocks"] = 2 * blocks if states // blocks % 2 == 0 else blocks
        converted["prediction_length"] = length if isinstance(length, int) and length > 0 else None
        converted["decoder_type"] = str(fields["decoder_type"]).lower()
        converted["prediction_type"] = "median" if fields["prediction_type"] == "median" else "mean"
        converted["interpolate_quantiles"] = True
        converted |= {name: config[name] for name in ("dtype", "torch_dtype") if name in config}
        return converted

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: FlowStateConfig
    ) -> dict[str, Tensor]:
        weights = rename(state_dict, _NAMES)
        for layer in range(config.num_hidden_layers):
            ssm = f"model.layers.{layer}.mixer.ssm"
            _merge(weights, f"{ssm}.B_tilde_r", f"{ssm}.B_tilde_i", f"{ssm}.B")
            _merge(weights, f"{ssm}.C_tilde_r", f"{ssm}.C_tilde_i", f"{ssm}.C")
            if f"{ssm}.C" in weights:
                # The output here is 2 Re(C x), of one direction.
                weights[f"{ssm}.C"] = (weights[f"{ssm}.C"] / 2).unsqueeze(0)
        return weights


def _merge(weights: dict[str, Tensor], real: str, imag: str, name: str) -> None:
    """Store real and imaginary part of a matrix as `(..., 2)`; missing ones are reported by the caller."""
    if real in weights and imag in weights and weights[real].shape == weights[imag].shape:
        weights[name] = torch.stack([weights.pop(real), weights.pop(imag)], dim=-1)


CONVERTERS = (FlowStateConverter(),)
