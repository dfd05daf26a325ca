"""Selective state space models (Mamba, and the model of Honarpisheh et al. 2025)."""

from collections.abc import Sequence

from torch import Tensor

from hf_ssm.models.base.backbone import SSMModel
from hf_ssm.models.base.fused_decoding import FusedGeneration
from hf_ssm.models.base.heads import SSMForSequenceClassification, SSMForSignalRegression, SSMForTokenClassification
from hf_ssm.models.base.pair_head import SSMForMultipleChoice, SSMForSequencePairClassification
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.base.span_head import SSMForQuestionAnswering
from hf_ssm.models.base.token_heads import SSMForCausalLM, SSMForMaskedLM
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


class SelectiveSSMForCausalLM(FusedGeneration, SelectiveSSMPreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForMaskedLM(SelectiveSSMPreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForSequenceClassification(SelectiveSSMPreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForSequencePairClassification(SelectiveSSMPreTrainedModel, SSMForSequencePairClassification):
    """A class (or a number) for each pair of sequences: see `SSMForSequencePairClassification`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForTokenClassification(SelectiveSSMPreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForQuestionAnswering(SelectiveSSMPreTrainedModel, SSMForQuestionAnswering):
    """Where the answer to a question starts and ends: see `SSMForQuestionAnswering`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForMultipleChoice(SelectiveSSMPreTrainedModel, SSMForMultipleChoice):
    """The right one of several sequences: see `SSMForMultipleChoice`."""

    backbone_class = SelectiveSSMModel


class SelectiveSSMForSignalRegression(SelectiveSSMPreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = SelectiveSSMModel


__all__ = [
    "SelectiveSSMForCausalLM",
    "SelectiveSSMForMaskedLM",
    "SelectiveSSMForMultipleChoice",
    "SelectiveSSMForQuestionAnswering",
    "SelectiveSSMForSequenceClassification",
    "SelectiveSSMForSequencePairClassification",
    "SelectiveSSMForSignalRegression",
    "SelectiveSSMForTokenClassification",
    "SelectiveSSMModel",
    "SelectiveSSMPreTrainedModel",
]
