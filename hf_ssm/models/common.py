"""The backbone of all families. A family adds its mixer, its configuration and its names.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import ModelOutput, can_return_tuple

from hf_ssm.modules.block import Block, build_norm
from hf_ssm.modules.filters import LongFilter
from hf_ssm.modules.long_convolution import LongConvolution

from .configuration_common import SSMConfig


@dataclass
class SSMModelOutput(ModelOutput):
    """Output of a backbone.

    Args:
        last_hidden_state: `(B, L, D)`, after the final norm.
        past_key_values: `None`; these models have no cache yet.
        hidden_states: With `output_hidden_states=True`, the embedding and the output of every block, the last one
            after the final norm; each `(B, L, D)`.
        tau: With `output_tau=True`, τ of each layer, `(num_hidden_layers,)` (Liu & Li 2024, eq. (6)).
    """

    last_hidden_state: Tensor | None = None
    past_key_values: None = None
    hidden_states: tuple[Tensor, ...] | None = None
    tau: Tensor | None = None


def _remember_loading(model: Any, incompatible_keys: Any = None) -> None:
    model.weights_were_loaded = True


# Arguments of `forward` that transformers and its Trainer pass, and that need nothing done here.
_PASSED_BY = frozenset(
    {
        *("cache_position", "logits_to_keep", "num_items_in_batch", "output_attentions", "position_ids", "return_dict"),
        *("shift_labels", "token_type_ids", "use_cache", "past_key_values", "labels"),
    }
)


def check_extra_arguments(model: Any, given: dict[str, Any]) -> None:
    """Refuse a cache, and arguments that look like one of `forward`'s with a slip of the pen.

    Other unknown arguments are let through, as transformers does.

    Raises:
        ValueError: A cache is given.
        TypeError: A name is close to, but not, an argument; the message names it.
    """
    if given.get("past_key_values") is not None:
        raise ValueError(f"{type(model).__name__} takes no `past_key_values`: pass the whole sequence.")
    unknown = given.keys() - _PASSED_BY
    if not unknown:
        return
    known = sorted({*inspect.signature(model.forward).parameters, *_PASSED_BY} - {"kwargs"})
    for name in unknown:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if near:
            raise TypeError(f"{type(model).__name__} has no argument `{name}`: did you mean `{near[0]}`?")


class SSMPreTrainedModel(PreTrainedModel):
    """Weight initialisation, precision and loading for all families."""

    config: SSMConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]
    # Step sizes, state matrices and filters lose their meaning in half precision.
    _keep_in_fp32_modules_strict = {"long_conv"}
    mixer_class: ClassVar[Callable[..., nn.Module]]
    # Of this very model, unlike `config.rescaled`: a configuration may be shared by several.
    weights_were_loaded = False
    weights_were_rescaled = False

    def __init__(self, config: SSMConfig, *inputs: Any, **kwargs: Any):
        config.check()
        super().__init__(config, *inputs, **kwargs)
        self.register_load_state_dict_post_hook(_remember_loading)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; the model also remembers that its weights were loaded, so none is ever rescaled."""
        loaded = super().from_pretrained(*args, **kwargs)
        _remember_loading(loaded[0] if isinstance(loaded, tuple) else loaded)
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
            TypeError: An argument with a slip of the pen.
            ValueError: Not exactly one input; an empty sequence; an input longer than the model allows; token ids
                outside the vocabulary; NaN in `input_values`; a mask of another shape or with an empty row.
        """
        check_extra_arguments(self, kwargs)
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
        named = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "input_values": input_values}
        given = [(name, value) for name, value in named.items() if value is not None]
        takes = "input_ids" if self.config.num_input_channels is None else "input_values"
        if len(given) != 1 or given[0][0] not in (takes, "inputs_embeds"):
            raise ValueError(
                f"Give exactly one of `{takes}` and `inputs_embeds`, got {' and '.join(dict(given)) or 'none'} "
                f"(`num_input_channels`={self.config.num_input_channels})."
            )
        ((name, inputs),) = given
        dimensions = 2 if name == "input_ids" else 3
        if inputs.dim() != dimensions or inputs.shape[0] == 0 or inputs.shape[1] == 0:
            shape = "(batch, length)" if dimensions == 2 else "(batch, length, channels)"
            raise ValueError(f"`{name}` must have the shape {shape}, none of it empty, got {tuple(inputs.shape)}.")
        longest = self.config.longest_input
        if longest is not None and inputs.shape[1] > longest:
            raise ValueError(
                f"The input has {inputs.shape[1]} positions, but filter_type='implicit' is defined on "
                f"`max_position_embeddings`={longest}: shorten the input, or train a model with a larger value."
            )
        if name == "inputs_embeds":
            return inputs
        return self._look_up(inputs) if name == "input_ids" else self._project(inputs)

    def _look_up(self, input_ids: Tensor) -> Tensor:
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


__all__ = ["SSMModel", "SSMModelOutput", "SSMPreTrainedModel"]
