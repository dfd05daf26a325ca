"""Models of gated long convolutions (Hyena, H3, Nishikawa & Suzuki's network): the mixer, and the names."""

from hf_ssm.modules.mixers import HyenaMixer

from .common import SSMModel, SSMPreTrainedModel
from .configuration_hyena import HyenaConfig
from .heads import (
    SSMForCausalLM,
    SSMForMaskedLM,
    SSMForSequenceClassification,
    SSMForSignalRegression,
    SSMForTokenClassification,
)


class HyenaPreTrainedModel(SSMPreTrainedModel):
    """Base of the Hyena models."""

    config: HyenaConfig
    config_class = HyenaConfig
    mixer_class = HyenaMixer


class HyenaModel(HyenaPreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""


class HyenaForCausalLM(HyenaPreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = HyenaModel


class HyenaForMaskedLM(HyenaPreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = HyenaModel


class HyenaForSequenceClassification(HyenaPreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = HyenaModel


class HyenaForTokenClassification(HyenaPreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = HyenaModel


class HyenaForSignalRegression(HyenaPreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = HyenaModel


__all__ = [
    "HyenaForCausalLM",
    "HyenaForMaskedLM",
    "HyenaForSequenceClassification",
    "HyenaForSignalRegression",
    "HyenaForTokenClassification",
    "HyenaModel",
    "HyenaPreTrainedModel",
]
