"""The backbone of all families. A family adds its mixer, configuration and class names.

Legend: `B` batch, `L` length, `D` hidden size.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput, can_return_tuple

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.models.base.incremental import forward_with_cache
from hf_ssm.models.base.inputs import (
    attach_extra_inputs,
    check_extra_arguments,
    check_ids,
    check_is_tensor,
    check_mask,
    take_extra_inputs,
)
from hf_ssm.models.base.packing import find_documents, forward_packed_with_cache
from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.base.reverse_complement import Strands, embed_strands
from hf_ssm.modules.block import Block
from hf_ssm.modules.norms import build_norm, normalized
from hf_ssm.modules.state import LayerState
from hf_ssm.ops.context import has_readable_values, in_function_transform, is_exporting
from hf_ssm.ops.documents import Documents

# Functions by which libraries for attributions visit the modules of a model, to attach rules to known classes.
_ATTACHES_RULES = frozenset(
    (module, "_register_hooks") for module in ("captum.attr._core.deep_lift", "tangermeme.deep_lift_shap")
)


@dataclass
class SSMModelOutput(ModelOutput):
    """Output of a backbone.

    Args:
        last_hidden_state: `(B, L, D)`, after the final norm; `(B, L, 2 D)` of both strands with `rc_equivariant`.
        past_key_values: With `use_cache=True`, the `SSMCache` to continue from.
        hidden_states: With `output_hidden_states`, the embedding and the output of every block, the last one
            after the final norm; each in the shape of `last_hidden_state`.
        tau: With `output_tau=True`, τ of each layer, `(num_hidden_layers,)` (Liu & Li 2024, eq. (6)).
    """

    last_hidden_state: Tensor | None = None
    past_key_values: SSMCache | None = None
    hidden_states: tuple[Tensor | None, ...] | None = None
    tau: Tensor | None = None


def selected_states(
    hidden_states: list[Tensor], requested: bool | int | list[int] | None
) -> tuple[Tensor | None, ...] | None:
    """The requested hidden states; `None` in the place of others, or instead of the tuple if none is requested."""
    if requested is None or isinstance(requested, bool):
        return tuple(hidden_states) if requested else None
    count = len(hidden_states)
    numbers = requested if isinstance(requested, (list, tuple)) else [requested]
    if not all(isinstance(number, int) and -count <= number < count for number in numbers):
        raise ValueError(f"`output_hidden_states` must be a flag or among 0 to {count - 1}, got {requested}.")
    kept = {number % count for number in numbers}
    return tuple(state if index in kept else None for index, state in enumerate(hidden_states))


def _restored(documents: Documents | None, strands: Strands | None, hidden_states: Tensor | None) -> Tensor | None:
    """Hidden states of documents back in packed rows, and those of both strands side by side."""
    if documents is not None and hidden_states is not None:
        hidden_states = documents.restore(hidden_states)
    return hidden_states if strands is None else strands.join(hidden_states)


class SSMModel(SSMPreTrainedModel):
    """Embedding (or input projection), blocks, final norm."""

    parameter_quantity = "embedding"

    def __init__(self, config: SSMConfig):
        super().__init__(config)
        self.build_embedding(config)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.layers = nn.ModuleList(
            Block(config, layer_idx, type(self).mixer_class) for layer_idx in range(config.num_hidden_layers)
        )
        self.norm = build_norm(config) if config.has_final_norm else None
        # PEFT's default targets of a model type, where the caller has imported it: all linear layers of the blocks.
        # With "all-linear", PEFT adapts heads that it does not know too.
        targets = getattr(sys.modules.get("peft.utils"), "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING", {})
        linear = {name for name, part in self.layers.named_modules() if isinstance(part, nn.Linear)}
        names = {name.rpartition(".")[2] for name in linear}
        targets[config.model_type] = sorted(names.union(targets.get(config.model_type, ())))
        self.gradient_checkpointing = False
        self.post_init()

    def build_embedding(self, config: Any) -> None:
        """Add the modules that map inputs to hidden states."""
        if config.num_input_channels is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            self.input_projection = nn.Linear(config.num_input_channels, config.hidden_size)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        input_values: Tensor | None = None,
        output_hidden_states: bool | int | list[int] | None = None,
        output_tau: bool = False,
        past_key_values: SSMCache | None = None,
        use_cache: bool | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        documents: Documents | None = None,
        both_strands: bool | None = None,
        **kwargs: Any,
    ) -> SSMModelOutput:
        r"""
        Args:
            input_ids: `(B, L)`, token ids.
            attention_mask: `(B, L)`, 1 at tokens, 0 at padding (on either side). `None`: no padding. With a cache also
                `(B, P + L)`, where P positions were read before, whose entries are ignored.
            inputs_embeds: `(B, L, D)`, instead of `input_ids`; with `rc_equivariant` those of both strands,
                `(B, L, 2 D)`, which are `hidden_states[0]` without dropout.
            input_values: `(B, L, num_input_channels)`, for models of continuous signals.
            output_hidden_states: Return the hidden states of all layers, or of those with the given numbers (0: the
                embedding; the others are then `None`); default: the configuration's.
            output_tau: Return τ of each layer; needs whole sequences.
            past_key_values: Continue from this cache, which is changed in place and returned.
            use_cache: Return a new cache. Default: the configuration's, for causal models outside training.
            seq_idx: `(B, L)`, the number of the document that each position of packed rows is part of.
            cu_seq_lens_q, cu_seq_lens_k: `(n + 1,)`, instead: where each document begins; see `find_documents`.
            position_ids: `(B, L)`, instead: a document begins where they start again.
            documents: The documents, from a model with a head, which has looked them up.
            both_strands: Whether to read the reverse complement too, from a model with a head; default:
                `rc_equivariant`.
            kwargs: The family's `extra_inputs`, `(B, L)` each, positive; others are refused, see `inputs.py`.

        Raises:
            TypeError: An argument that models of hf_ssm do not read, see `inputs.py`; an input that is not a tensor, or
                of another type.
            ValueError: Not exactly one input; unknown layers in `output_hidden_states`; an empty sequence; an input
                longer than the model allows; a mask of another shape; a cache for a model that is not causal, together
                with τ or gradient checkpointing, of another model or another batch size. On a CPU also: token ids
                outside the vocabulary; NaN in `input_values`; a mask with an empty row or padding between tokens.
        """
        check_extra_arguments(self, kwargs)
        # An exported program checks the number of positions where it has to know them, in a streaming convolution.
        continues = isinstance(past_key_values, SSMCache) and not is_exporting()
        past = past_key_values.get_seq_length() if continues else 0  # type: ignore[union-attr]
        if documents is None:
            packing = {"seq_idx": seq_idx, "cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k, **kwargs}
            documents = find_documents(attention_mask, past_key_values, packing, input_ids, inputs_embeds, input_values)
        both_strands = self.config.rc_equivariant if both_strands is None else both_strands
        hidden_states = self._embed(
            input_ids, inputs_embeds, input_values, past_key_values, documents, both_strands=both_strands
        )
        cache = self._find_cache(past_key_values, use_cache, output_tau, hidden_states.shape[0])
        mask = None
        if documents is None:
            mask = check_mask(attention_mask, hidden_states, past, in_pieces=past_key_values is not None)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        strands = Strands(hidden_states, mask, documents) if both_strands else None
        if strands is not None:
            hidden_states, mask, documents = strands.hidden_states, strands.mask, strands.documents
        exchange = strands.exchange if strands is not None and self.config.rc_swap else None
        if self.dropout.training:
            hidden_states = self.dropout(hidden_states)
        extra = take_extra_inputs(self, kwargs)
        if extra and strands is not None:
            raise ValueError(f"`{next(iter(extra))}` is for signals, which have no reverse complement: leave it out.")
        if extra:
            hidden_states = attach_extra_inputs(hidden_states, extra, attention_mask)
        taus: list[Tensor] = []
        if cache is not None:
            if not cache.belongs_to(self):
                cache.claim(self)
            all_hidden_states = self._read(hidden_states, mask, documents, cache)
            if seq_idx is not None:
                cache.remember_document(seq_idx.expand(hidden_states.shape[0], -1), attention_mask)
        elif documents is None:
            all_hidden_states, taus = self._run(hidden_states, mask, output_tau, exchange=exchange)
        else:
            # Hidden states of the layers between are put in order on request only.
            all_hidden_states, taus = self._run(
                documents.arrange(hidden_states), documents.mask, output_tau, documents=documents, exchange=exchange
            )
        restored = partial(_restored, documents if cache is None else None, strands)
        chosen = selected_states(all_hidden_states, output_hidden_states)
        return SSMModelOutput(
            last_hidden_state=restored(all_hidden_states[-1]),
            past_key_values=cache,
            hidden_states=None if chosen is None else tuple(restored(state) for state in chosen),
            tau=torch.stack(taus) if output_tau else None,
        )

    def _read(
        self, hidden_states: Tensor, mask: Tensor | None, documents: Documents | None, cache: SSMCache
    ) -> list[Tensor]:
        """The hidden states of every layer for the next positions of the sequences in a cache."""
        if documents is None:
            outputs = forward_with_cache(self._run_states, hidden_states, mask, cache, self._step_states)
        else:
            outputs = forward_packed_with_cache(self._run_states, self._run_documents, hidden_states, documents, cache)
        # A piece without tokens still has the channels of extra inputs.
        size = self.config.hidden_size
        return [part if part.shape[-1] == size else part[..., :size] for part in outputs]

    def _run_documents(self, hidden_states: Tensor, mask: Tensor | None, documents: Documents) -> list[Tensor]:
        return self._run(hidden_states, mask, documents=documents)[0]

    def apply(self, fn: Callable[[nn.Module], Any]) -> Any:
        """As in torch; warns where captum or tangermeme attach DeepLIFT's rules, of which modules need others.

        Warns:
            UserWarning: The attributions would not add up.
        """
        place = getattr(fn, "__module__", None), getattr(fn, "__name__", None)
        if place in _ATTACHES_RULES and not in_function_transform():
            warnings.warn(
                "DeepLIFT's rules of captum and tangermeme do not cover the gates, activations and scans of "
                f"{type(self).__name__}, so that attributions would not add up: call them within "
                "`hf_ssm.deep_lift_rules(model)`, or use IntegratedGradients.",
                stacklevel=2,
            )
        return super().apply(fn)

    def _run(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        output_tau: bool = False,
        states: Sequence[LayerState] | None = None,
        documents: Documents | None = None,
        exchange: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """All layers: the embedding and the output of each layer, the last one after the final norm; and τ.

        `exchange` is applied to the hidden states before each layer. Extra inputs are further channels of them.
        """
        size, extra = self.config.hidden_size, None
        if hidden_states.shape[-1] > size:
            extra = dict(zip(self.extra_inputs, hidden_states[..., size:].unbind(-1), strict=True))
            hidden_states = hidden_states[..., :size].to(self.dtype)
        dtype = hidden_states.dtype
        all_hidden_states, taus = [hidden_states], []
        for index, layer in enumerate(self.layers):
            if exchange is not None:
                hidden_states = exchange(hidden_states)
            given = {} if extra is None else {"extra_inputs": extra}
            hidden_states, tau = layer(
                hidden_states, mask, output_tau, None if states is None else states[index], documents, **given
            )
            all_hidden_states.append(hidden_states)
            taus.append(tau)
        # End of a residual stream in float32.
        hidden_states = hidden_states.to(dtype)
        if self.norm is not None:
            hidden_states = normalized(self.norm, hidden_states, mask, self.config.norm_type)
        all_hidden_states[-1] = hidden_states
        return all_hidden_states, taus

    def _run_states(self, hidden_states: Tensor, mask: Tensor | None, states: Sequence[LayerState]) -> list[Tensor]:
        stepped = self._step_states(hidden_states, mask, states)
        return self._run(hidden_states, mask, states=states)[0] if stepped is None else stepped

    def _step_states(
        self, hidden_states: Tensor, mask: Tensor | None, states: Sequence[LayerState]
    ) -> list[Tensor] | None:
        """What `_run_states` returns, by kernels that compute one position of all layers; `None` if there are none.

        Rows without a token, `(B, 1)`, keep their states.
        """
        return None

    def _find_cache(
        self, cache: SSMCache | None, use_cache: bool | None, output_tau: bool, batch: int
    ) -> SSMCache | None:
        """The cache to continue from or to fill; `None` without a cache."""
        # A cache that this model has filled was checked then.
        is_own = isinstance(cache, SSMCache) and cache.belongs_to(self)
        non_causal_flag = None if is_own else self.config.non_causal_flag
        if use_cache is None and cache is None:
            use_cache = self.config.use_cache and not self.training and non_causal_flag is None and not output_tau
        if cache is None and (not use_cache or (self.training and self.gradient_checkpointing)):
            return None
        argument = "use_cache=True" if cache is None else "past_key_values"
        if non_causal_flag is not None:
            raise ValueError(
                f"`{argument}` needs a causal model, but this one has {non_causal_flag}: later tokens would change the "
                "outputs at earlier positions."
            )
        if output_tau:
            raise ValueError(f"`output_tau=True` needs the whole sequence: leave out `{argument}`.")
        if self.training and self.gradient_checkpointing and torch.is_grad_enabled():
            raise ValueError(
                "Gradient checkpointing computes each layer twice, but a cache changes the first time: leave out "
                "`past_key_values`, or call `gradient_checkpointing_disable()`."
            )
        if cache is None:
            cache = SSMCache(self.config)
        elif not isinstance(cache, SSMCache):
            raise ValueError(
                f"`past_key_values` must be an `SSMCache`, got {type(cache).__name__}: pass what a call with "
                "`use_cache=True` returned, or `SSMCache(model.config)`."
            )
        if len(cache) != len(self.layers) or not cache.may_belong_to(self):
            raise ValueError(
                "`past_key_values` was filled by another model: continue with that one, or start with an empty "
                "`SSMCache(model.config)`."
            )
        if cache.batch_size not in (-1, batch):
            raise ValueError(
                f"`past_key_values` holds {cache.batch_size} sequences, but the input has {batch}: "
                "select rows with `past_key_values.batch_select_indices`."
            )
        return cache

    def _embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        input_values: Tensor | None,
        cache: SSMCache | None,
        documents: Documents | None,
        *,
        both_strands: bool,
    ) -> Tensor:
        named = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "input_values": input_values}
        given = [(name, value) for name, value in named.items() if value is not None]
        takes = "input_ids" if self.config.num_input_channels is None else "input_values"
        if len(given) != 1 or given[0][0] not in (takes, "inputs_embeds"):
            raise ValueError(
                f"Give exactly one of `{takes}` and `inputs_embeds`, got {' and '.join(dict(given)) or 'none'} "
                f"(`num_input_channels`={self.config.num_input_channels})."
            )
        ((name, inputs),) = given
        check_is_tensor(name, inputs)
        dimensions = 2 if name == "input_ids" else 3
        if inputs.dim() != dimensions or inputs.shape[0] == 0 or inputs.shape[1] == 0:
            shape = "(batch, length)" if dimensions == 2 else "(batch, length, channels)"
            raise ValueError(f"`{name}` must have the shape {shape}, none of it empty, got {tuple(inputs.shape)}.")
        longest = self.config.longest_input
        if longest is not None:
            past = cache.history if isinstance(cache, SSMCache) and not is_exporting() else 0
            count = past + inputs.shape[1] if documents is None else documents.longest_after(past)
            if count > longest:
                before = " with those in the cache" if past else ""
                subject = "The input" if documents is None else "A document"
                raise ValueError(
                    f"{subject} has {count} positions{before}, but filter_type='implicit' is defined on "
                    f"`max_position_embeddings`={longest}: shorten the input, or train a model with a larger value."
                )
        if name == "inputs_embeds":
            size = self.config.hidden_size * (1 + both_strands)
            if inputs.shape[-1] != size or not inputs.is_floating_point():
                which = "`hidden_size` of both strands" if both_strands else "`hidden_size`"
                raise ValueError(
                    f"`inputs_embeds` must hold {size} floating point numbers ({which}) at each position, got "
                    f"{inputs.shape[-1]} of {inputs.dtype}."
                )
            return inputs
        if name == "input_values":
            return self._project(inputs)
        if both_strands:
            check_ids(inputs, self.embed_tokens.weight.shape[0])
            return embed_strands(self.embed_tokens, inputs, self.config)
        return self._look_up(inputs)

    def _look_up(self, input_ids: Tensor) -> Tensor:
        check_ids(input_ids, self.embed_tokens.weight.shape[0])
        return self.embed_tokens(input_ids)

    def _project(self, input_values: Tensor) -> Tensor:
        channels = self.config.num_input_channels
        if input_values.is_complex():
            raise TypeError("`input_values` must be real: pass real and imaginary parts as two channels.")
        if input_values.shape[-1] != channels:
            raise ValueError(
                f"`input_values` has {input_values.shape[-1]} channels, but `num_input_channels`={channels}."
            )
        on_cpu = has_readable_values(input_values)
        if on_cpu and not torch.isfinite(input_values).all():
            raise ValueError(
                "`input_values` holds NaN or infinite values: fill or drop them (and set "
                "`attention_mask` to 0 at missing positions)."
            )
        return self.input_projection(input_values.to(self.input_projection.weight.dtype))


__all__ = ["SSMModel", "SSMModelOutput", "selected_states"]
