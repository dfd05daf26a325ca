"""Converters of Mamba checkpoints of transformers, and of the state dicts of Honarpisheh et al. 2025.

Legend: `V` vocabulary, `D` channels, `N` states.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.converter import CheckpointConverter, Converter, check_names, check_tensors, rename
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.selective.modeling_selective import (
    SelectiveSSMForCausalLM,
    SelectiveSSMForSequenceClassification,
    SelectiveSSMModel,
)

__all__ = ["CONVERTERS", "MAMBA_NAMES", "HonarpishehConverter", "MambaConverter", "plain_classifier_from_state_dict"]

MAMBA_NAMES = {
    r"^(backbone\.)?(?=embeddings?\.|layers\.|norm_f\.)": "model.",
    r"embeddings?\.weight": "embed_tokens.weight",
    r"norm_f\.": "norm.",
    r"layers\.(\d+)\.norm\.": r"layers.\1.norm1.",
    r"mixer\.(A_log|D\b|x_proj\.|dt_proj\.weight)": r"mixer.scan.\1",
    r"mixer\.dt_proj\.bias": "mixer.scan.dt_bias",
}
"""Weight names of `MambaForCausalLM` and `MambaModel`, as regular expressions, and the names here."""

# Fields of `MambaConfig` that choose an implementation, or repeat another field.
_UNUSED_FIELDS = frozenset(
    {
        *("model_type", "architectures", "use_mambapy", "use_associative_scan", "ssm_cfg", "rms_norm"),
        *("fused_add_norm", "pad_vocab_size_multiple"),
    }
)

# A state dict of Honarpisheh et al.
_PLAIN_SHAPES: dict[str, tuple[str | int, ...]] = {
    "embedding.weight": ("V", "D"),
    "SSM.ssm.A": ("D", "N"),
    "SSM.ssm.W_B": ("N", "D"),
    "SSM.ssm.W_C": ("N", "D"),
    "SSM.ssm.q_delta": ("D",),
    "SSM.ssm.p_delta": (1,),
    "SSM.w": ("D",),
}


class MambaConverter(CheckpointConverter):
    """Converts `MambaForCausalLM` and `MambaModel` of transformers."""

    name = "Mamba"
    model_type = "mamba"
    heads = {"MambaForCausalLM": SelectiveSSMForCausalLM, "MambaModel": SelectiveSSMModel}
    backbone_class = SelectiveSSMModel

    def convert_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in config.items() if name not in _UNUSED_FIELDS}

    def convert_weights(
        self, state_dict: Mapping[str, Tensor], found: Mapping[str, Any], config: SelectiveSSMConfig
    ) -> dict[str, Tensor]:
        return rename(state_dict, MAMBA_NAMES)


class HonarpishehConverter(Converter):
    """Converts state dicts of the authors' code of *Generalization Error Analysis for Selective State-Space Models*."""

    name = "Honarpisheh et al."

    def recognises(self, config: Mapping[str, Any], names: Collection[str]) -> bool:
        return any(name.startswith("SSM.") for name in names)

    def convert(
        self, state_dict: Mapping[str, Tensor], config: Mapping[str, Any], **options: Any
    ) -> SelectiveSSMForSequenceClassification:
        return plain_classifier_from_state_dict(state_dict)


def plain_classifier_from_state_dict(state_dict: Mapping[str, Tensor]) -> SelectiveSSMForSequenceClassification:
    """Convert a state dict of Honarpisheh et al. to a classifier.

    The classifier has one logit (class 1 against class 0), stores A itself (`state_matrix="raw"`), and reads the last
    position unless a mask is given. Its type is that of the embedding, at least float32.

    Args:
        state_dict: `embedding.weight` `(V, D)`, `SSM.ssm.A` `(D, N)`, `SSM.ssm.W_B` and `SSM.ssm.W_C` `(N, D)`,
            `SSM.ssm.q_delta` `(D,)`, `SSM.ssm.p_delta` `(1,)`, `SSM.w` `(D,)`.

    Raises:
        ValueError: Tensors that are missing, unknown, of another shape or type, or not finite.

    Source: Honarpisheh et al. 2025, eqs. (8), (13), (14), (21).
    """
    check_names(state_dict, _PLAIN_SHAPES, "the selective SSM of Honarpisheh et al.")
    sizes = check_tensors(state_dict, _PLAIN_SHAPES)
    # With one label, transformers assumes a regression unless the problem type is set.
    one_logit: dict[str, Any] = {"num_labels": 1, "problem_type": "multi_label_classification"}
    config = SelectiveSSMConfig(
        block="plain",
        state_matrix="raw",
        vocab_size=sizes["V"],
        hidden_size=sizes["D"],
        state_size=sizes["N"],
        **one_logit,
    )
    model = SelectiveSSMForSequenceClassification(config)
    if state_dict["embedding.weight"].dtype == torch.float64:
        model.double()
    projections = (state_dict["SSM.ssm.q_delta"].unsqueeze(0), state_dict["SSM.ssm.W_B"], state_dict["SSM.ssm.W_C"])
    model.load_state_dict(
        {
            "model.embed_tokens.weight": state_dict["embedding.weight"],
            "model.layers.0.mixer.scan.A": state_dict["SSM.ssm.A"],
            "model.layers.0.mixer.scan.x_proj.weight": torch.cat(projections),
            "model.layers.0.mixer.scan.dt_bias": state_dict["SSM.ssm.p_delta"],
            "classifier.weight": state_dict["SSM.w"].unsqueeze(0),
        }
    )
    return model.eval()


CONVERTERS = (HonarpishehConverter(), MambaConverter())
