"""Models of gated long convolutions (Hyena, H3, Nishikawa & Suzuki's network): the mixer, the names, and HyenaDNA's."""

from typing import Any

from torch import Tensor
from transformers.modeling_utils import load_state_dict

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
from .weights_hyenadna import holds_hyenadna, own_weights


class HyenaPreTrainedModel(SSMPreTrainedModel):
    """Base of the Hyena models."""

    config: HyenaConfig
    config_class = HyenaConfig
    mixer_class = HyenaMixer

    @staticmethod
    def _load_pretrained_model(
        model: Any, state_dict: dict[str, Tensor] | None, checkpoint_files: list[str] | None, *args: Any, **kwargs: Any
    ) -> Any:
        """As in transformers; the files of a HyenaDNA model are read as one of ours.

        Renaming alone would not do: shapes and the order of the kernels differ, and one tensor serves several sines.
        """
        files = checkpoint_files or []
        if any(holds_hyenadna(load_state_dict(file, map_location="meta")) for file in files):
            found = {name: tensor for file in files for name, tensor in load_state_dict(file).items()}
            state_dict, checkpoint_files = own_weights(found, model.config), None
        return SSMPreTrainedModel._load_pretrained_model(model, state_dict, checkpoint_files, *args, **kwargs)


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
