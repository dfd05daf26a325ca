"""The oscillatory state space models LinOSS and D-LinOSS: the mixer, and the names."""

from typing import ClassVar

from hf_ssm.models.base.backbone import SSMModel
from hf_ssm.models.base.heads import SSMForSequenceClassification, SSMForSignalRegression, SSMForTokenClassification
from hf_ssm.models.base.pair_head import SSMForMultipleChoice, SSMForSequencePairClassification
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.base.span_head import SSMForQuestionAnswering
from hf_ssm.models.base.token_heads import SSMForCausalLM, SSMForMaskedLM
from hf_ssm.models.linoss.configuration_linoss import LinOSSConfig
from hf_ssm.models.linoss.oscillators_linoss import OscillatorStateSpace
from hf_ssm.models.s5.modeling_s5 import S5Mixer
from hf_ssm.modules.mimo import MIMOStateSpace


class LinOSSMixer(S5Mixer):
    """Oscillators, activation, and a gate.

    Source: Rusch & Rus 2025, Section 2.4.
    """

    operator_class: ClassVar[type[MIMOStateSpace]] = OscillatorStateSpace


class LinOSSPreTrainedModel(SSMPreTrainedModel):
    """Base of the LinOSS models, which read `time_deltas` `(B, L)` beside their input: see `OscillatorStateSpace`."""

    config: LinOSSConfig
    config_class = LinOSSConfig
    mixer_class = LinOSSMixer
    extra_inputs: ClassVar[tuple[str, ...]] = ("time_deltas",)


class LinOSSModel(LinOSSPreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""


class LinOSSForCausalLM(LinOSSPreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = LinOSSModel


class LinOSSForMaskedLM(LinOSSPreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = LinOSSModel


class LinOSSForSequenceClassification(LinOSSPreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = LinOSSModel


class LinOSSForSequencePairClassification(LinOSSPreTrainedModel, SSMForSequencePairClassification):
    """A class (or a number) for each pair of sequences: see `SSMForSequencePairClassification`."""

    backbone_class = LinOSSModel


class LinOSSForTokenClassification(LinOSSPreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = LinOSSModel


class LinOSSForQuestionAnswering(LinOSSPreTrainedModel, SSMForQuestionAnswering):
    """Where the answer to a question starts and ends: see `SSMForQuestionAnswering`."""

    backbone_class = LinOSSModel


class LinOSSForMultipleChoice(LinOSSPreTrainedModel, SSMForMultipleChoice):
    """The right one of several sequences: see `SSMForMultipleChoice`."""

    backbone_class = LinOSSModel


class LinOSSForSignalRegression(LinOSSPreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = LinOSSModel


__all__ = [
    "LinOSSForCausalLM",
    "LinOSSForMaskedLM",
    "LinOSSForMultipleChoice",
    "LinOSSForQuestionAnswering",
    "LinOSSForSequenceClassification",
    "LinOSSForSequencePairClassification",
    "LinOSSForSignalRegression",
    "LinOSSForTokenClassification",
    "LinOSSModel",
    "LinOSSPreTrainedModel",
]
