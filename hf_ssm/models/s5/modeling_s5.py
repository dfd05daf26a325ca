"""The state space model S5: the mixer, and the names."""

from typing import ClassVar

from torch import Tensor, nn

from hf_ssm.models.base.backbone import SSMModel
from hf_ssm.models.base.heads import SSMForSequenceClassification, SSMForSignalRegression, SSMForTokenClassification
from hf_ssm.models.base.pair_head import SSMForMultipleChoice, SSMForSequencePairClassification
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.base.span_head import SSMForQuestionAnswering
from hf_ssm.models.base.token_heads import SSMForCausalLM, SSMForMaskedLM
from hf_ssm.models.s5.configuration_s5 import S5Config
from hf_ssm.modules.activation import build_activation
from hf_ssm.modules.mimo import MIMOStateSpace
from hf_ssm.modules.rows import Rows, zero_padding
from hf_ssm.modules.s5 import S5StateSpace
from hf_ssm.modules.state import LayerState


class S5Mixer(nn.Module):
    """State space model, activation, and a gate.

    Source: Smith, Warrington & Linderman 2023, Section 3 and App. G.
    """

    operator_class: ClassVar[type[MIMOStateSpace]] = S5StateSpace

    def __init__(self, config, layer_idx: int):
        super().__init__()
        size = config.hidden_size
        self.ssm = self.operator_class(config, layer_idx)
        self.activation = build_activation(config)
        self.output_gate = config.output_gate
        self.out_proj = nn.Linear(size, 2 * size if config.output_gate == "glu" else size)

    def forward(self, hidden_states: Tensor, rows: Rows = Rows(), state: LayerState | None = None) -> Tensor:
        scanned = self.ssm(zero_padding(hidden_states, rows.mask), rows, state)
        activated = self.activation(scanned)
        output = self.out_proj(activated)
        if self.output_gate in ("sigmoid", "half_glu2"):
            return (activated if self.output_gate == "sigmoid" else scanned) * output.sigmoid()
        return nn.functional.glu(output, dim=-1) if self.output_gate == "glu" else output


class S5PreTrainedModel(SSMPreTrainedModel):
    """Base of the S5 models, which read `time_deltas` `(B, L)` beside their input: see `S5StateSpace`."""

    config: S5Config
    config_class = S5Config
    mixer_class = S5Mixer
    extra_inputs: ClassVar[tuple[str, ...]] = ("time_deltas",)


class S5Model(S5PreTrainedModel, SSMModel):
    """Hidden states of a sequence: see `SSMModel`."""


class S5ForCausalLM(S5PreTrainedModel, SSMForCausalLM):
    """Next-token prediction: see `SSMForCausalLM`."""

    backbone_class = S5Model


class S5ForMaskedLM(S5PreTrainedModel, SSMForMaskedLM):
    """Masked-token prediction: see `SSMForMaskedLM`."""

    backbone_class = S5Model


class S5ForSequenceClassification(S5PreTrainedModel, SSMForSequenceClassification):
    """A class (or a number) for each sequence: see `SSMForSequenceClassification`."""

    backbone_class = S5Model


class S5ForSequencePairClassification(S5PreTrainedModel, SSMForSequencePairClassification):
    """A class (or a number) for each pair of sequences: see `SSMForSequencePairClassification`."""

    backbone_class = S5Model


class S5ForTokenClassification(S5PreTrainedModel, SSMForTokenClassification):
    """A class for each token: see `SSMForTokenClassification`."""

    backbone_class = S5Model


class S5ForQuestionAnswering(S5PreTrainedModel, SSMForQuestionAnswering):
    """Where the answer to a question starts and ends: see `SSMForQuestionAnswering`."""

    backbone_class = S5Model


class S5ForMultipleChoice(S5PreTrainedModel, SSMForMultipleChoice):
    """The right one of several sequences: see `SSMForMultipleChoice`."""

    backbone_class = S5Model


class S5ForSignalRegression(S5PreTrainedModel, SSMForSignalRegression):
    """Continuous signals to continuous outputs: see `SSMForSignalRegression`."""

    backbone_class = S5Model


__all__ = [
    "S5ForCausalLM",
    "S5ForMaskedLM",
    "S5ForMultipleChoice",
    "S5ForQuestionAnswering",
    "S5ForSequenceClassification",
    "S5ForSequencePairClassification",
    "S5ForSignalRegression",
    "S5ForTokenClassification",
    "S5Model",
    "S5PreTrainedModel",
]
