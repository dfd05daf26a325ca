"""One backbone and one of each head for all families. A family adds its mixer, its configuration and its names.

Legend: `B` batch, `L` length, `D` hidden size, `V` vocabulary.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput, can_return_tuple

from hf_ssm.modules.block import Block, build_norm
from hf_ssm.modules.filters import LongFilter
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.modules.pooling import pool

from .configuration_common import SSMConfig


@dataclass
class SSMModelOutput(ModelOutput):
    """Output of a backbone.

    Args:
        last_hidden_state: `(B, L, D)`, after the final norm.
        hidden_states: With `output_hidden_states=True`, the embedding and the output of every block, the last one
            after the final norm; each `(B, L, D)`.
        tau: With `output_tau=True`, τ of each layer, `(num_hidden_layers,)` (Liu & Li 2024, eq. (6)).
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    tau: Tensor | None = None


@dataclass
class SSMHeadOutput(ModelOutput):
    """Output of a model with a head.

    Args:
        loss: Task loss (without the τ regulariser), a scalar, when `labels` are given.
        logits: `(B, L, V)`, `(B, L, num_labels)` or `(B, num_labels)`.
        hidden_states, tau: As in `SSMModelOutput`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    tau: Tensor | None = None


def check_labels(labels: Tensor, classes: int, argument: str) -> None:
    """Raise `ValueError` where a label is neither -100 nor in [0, classes)."""
    if torch.compiler.is_compiling() or labels.numel() == 0:
        return
    bad = (labels != -100) & ((labels < 0) | (labels >= classes))
    if bad.any():
        raise ValueError(
            f"`labels` has the value {labels[bad][0].item()}, but `{argument}`={classes} allows 0 to {classes - 1} "
            f"(and -100 for positions without a label): correct the labels, or set `{argument}`."
        )


class SSMPreTrainedModel(PreTrainedModel):
    """Weight initialisation, precision and loading for all families."""

    config: SSMConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Block"]
    # Step sizes, state matrices and filters lose their meaning in half precision.
    _keep_in_fp32_modules_strict: ClassVar[set[str]] = {"long_conv"}
    mixer_class: ClassVar[Callable[..., nn.Module]]
    weights_were_loaded = False

    def __init__(self, config: SSMConfig, *inputs: Any, **kwargs: Any):
        config.check()
        super().__init__(config, *inputs, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; the model also remembers that its weights were loaded, so none is ever rescaled."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).weights_were_loaded = True
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (LongConvolution, LongFilter)):
            for name, value in module.initial_parameters().items():
                init.copy_(module.get_parameter(name), value)
        elif isinstance(module, nn.Conv1d):
            # The short convolution has few inputs per output: initializer_range would all but silence it.
            init.kaiming_uniform_(module.weight, a=5**0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            super()._init_weights(module)


class SSMModel(SSMPreTrainedModel):
    """Embedding (or input projection), blocks, final norm."""

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        size = config.hidden_size
        if config.num_input_channels is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, size)
        else:
            self.input_projection = nn.Linear(config.num_input_channels, size)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(
            Block(config, layer_idx, type(self).mixer_class) for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = build_norm(config) if config.norm_first else None
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMModelOutput:
        r"""
        Args:
            input_ids: `(B, L)`, token ids.
            attention_mask: `(B, L)`, 1 at tokens, 0 at padding (on either side). `None`: no padding.
            inputs_embeds: `(B, L, D)`, instead of `input_ids`.
            input_values: `(B, L, num_input_channels)`, for models of continuous signals.
            output_hidden_states: Return the hidden states of all layers; default: the configuration's.
            output_tau: Return τ of each layer.

        Raises:
            ValueError: Not exactly one input; an empty sequence; an input longer than the model allows; token ids
                outside the vocabulary; NaN in `input_values`; a mask of another shape or with an empty row.
        """
        hidden_states = self._embed(input_ids, inputs_embeds, input_values)
        mask = self._check_mask(attention_mask, hidden_states)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        hidden_states = self.dropout(hidden_states)
        all_hidden_states = [hidden_states]
        taus = []
        for layer in self.layers:
            hidden_states, tau = layer(hidden_states, mask, output_tau)
            all_hidden_states.append(hidden_states)
            taus.append(tau)
        if self.norm is not None:
            hidden_states = self.norm(hidden_states, mask)
            all_hidden_states[-1] = hidden_states
        return SSMModelOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(all_hidden_states) if output_hidden_states else None,
            tau=torch.stack(taus) if output_tau else None,
        )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, input_values: Tensor | None) -> Tensor:
        given = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "input_values": input_values}
        names = [name for name, value in given.items() if value is not None]
        takes = "input_ids" if self.config.num_input_channels is None else "input_values"
        if len(names) != 1 or names[0] not in (takes, "inputs_embeds"):
            raise ValueError(
                f"Give exactly one of `{takes}` and `inputs_embeds`, got {', '.join(names) or 'none'} "
                f"(`num_input_channels`={self.config.num_input_channels})."
            )
        inputs = given[names[0]]
        dimensions = 2 if names[0] == "input_ids" else 3
        if inputs.dim() != dimensions or inputs.shape[0] == 0 or inputs.shape[1] == 0:
            shape = "(batch, length)" if dimensions == 2 else "(batch, length, channels)"
            raise ValueError(f"`{names[0]}` must have the shape {shape}, none of it empty, got {tuple(inputs.shape)}.")
        longest = self.config.longest_input
        if longest is not None and inputs.shape[1] > longest:
            raise ValueError(
                f"The input has {inputs.shape[1]} positions, but filter_type='implicit' is defined on "
                f"`max_position_embeddings`={longest}: shorten the input, or train a model with a larger value."
            )
        if inputs_embeds is not None:
            return inputs_embeds
        if input_ids is not None:
            return self._embed_tokens(input_ids)
        return self._project(input_values)

    def _embed_tokens(self, input_ids: Tensor) -> Tensor:
        size = self.embed_tokens.num_embeddings
        if not torch.compiler.is_compiling() and (input_ids.min() < 0 or input_ids.max() >= size):
            raise ValueError(
                f"`input_ids` holds ids from {input_ids.min().item()} to {input_ids.max().item()}, but the vocabulary "
                f"has {size}: use the model's own tokenizer, or `resize_token_embeddings`."
            )
        return self.embed_tokens(input_ids)

    def _project(self, input_values: Tensor) -> Tensor:
        channels = self.config.num_input_channels
        if input_values.shape[-1] != channels:
            raise ValueError(
                f"`input_values` has {input_values.shape[-1]} channels, but `num_input_channels`={channels}."
            )
        if not torch.compiler.is_compiling() and not torch.isfinite(input_values).all():
            raise ValueError(
                "`input_values` holds NaN or infinite values: fill or drop them (and mark positions that mean nothing "
                "by 0 in `attention_mask`)."
            )
        return self.input_projection(input_values.to(self.input_projection.weight.dtype))

    @staticmethod
    def _check_mask(attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
        if attention_mask is None:
            return None
        if attention_mask.shape != hidden_states.shape[:2]:
            raise ValueError(
                f"`attention_mask` has the shape {tuple(attention_mask.shape)}, but the input is "
                f"{tuple(hidden_states.shape[:2])} (batch, length)."
            )
        mask = attention_mask.to(device=hidden_states.device, dtype=torch.bool)
        if torch.compiler.is_compiling():
            return mask
        if not mask.any(dim=1).all():
            row = (~mask.any(dim=1)).nonzero()[0].item()
            raise ValueError(f"`attention_mask` keeps no token in row {row}: drop empty sequences from the batch.")
        return None if mask.all() else mask


class SSMForCausalLM(SSMPreTrainedModel, GenerationMixin):
    """Backbone and a linear map to the vocabulary; position t predicts token t + 1.

    Raises:
        ValueError: The configuration lets the model look ahead (`bidirectional`, zero-phase Sobolev filter), or the
            model reads continuous inputs.
    """

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True
    backbone_class: ClassVar[type[SSMModel]]

    def __init__(self, config: SSMConfig):
        if config.looks_ahead is not None:
            raise ValueError(
                f"A causal language model cannot have {config.looks_ahead}: it would read the tokens it predicts."
            )
        _require_tokens(config, type(self).__name__)
        super().__init__(config)
        self.model = self.backbone_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        kept = {name: kwargs.get(name) for name in ("attention_mask", "output_hidden_states")}
        embeds = kwargs.get("inputs_embeds")
        if embeds is not None:
            # generate() passes the prompt as embeddings and the tokens it has drawn since as ids.
            embeds = torch.cat([embeds, self.model.embed_tokens(input_ids)], dim=1) if input_ids.shape[1] else embeds
            return {"inputs_embeds": embeds, **kept}
        return {"input_ids": input_ids, **kept}

    def task_loss(
        self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Cross-entropy of each token given those before it; see `forward` for the labels."""
        return _token_loss(self, logits, labels, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_tau: bool = False,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        r"""
        Args:
            labels: `(B, L)`, the input ids themselves (they are shifted here); -100 is ignored.
            logits_to_keep: Compute only that many last logits (0: all), or those at the given positions.

        The other arguments are those of the backbone. Returns logits of shape `(B, L, V)`.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_tau=output_tau,
            return_dict=True,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, keep])
        loss = None if labels is None else self.task_loss(logits, labels, **kwargs)
        return SSMHeadOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, tau=outputs.tau)


def _token_loss(model: PreTrainedModel, logits: Tensor, labels: Tensor, **kwargs: Any) -> Tensor:
    size = model.config.vocab_size
    check_labels(labels, size, "vocab_size")
    return model.loss_function(logits=logits, labels=labels, vocab_size=size, **kwargs)


def _require_tokens(config: SSMConfig, name: str) -> None:
    if config.num_input_channels is not None:
        raise ValueError(
            f"{name} predicts tokens, but `num_input_channels`={config.num_input_channels} asks for continuous inputs: "
            "leave it None."
        )


class SSMForMaskedLM(SSMPreTrainedModel):
    """Two-sided backbone (unless the configuration says `bidirectional=False`) and a linear map to the vocabulary."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True
    backbone_class: ClassVar[type[SSMModel]]

    def __init__(self, config: SSMConfig):
        _require_tokens(config, type(self).__name__)
        if config.bidirectional is None:
            config = copy.deepcopy(config)
            config.bidirectional = True
        super().__init__(config)
        self.model = self.backbone_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def task_loss(
        self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """Cross-entropy of the masked tokens; see `forward` for the labels."""
        return _token_loss(self, logits, labels, **kwargs)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        r"""
        Args:
            labels: `(B, L)`, the true token at each masked position, -100 elsewhere.

        The other arguments are those of the backbone. Returns logits of shape `(B, L, V)`.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds,
            output_hidden_states=output_hidden_states,
            output_tau=output_tau,
            return_dict=True,
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None if labels is None else self.task_loss(logits, labels, **kwargs)
        return SSMHeadOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, tau=outputs.tau)


class _LabelHead(SSMPreTrainedModel):
    """What the heads with `num_labels` outputs share: backbone, dropout, linear map."""

    # The loss is a mean over the micro-batch; the Trainer divides it by the accumulation steps.
    accepts_loss_kwargs = False
    backbone_class: ClassVar[type[SSMModel]]

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.backbone_class(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_tau: bool = False,
        **kwargs: Any,
    ) -> SSMHeadOutput:
        r"""
        Args:
            labels: The targets, in the shape of the head: see the class.

        The other arguments are those of the backbone.
        """
        outputs = self.model(
            input_ids,
            attention_mask,
            inputs_embeds,
            input_values,
            output_hidden_states=output_hidden_states,
            output_tau=output_tau,
            return_dict=True,
        )
        hidden_states = outputs.last_hidden_state
        mask = None if attention_mask is None else attention_mask.to(hidden_states.device).bool()
        logits = self._logits(hidden_states, mask)
        loss = None if labels is None else self.task_loss(logits, labels, mask)
        return SSMHeadOutput(loss=loss, logits=logits, hidden_states=outputs.hidden_states, tau=outputs.tau)

    def _logits(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(hidden_states))

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Mean loss of the batch; see the class for the labels."""
        raise NotImplementedError


class SSMForSequenceClassification(_LabelHead):
    """Pooled backbone and a linear map to `(B, num_labels)`.

    `labels` is `(B,)` with class ids, `(B, num_labels)` of floats for several labels at once, or floats for
    regression, as `problem_type` says (by default deduced like everywhere in transformers).
    """

    def _logits(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        return self.classifier(self.dropout(pool(hidden_states, mask, self.config.pooling or "mean")))

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        integer = not labels.is_floating_point()
        if integer and self.config.num_labels > 1 and self.config.problem_type in (None, "single_label_classification"):
            check_labels(labels, self.config.num_labels, "num_labels")
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class SSMForTokenClassification(_LabelHead):
    """A linear map of every position to `(B, L, num_labels)`; `labels` is `(B, L)`, -100 is ignored."""

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        check_labels(labels, self.config.num_labels, "num_labels")
        return self.loss_function(logits, labels, self.config)


class SSMForSignalRegression(_LabelHead):
    """Continuous inputs to continuous outputs.

    `input_values` `(B, L, C_in)` with C_in = `num_input_channels` (1 where the configuration has `None`) to `logits`
    `(B, L, C_out)`, or `(B, C_out)` with `pooling`, where C_out = `num_labels`. `labels` have the shape of the
    logits (a last dimension of size 1 may be missing). The loss is the mean squared error over all tokens.
    """

    main_input_name = "input_values"

    def __init__(self, config: SSMConfig):
        if config.num_input_channels is None:
            config = copy.deepcopy(config)
            config.num_input_channels = 1
        super().__init__(config)

    def _logits(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        if self.config.pooling is not None:
            hidden_states = pool(hidden_states, mask, self.config.pooling)
        return self.classifier(self.dropout(hidden_states))

    def task_loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if logits.shape[-1] == 1 and labels.dim() == logits.dim() - 1:
            labels = labels.unsqueeze(-1)
        if labels.shape != logits.shape:
            raise ValueError(
                f"`labels` has the shape {tuple(labels.shape)}, but the output is {tuple(logits.shape)} "
                f"(`pooling`={self.config.pooling!r}, `num_labels`={self.config.num_labels})."
            )
        if attention_mask is not None and self.config.pooling is None:
            mask = attention_mask.to(logits.device).bool()
            logits, labels = logits[mask], labels[mask]
        return nn.functional.mse_loss(logits.float(), labels.to(logits.device).float())


__all__ = [
    "SSMForCausalLM",
    "SSMForMaskedLM",
    "SSMForSequenceClassification",
    "SSMForSignalRegression",
    "SSMForTokenClassification",
    "SSMHeadOutput",
    "SSMModel",
    "SSMModelOutput",
    "SSMPreTrainedModel",
]
