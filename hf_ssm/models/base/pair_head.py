"""The head for pairs of sequences that are encoded separately.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import can_return_tuple

from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.models.base.heads import LabelHead, SSMForSequenceClassification, SSMHeadOutput
from hf_ssm.models.base.inputs import check_is_tensor
from hf_ssm.models.views.extra_inputs import take_extra_inputs
from hf_ssm.models.views.packing import PACKING_ARGUMENTS


class PairClassifier(nn.Module):
    """[a, b, a ⊙ b, a - b] of two vectors, a linear map to D, ReLU, and a linear map to the outputs."""

    def __init__(self, config: SSMConfig, num_labels: int):
        super().__init__()
        self.dense = nn.Linear(4 * config.hidden_size, config.hidden_size)
        self.activation = nn.ReLU()
        self.out_proj = nn.Linear(config.hidden_size, num_labels, bias=config.classifier_bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """`(2 B, D)`, both vectors of a pair one after the other, to `(B, num_labels)`."""
        first, second = pooled.unflatten(0, (-1, 2)).unbind(1)
        features = torch.cat([first, second, first * second, first - second], dim=-1)
        return self.out_proj(self.activation(self.dense(features)))


class SSMForSequencePairClassification(LabelHead):
    """A class (or a number) for each pair of sequences.

    One encoder reads both sequences, each by itself; the classifier reads both pooled vectors, their product and their
    difference, as for the task Retrieval of the Long Range Arena. Inputs have a second dimension of size 2: `input_ids`
    and `attention_mask` `(B, 2, L)`, `inputs_embeds` `(B, 2, L, D)`, `input_values` `(B, 2, L, C_in)`. Each sequence is
    padded on either side to the longest of the batch (`hf_ssm.data.PairCollator`); with a mask, the result does not
    depend on the padding.

    `labels` are as in `SSMForSequenceClassification`. τ is computed for the 2 B sequences as one batch, and
    `hidden_states` are `(2 B, L, D)`, both sequences of a pair one after the other. With `rc_equivariant` or
    `rc_conjoin`, the scores are means over the pair and the pair of reverse complements.

    Source: Tay et al. 2021 (Long Range Arena), Section 2.2.3 and the authors' code (dual encoder).
    """

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        self.classifier = PairClassifier(config, self.num_labels)
        # By the class name, transformers would choose the loss of a language model.
        self.loss_type = "ForSequenceClassification"
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        r"""
        Args:
            input_ids, attention_mask, inputs_embeds, input_values: Those of the backbone, with a second dimension of
                size 2 for the sequences of a pair.
            labels: See the class.

        Raises:
            ValueError: Inputs of another shape; packed rows.
        """
        for name in PACKING_ARGUMENTS:
            if kwargs.get(name) is not None:
                raise ValueError(
                    f"{type(self).__name__} reads pairs, but packed rows hold no pairs: leave out `{name}`."
                )
        extra = take_extra_inputs(self, kwargs)
        return super().forward(
            _flattened("input_ids", input_ids, "length"),
            _flattened("attention_mask", attention_mask, "length"),
            _flattened("inputs_embeds", inputs_embeds, "length, hidden_size"),
            _flattened("input_values", input_values, "length, channels"),
            labels,
            output_hidden_states,
            output_tau,
            **{name: _flattened(name, value, "length") for name, value in extra.items()},
            **{**kwargs, "return_dict": True},
        )

    pooling = SSMForSequenceClassification.pooling
    task_loss = SSMForSequenceClassification.task_loss


def _flattened(name: str, value: Tensor | None, rest: str) -> Tensor | None:
    """`(B, 2, ...)` to `(2 B, ...)`."""
    if value is None:
        return None
    check_is_tensor(name, value)
    if value.dim() != 2 + len(rest.split()) or value.shape[1] != 2:
        raise ValueError(
            f"`{name}` must have the shape (batch, 2, {rest}), two sequences in each row, got {tuple(value.shape)}: "
            "`hf_ssm.data.PairCollator` makes such batches."
        )
    return value.flatten(0, 1)


__all__ = ["PairClassifier", "SSMForSequencePairClassification"]
