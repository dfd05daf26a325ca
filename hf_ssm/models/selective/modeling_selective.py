"""Selective state space models (Mamba, and the model of Honarpisheh et al. 2025)."""

from collections.abc import Sequence

from torch import Tensor

from hf_ssm.models.base.backbone import SSMModel
from hf_ssm.models.base.factory import model_classes
from hf_ssm.models.base.fused_decoding import FusedGeneration
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.selective.configuration_selective import SelectiveSSMConfig
from hf_ssm.models.selective.fused_decoding import step_of_blocks
from hf_ssm.models.selective.mixer_selective import SelectiveMixer
from hf_ssm.modules.state import LayerState


class SelectiveSSMPreTrainedModel(SSMPreTrainedModel):
    """Base of the selective models."""

    config: SelectiveSSMConfig
    config_class = SelectiveSSMConfig
    mixer_class = SelectiveMixer


class SelectiveSSMModel(SelectiveSSMPreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""

    def _step_states(self, hidden_states: Tensor, states: Sequence[LayerState]) -> list[Tensor] | None:
        stepped = step_of_blocks(self.layers, self.norm, hidden_states, states)
        return None if stepped is None else [hidden_states, *stepped]


globals().update(model_classes(SelectiveSSMPreTrainedModel, SelectiveSSMModel, generation=(FusedGeneration,)))
