"""The heads of classification and regression; those that predict tokens are in `token_heads.py`.

A head differs from the others in its pooling (`pooling`), its number of outputs and its loss (`task_loss`).

Legend: `B` batch, `C` sequences of a row, `L` length, `D` hidden size.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput, can_return_tuple

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.models.base.inputs import check_extra_arguments
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.views.packing import packing_argument
from hf_ssm.models.views.strands import mean_scores
from hf_ssm.modules.rows import is_shared

# Columns that the Trainer keeps, also where a collator makes `labels` of its own.
BESIDE_LABELS = ("label", "label_ids")


@dataclass
class SSMHeadOutput(ModelOutput):
    """Output of a model with a head.

    Args:
        loss: Task loss (without the τ regulariser), a scalar, when `labels` are given.
        logits: `(B, L, vocab_size)`, `(B, L, num_labels)` or `(B, num_labels)`.
        cache, hidden_states, tau: As in `SSMModelOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: SSMCache | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    tau: Tensor | None = None


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


def labels_of_tokens(labels: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Labels `(B, L)` with -100 at padding; with a cache, the mask may be longer than the piece."""
    if attention_mask is None:
        return labels
    return labels.masked_fill(~attention_mask[:, -labels.shape[1] :].to(labels.device).bool(), -100)


def mean_of_observed(loss: Callable[..., Tensor], predicted: Tensor, targets: Tensor) -> Tensor:
    """Mean of an elementwise loss over the targets that are not NaN; 0 without any.

    Raises:
        ValueError: The shapes differ, which the loss would broadcast.
    """
    if predicted.shape != targets.shape:
        raise ValueError(f"`labels` must have the shape {tuple(predicted.shape)}, got {tuple(targets.shape)}.")
    targets = targets.to(predicted.device)
    observed = ~targets.isnan()
    losses = loss(predicted, targets.masked_fill(~observed, 0), reduction="none")
    return losses.masked_fill(~observed, 0).sum() / observed.sum().clamp(min=1)


class LabelHead(SSMPreTrainedModel):
    """Shared by the heads with `num_labels` outputs: backbone, pooling where the head has one, dropout, linear map."""

    parameter_quantity = "head"
    # The loss is a mean over the micro-batch; the Trainer divides it by the accumulation steps.
    accepts_loss_kwargs = False
    backbone_class: ClassVar[type[Any]]
    # Where the task decides the number of outputs.
    num_outputs: ClassVar[int | None] = None

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        if config.num_labels == 0 and self.num_outputs is None:
            raise ValueError(
                f"`num_labels`=0, but {type(self).__name__} needs an output: set `num_labels` to 1 or more."
            )
        self.model = self.backbone_class(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.num_labels = self.num_outputs or config.num_labels or 0
        self.classifier: nn.Module = nn.Linear(config.hidden_size, self.num_labels, bias=config.classifier_bias)
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
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        r"""
        Args:
            labels: The targets, in the shape of the head: see the class. If a head gives one output for each sequence,
                packed rows have one output for each document, in the order of the documents.

        The other arguments are those of the backbone.
        """
        check_extra_arguments(self, kwargs, () if labels is None else BESIDE_LABELS)
        both_strands = self.config.reads_both_strands(self.training)
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds,
            input_values,
            output_hidden_states=output_hidden_states,
            output_tau=output_tau,
            use_cache=False,
            seq_idx=seq_idx,
            cu_seq_lens_q=cu_seq_lens_q,
            cu_seq_lens_k=cu_seq_lens_k,
            position_ids=kwargs.get("position_ids"),
            pooling=self.pooling,
            both_strands=both_strands,
            return_dict=True,
            **{name: kwargs.get(name) for name in self.extra_inputs},
        )
        hidden_states = outputs.last_hidden_state
        logits = mean_scores(self._scores, hidden_states) if both_strands else self._scores(hidden_states)
        if self.config.output_clip is not None:
            logits = logits.clamp(-self.config.output_clip, self.config.output_clip)
        loss = None if labels is None else self.task_loss(logits, labels, attention_mask)
        return SSMHeadOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, tau=outputs.tau)

    @property
    def pooling(self) -> str | None:
        """How a sequence becomes one vector; `None` for an output at each position."""
        return None

    def _scores(self, hidden_states: Tensor, is_reversed: bool = False) -> Tensor:
        """Scores of one strand, whose positions may be in reverse order."""
        return self.classifier(self.dropout(hidden_states))

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **packing: Any) -> Tensor:
        """Mean loss of the batch; see the class for the labels. `packing` has no effect on it."""
        raise NotImplementedError


class SSMForSequenceClassification(LabelHead):
    """Pooled backbone and a linear map to `(B, num_labels)`.

    With `rc_equivariant` or `rc_conjoin`, the scores are means over both strands, each pooled in its own order: a
    sequence and its reverse complement have the same scores.

    `labels` is `(B,)` with class ids, `(B, num_labels)` of floats for several labels per row, or floats for
    regression, by `problem_type` (deduced by default, as in transformers). NaN among floats is a missing target: the
    loss is the mean over the others.
    """

    @property
    def pooling(self) -> str:
        return self.config.pooling or self.config.default_pooling

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **packing: Any) -> Tensor:
        if self.config.problem_type is None and labels.is_floating_point():
            # As in the loss of transformers.
            self.config.problem_type = "regression" if self.num_labels == 1 else "multi_label_classification"
        labels = labels.unsqueeze(-1) if logits.shape == (*labels.shape, 1) else labels
        if self.config.problem_type == "regression":
            return mean_of_observed(nn.functional.mse_loss, logits, labels)
        if self.config.problem_type == "multi_label_classification":
            loss = nn.functional.binary_cross_entropy_with_logits
            return mean_of_observed(loss, logits, labels.to(logits.dtype))
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class SSMForTokenClassification(LabelHead):
    """A linear map of every position to `(B, L, num_labels)`; `labels` is `(B, L)`, -100 is ignored.

    With `rc_equivariant` or `rc_conjoin`, the scores at a position are the mean of the scores of the sequence at this
    position and the scores of its reverse complement at the position of the paired base. The reverse complement
    therefore has the scores of the sequence in reverse order.
    """

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **packing: Any) -> Tensor:
        labels = labels_of_tokens(labels, attention_mask)
        loss = partial(self.loss_function, logits=logits, config=self.config)
        return self.model.sharing.mean_loss(loss, labels) if is_shared(self.model.sharing) else loss(labels=labels)


class SSMForSignalRegression(LabelHead):
    """Continuous inputs to continuous outputs.

    `input_values` `(B, L, C_in)` with C_in = `num_input_channels` (1 where the configuration has `None`) to `logits`
    `(B, L, C_out)`, or `(B, C_out)` with `pooling`, where C_out = `num_labels`. `labels` have the shape of the
    logits (a last dimension of size 1 may be missing). The loss is the mean squared error over all tokens, except those
    whose target is NaN.
    """

    main_input_name = "input_values"

    def __init__(self, config: SSMConfig):
        self.expect(config)
        if config.num_input_channels is None:
            config = copy.deepcopy(config)
            config.num_input_channels = 1
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_values: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        """As in the other heads, with `input_values` instead of `input_ids`."""
        return super().forward(
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            input_values=input_values,
            labels=labels,
            output_hidden_states=output_hidden_states,
            output_tau=output_tau,
            **{**kwargs, "return_dict": True},
        )

    @property
    def pooling(self) -> str | None:
        return self.config.pooling

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **packing: Any) -> Tensor:
        labels = labels.unsqueeze(-1) if logits.shape == (*labels.shape, 1) else labels
        if is_shared(self.model.sharing) and self.pooling is None:
            return self.model.sharing.mean_squared_error(logits, labels, attention_mask)
        if labels.shape != logits.shape:
            raise ValueError(
                f"`labels` has the shape {tuple(labels.shape)}, but the output has the shape {tuple(logits.shape)} "
                f"(`pooling`={self.pooling!r}, `num_labels`={self.num_labels})."
            )
        if attention_mask is not None and self.pooling is None:
            mask = attention_mask.to(logits.device).bool()
            logits, labels = logits[mask], labels[mask]
        return mean_of_observed(nn.functional.mse_loss, logits.float(), labels.float())


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
        _check_unpacked(self, kwargs)
        if is_shared(self.model.sharing):
            raise ValueError(f"{type(self).__name__} does not support joined sequences.")
        outputs = super().forward(
            *(input_ids, attention_mask, inputs_embeds, input_values, None, output_hidden_states, output_tau),
            **{**kwargs, "return_dict": True},
        )
        logits = outputs.logits
        if attention_mask is not None:
            is_token = attention_mask.to(logits.device).bool().unsqueeze(-1)
            logits = logits.masked_fill(~is_token, torch.finfo(logits.dtype).min)
        start, end = logits.unbind(-1)
        loss = None if start_positions is None else self.loss_function(start, end, start_positions, end_positions)
        return SSMSpanOutput(loss, start, end, outputs.hidden_states, outputs.tau)

    def _scores(self, hidden_states: Tensor, is_reversed: bool = False) -> Tensor:
        scores = super()._scores(hidden_states)
        return scores.flip(-1) if is_reversed else scores


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
    pooling = SSMForSequenceClassification.pooling

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
        _check_unpacked(self, kwargs)
        arguments = {
            "input_ids": self._flattened("input_ids", input_ids, "length"),
            "attention_mask": self._flattened("attention_mask", attention_mask, "length"),
            "inputs_embeds": self._flattened("inputs_embeds", inputs_embeds, "length, hidden_size"),
            "input_values": self._flattened("input_values", input_values, "length, channels"),
            **{name: self._flattened(name, kwargs.get(name), "length") for name in self.extra_inputs},
        }
        options = {"labels": labels, "output_hidden_states": output_hidden_states, "output_tau": output_tau}
        outputs: Any = super().forward(**{**kwargs, **options, **arguments, "return_dict": True})
        if self.sequences_of_row is None:
            given = next(value for value in (input_ids, inputs_embeds, input_values) if value is not None)
            outputs.logits = outputs.logits.view(given.shape[:2])
        result: SSMHeadOutput = outputs
        return result

    def _flattened(self, name: str, value: Tensor | None, rest: str) -> Tensor | None:
        """`(B, C, ...)` to `(B C, ...)`."""
        count = self.sequences_of_row
        if value is not None and (value.dim() != 2 + len(rest.split()) or value.shape[1] != (count or value.shape[1])):
            raise ValueError(
                f"`{name}` must have the shape (batch, {count or 'choices'}, {rest}), the sequences of each row, got "
                f"{tuple(value.shape)}{self.how_to_batch}."
            )
        return None if value is None else value.flatten(0, 1)


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


def _check_unpacked(model: LabelHead, kwargs: dict[str, Any]) -> None:
    if (name := packing_argument(kwargs)) is not None:
        raise ValueError(f"{type(model).__name__} reads no packed rows: leave out `{name}`.")


__all__ = [
    *("LabelHead", "PairClassifier", "SSMForMultipleChoice", "SSMForQuestionAnswering", "SSMForSequenceClassification"),
    *("SSMForSequencePairClassification", "SSMForSignalRegression", "SSMForTokenClassification"),
    *("SSMHeadOutput", "SSMSpanOutput"),
]
