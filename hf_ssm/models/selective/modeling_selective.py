"""The selective state space models: the mixer, the names, and those of transformers' checkpoints."""

from collections.abc import Sequence

from torch import Tensor

from hf_ssm.models.base.backbone import SSMModel, SSMPreTrainedModel
from hf_ssm.models.base.heads import (
    SSMForCausalLM,
    SSMForMaskedLM,
    SSMForSequenceClassification,
    SSMForSignalRegression,
    SSMForTokenClassification,
)
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.selective.fused_decoding import step_of_blocks
from hf_ssm.models.selective.mixer_selective import SelectiveMixer
from hf_ssm.modules.state import LayerState

# Weight names of transformers' `MambaForCausalLM` and `MambaModel`, as regular expressions, and what they are here.
MAMBA_NAMES = {
    r"backbone\.": "model.",
    r"embeddings?\.weight": "embed_tokens.weight",
    r"norm_f\.": "norm.",
    r"layers\.(\d+)\.norm\.": r"layers.\1.norm1.",
    r"mixer\.A_log": "mixer.scan.A_log",
    r"mixer\.D": "mixer.scan.D",
    r"mixer\.x_proj\.": "mixer.scan.x_proj.",
    r"mixer\.dt_proj\.weight": "mixer.scan.dt_proj.weight",
    r"mixer\.dt_proj\.bias": "mixer.scan.dt_bias",
}


class SelectiveSSMPreTrainedModel(SSMPreTrainedModel):
    """Base of the selective models."""

    config: SelectiveSSMConfig
    config_class = SelectiveSSMConfig
    mixer_class = SelectiveMixer
    _foreign_names = MAMBA_NAMES


class SelectiveSSMModel(SelectiveSSMPreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""

    def _run_states(self, hidden_states: Tensor, mask: Tensor | None, states: Sequence[LayerState]) -> list[Tensor]:
        stepped = step_of_blocks(self.layers, self.norm, hidden_states, mask, states)
        return super()._run_states(hidden_states, mask, states) if stepped is None else [hidden_states, *stepped]


class SelectiveSSMForCausalLM(SelectiveSSMPreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForMaskedLM(SelectiveSSMPreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForSequenceClassification(SelectiveSSMPreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForTokenClassification(SelectiveSSMPreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForSignalRegression(SelectiveSSMPreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = SelectiveSSMModel


__all__ = [
    "SelectiveSSMForCausalLM",
    "SelectiveSSMForMaskedLM",
    "SelectiveSSMForSequenceClassification",
    "SelectiveSSMForSignalRegression",
    "SelectiveSSMForTokenClassification",
    "SelectiveSSMModel",
    "SelectiveSSMPreTrainedModel",
]
