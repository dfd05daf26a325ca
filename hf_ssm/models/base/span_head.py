"""The head that finds the answer to a question in a text: where it starts and ends."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput, can_return_tuple

from hf_ssm.models.base.heads import LabelHead
from hf_ssm.models.views.packing import PACKING_ARGUMENTS


@dataclass
class SSMSpanOutput(ModelOutput):
    """Output of a model that finds a span.

    Args:
        loss: Mean cross-entropy of start and end, a scalar; `None` without positions.
        start_logits, end_logits: `(B, L)`; the smallest number of their type at padding.
        hidden_states, tau: As in `SSMModelOutput`.
    """

    loss: Tensor | None = None
    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    tau: Tensor | None = None


class SSMForQuestionAnswering(LabelHead):
    """Scores of every position as the start and as the end of the answer, `(B, L)` each, as in transformers.

    A position can be an answer only with what stands before it, unless the model is `bidirectional`. With
    `rc_equivariant` or `rc_conjoin`, the scores are means over both strands; a start on one strand is an end on the
    other.
    """

    num_outputs = 2

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMSpanOutput:
        r"""
        Args:
            start_positions, end_positions: `(B,)`, where the answers start and end; positions outside the input have
                no loss.

        The other arguments are those of the backbone.

        Raises:
            ValueError: One of the positions without the other; packed rows.
        """
        if (start_positions is None) != (end_positions is None):
            raise ValueError("`start_positions` and `end_positions` go together: give both, or neither.")
        packed = next((name for name in PACKING_ARGUMENTS if kwargs.get(name) is not None), None)
        if packed is not None or self.model.sharing is not None:
            what = "joined sequences" if packed is None else f"packed rows: leave out `{packed}`"
            raise ValueError(f"{type(self).__name__} has one answer for each row, and does not support {what}.")
        outputs = super().forward(
            *(input_ids, attention_mask, inputs_embeds, input_values, None, output_hidden_states, output_tau),
            **{**kwargs, "return_dict": True},
        )
        logits = outputs.logits
        if attention_mask is not None:
            logits = logits.masked_fill(
                ~attention_mask.to(logits.device).bool()[..., None], torch.finfo(logits.dtype).min
            )
        start, end = logits.unbind(-1)
        loss = None if start_positions is None else self.loss_function(start, end, start_positions, end_positions)
        return SSMSpanOutput(loss, start, end, outputs.hidden_states, outputs.tau)

    def _scores(self, hidden_states: Tensor, is_reversed: bool = False, **rows: Any) -> Tensor:
        scores = super()._scores(hidden_states, is_reversed, **rows)
        return scores.flip(-1) if is_reversed else scores


__all__ = ["SSMForQuestionAnswering", "SSMSpanOutput"]
