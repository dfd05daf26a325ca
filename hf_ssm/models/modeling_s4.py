"""The linear time-invariant state space models S4 and S4D: the mixer, and the names."""

from hf_ssm.modules.mixers import S4Mixer

from .common import SSMModel, SSMPreTrainedModel
from .configuration_s4 import S4Config
from .heads import (
    SSMForCausalLM,
    SSMForMaskedLM,
    SSMForSequenceClassification,
    SSMForSignalRegression,
    SSMForTokenClassification,
)


class S4PreTrainedModel(SSMPreTrainedModel):
    """Base of the S4 models."""

    config: S4Config
    config_class = S4Config
    mixer_class = S4Mixer


class S4Model(S4PreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""


class S4ForCausalLM(S4PreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = S4Model


class S4ForMaskedLM(S4PreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = S4Model


class S4ForSequenceClassification(S4PreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = S4Model


class S4ForTokenClassification(S4PreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = S4Model


class S4ForSignalRegression(S4PreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = S4Model


__all__ = [
    "S4ForCausalLM",
    "S4ForMaskedLM",
    "S4ForSequenceClassification",
    "S4ForSignalRegression",
    "S4ForTokenClassification",
    "S4Model",
    "S4PreTrainedModel",
]
