"""The heads for rows of several sequences that are encoded separately: pairs, and choices.

Legend: `B` batch, `C` sequences of a row, `L` length, `D` hidden size.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils import can_return_tuple

from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.models.base.fields import require
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


class _SequencesHead(LabelHead):
    """Reads rows of several sequences, each by itself."""

    sequences_of_row: ClassVar[int | None] = None
    how_to_batch: ClassVar[str] = ""

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
            input_ids, attention_mask, inputs_embeds, input_values: Those of the backbone, with a second dimension for
                the sequences of a row.
            labels: See the class.

        Raises:
            ValueError: Inputs of another shape; packed rows.
        """
        packed = next((name for name in PACKING_ARGUMENTS if kwargs.get(name) is not None), None)
        require(
            packed is None,
            f"{type(self).__name__} reads several sequences in a row, but packed rows hold none: leave out `{packed}`.",
        )
        extra = take_extra_inputs(self, kwargs)
        outputs: Any = super().forward(
            self._flattened("input_ids", input_ids, "length"),
            self._flattened("attention_mask", attention_mask, "length"),
            self._flattened("inputs_embeds", inputs_embeds, "length, hidden_size"),
            self._flattened("input_values", input_values, "length, channels"),
            labels,
            output_hidden_states,
            output_tau,
            **{name: self._flattened(name, value, "length") for name, value in extra.items()},
            **{**kwargs, "return_dict": True},
        )
        if self.sequences_of_row is None:
            given = next(value for value in (input_ids, inputs_embeds, input_values) if value is not None)
            outputs.logits = outputs.logits.view(given.shape[:2])
        result: SSMHeadOutput = outputs
        return result

    pooling = SSMForSequenceClassification.pooling

    def _flattened(self, name: str, value: Tensor | None, rest: str) -> Tensor | None:
        """`(B, C, ...)` to `(B C, ...)`."""
        if value is None:
            return None
        check_is_tensor(name, value)
        count = self.sequences_of_row
        require(
            value.dim() == 2 + len(rest.split()) and value.shape[1] == (count or value.shape[1]),
            f"`{name}` must have the shape (batch, {count or 'choices'}, {rest}), the sequences of each row, got "
            f"{tuple(value.shape)}{self.how_to_batch}.",
        )
        return value.flatten(0, 1)


class SSMForSequencePairClassification(_SequencesHead):
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

    sequences_of_row = 2
    how_to_batch = ": `hf_ssm.data.PairCollator` makes such batches"

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        self.classifier = PairClassifier(config, self.num_labels)
        # By the class name, transformers would choose the loss of a language model.
        self.loss_type = "ForSequenceClassification"
        self.post_init()

    task_loss = SSMForSequenceClassification.task_loss


class SSMForMultipleChoice(_SequencesHead):
    """A score for each of C sequences, of which one is the right choice: `logits` `(B, C)`.

    The encoder reads each sequence by itself, such as a question with one of its answers. Inputs have a second
    dimension of size C: `input_ids` and `attention_mask` `(B, C, L)`, `inputs_embeds` `(B, C, L, D)`. `labels` `(B,)`
    are the numbers of the right choices; the loss is the cross-entropy. τ and `hidden_states` are those of the B C
    sequences.
    """

    num_outputs = 1

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **packing: Any) -> Tensor:
        return nn.functional.cross_entropy(logits.view(len(labels), -1).float(), labels.to(logits.device))


__all__ = ["PairClassifier", "SSMForMultipleChoice", "SSMForSequencePairClassification"]
