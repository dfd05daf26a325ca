"""The cache of a causal model: the states of its layers, in the form that transformers' `generate` works with.

Legend: `B` batch, `L` length.
"""

import copy
import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils import _pytree
from transformers import Cache
from transformers.utils.deprecation import deprecate_kwarg

from hf_ssm.models.base.configuration import SSMConfig
from hf_ssm.models.base.rollback import PastRecording
from hf_ssm.modules.state import LayerState, as_real
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.long_conv import StreamingConvolution
from hf_ssm.utils.processes import is_sharded


def accepts_old_names(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the cache may also be passed under its names before transformers 5.24, with a warning."""
    warned = function
    for name in ("past_key_values", "cache_params"):
        warned = deprecate_kwarg(name, "5.40.0", new_name="cache")(warned)

    @functools.wraps(function)
    def renamed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs and generates_for_peft(self):
            kwargs["cache"] = kwargs.pop("past_key_values")
        called = warned if "past_key_values" in kwargs or "cache_params" in kwargs else function
        return called(self, *args, **kwargs)

    return renamed


def generates_for_peft(model: Any) -> bool:
    """Whether PEFT prepares the inputs of `generate`: it knows the cache as `past_key_values` only.

    Without this name it would repeat its virtual tokens before each generated token.
    """
    return "prepare_inputs_for_generation" in vars(model)


class SSMCache(Cache):
    """The states of a causal model of hf_ssm after the tokens that the model has read.

    `model(..., use_cache=True).cache` is a cache; pass it back as `cache` with the tokens that follow.
    The cache is changed in place; `copy.deepcopy` keeps the present state, without gradients. A cache belongs to the
    model that filled it, with the weights at that time: start a new cache after the weights have changed. `save` and
    `load` keep a cache in a file, with a check that the cache belongs to the model. A cache can be pickled; the reader
    must know to which model it belongs.

    With gradients enabled, the states belong to the graph of the tokens from which they were computed, so that a loss
    over a later piece has gradients at earlier tokens; `detach_` ends this graph (truncated backpropagation through
    time).

    After `activate_past_recording`, `crop` removes the last tokens again. `generate` calls both methods if an assistant
    or a prompt lookup drafts tokens.

    Args:
        config: The configuration of the model.
    """

    layers: list[Any]

    def __init__(self, config: SSMConfig):
        self._begin(config.num_hidden_layers)

    def _begin(self, count: int) -> "SSMCache":
        """Become empty, for a model of so many layers."""
        layers: list[Any] = [LayerState() for _ in range(count)]
        super().__init__(layers=layers)
        # Positions read, padding included (a tensor in exported programs), and tokens read by each row, `(B,)`.
        self.length: int | Tensor = 0
        self.tokens_seen: Tensor | None = None
        # `seq_idx` at the last position read, `(B,)`, if it was given.
        self.document_ids: Tensor | None = None
        # The precision of the states in exported programs: that of the weights, float32 at least.
        self.dtype = torch.float32
        # The model that filled it: its states and constants are meaningless for another one.
        self._owner: weakref.ref[nn.Module] | None = None
        # What `crop` needs; copies do not have it.
        self.recording: PastRecording | None = None
        # In `generate`: the tokens that end a text, and where the generated tokens begin.
        self.ends: Tensor | None = None
        self.prompt_length = 0
        return self

    def is_of(self, model: nn.Module) -> bool:
        """Whether this model has filled it."""
        return self._owner is not None and self._owner() is model

    def claim(self, model: nn.Module) -> None:
        """Record that this model fills it."""
        if not self.is_of(model):
            self._owner = weakref.ref(model)
            self.dtype = torch.promote_types(cast(Any, model).dtype, torch.float32)

    @property
    def states(self) -> list[LayerState]:
        """The state of each layer."""
        return self.layers

    def with_layers(self, layers: Sequence[LayerState]) -> "SSMCache":
        """A cache of the same model, at the same position, with other states."""
        copied = type(self).__new__(type(self))._begin(0)
        vars(copied).update(vars(self), layers=list(layers), recording=None)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "SSMCache":
        return self.with_layers(copy.deepcopy(self.states, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return SSMCache._from_tensors, (len(self), self.named_tensors())

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions read so far, padding included."""
        return int(self.length)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: the cache itself has no limit."""
        return -1

    @property
    def is_initialized(self) -> bool:
        """Whether anything was read."""
        return self.tokens_seen is not None

    @property
    def batch_size(self) -> int:
        """Number of rows, or -1 before the first use."""
        return -1 if self.tokens_seen is None else self.tokens_seen.shape[0]

    def goes_on(self, token_ids: Tensor) -> Tensor | None:
        """Whether each row of a generation reads its next token, `(B, 1)`: behind the end of a text is only padding.

        Args:
            token_ids: Prompt and generated tokens, `(B, P)`, the last of which is read next.
        """
        generated = token_ids[:, self.prompt_length : -1]
        if self.ends is None or len(token_ids) == 1 or generated.shape[1] == 0:
            return None
        return ~torch.isin(generated, self.ends.to(generated.device)).any(1, keepdim=True)

    def advance(self, length: int, tokens: Tensor | int) -> None:
        """Count positions and tokens as read.

        Args:
            length: Positions.
            tokens: Tokens of each row, `(B,)`, or of all rows.
        """
        before: Any = 0 if self.tokens_seen is None else self.tokens_seen
        if is_exporting() and isinstance(tokens, Tensor) and not isinstance(self.length, Tensor):
            self.length = tokens.new_zeros(())
        self.tokens_seen = before + tokens
        self.length = self.length + length

    def remember_document(self, seq_idx: Tensor, attention_mask: Tensor | None) -> None:
        """Keep the `seq_idx`, `(B, L)`, of the last token of each row, for the piece that follows."""
        last = seq_idx[:, -1]
        if attention_mask is not None:
            mask = attention_mask[:, -seq_idx.shape[1] :].bool()
            steps = torch.arange(1, mask.shape[1] + 1, device=mask.device)
            last = seq_idx.to(mask.device).gather(1, (mask * steps).argmax(dim=1, keepdim=True)).squeeze(1)
            if self.document_ids is not None:
                last = torch.where(mask.any(dim=1), last, self.document_ids)
        self.document_ids = last

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` can remove positions: after `activate_past_recording`."""
        return self.recording is not None

    def activate_past_recording(self) -> None:
        """Record what is read from now on, so that `crop` can remove it; see `PastRecording` for the cost."""
        self.recording = self.recording or PastRecording()

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last positions, padding included, by reading the positions before them again.

        No gradient flows through a cropped cache to tokens read before.

        Args:
            tokens_to_remove: Minus the number of positions, as in transformers; 0 removes no positions, and ends the
                recording of the positions read so far.

        Raises:
            ValueError: A positive number; more positions than were recorded since the last crop, or any positions
                without `activate_past_recording`.
        """
        count = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove > 0 or count < 0:
            raise ValueError(
                "`tokens_to_remove` is minus the number of positions to remove, and must be in "
                f"[-{self.get_seq_length()}, 0], got {tokens_to_remove}."
            )
        if tokens_to_remove == 0:
            self._forget()
        elif self.recording is None or not self.recording.crop(self, count):
            raise ValueError(
                f"The cache cannot return to {count} positions, because recurrent states of that time were not kept: "
                "call `activate_past_recording` before you read tokens that may have to be removed, or copy the cache "
                "(copy.deepcopy)."
            )

    def _forget(self) -> None:
        if self.recording is not None:
            self.recording.forget()

    def _change(self, function: Callable[[Tensor], Tensor]) -> "SSMCache":
        """Replace every tensor by `function` of it, and forget the recording, which is of the tensors before."""
        self._forget()
        self.layers = [layer.mapped(function) for layer in self.states]
        self.tokens_seen = None if self.tokens_seen is None else function(self.tokens_seen)
        self.document_ids = None if self.document_ids is None else function(self.document_ids)
        return self

    def detach_(self) -> "SSMCache":
        """Cut the states off the autograd graph, in place: gradients of later pieces end here.

        A streaming convolution (Hyena, Sobolev filters) still has gradients of its kernel at all inputs seen.

        Returns:
            The cache itself.
        """
        return self._change(Tensor.detach)

    def named_tensors(self) -> dict[str, Tensor]:
        """The contents of the cache as real tensors by name; empty before the first use.

        `layers.N.tensors.NAME` are recurrent states `(B, ...)`, complex ones with the real before the imaginary parts
        along the last dimension; `layers.N.streams.NAME` all inputs of a streaming convolution, `(B, P, D)`; `length`
        is the number of positions read, padding included; `tokens_seen` `(B,)` the number of tokens of each row, and
        `document_ids` `(B,)` its last `seq_idx`, if that was given.
        """
        if self.tokens_seen is None:
            return {}
        found: dict[str, Tensor] = {}
        for index, layer in enumerate(self.states):
            found |= {f"layers.{index}.tensors.{name}": as_real(value) for name, value in layer.tensors.items()}
            for name, stream in layer.streams.items():
                if stream.history is not None:
                    found[f"layers.{index}.streams.{name}"] = stream.history
        if self.document_ids is not None:
            found["document_ids"] = self.document_ids
        return found | {"length": torch.as_tensor(self.length), "tokens_seen": self.tokens_seen}

    @classmethod
    def _from_tensors(cls, count: int, tensors: dict[str, Any]) -> "SSMCache":
        """The cache of `count` layers that holds what `named_tensors` returned."""
        cache = cls.__new__(cls)._begin(count)
        cache.length, cache.tokens_seen = tensors.get("length", 0), tensors.get("tokens_seen")
        cache.document_ids = tensors.get("document_ids")
        for path, value in tensors.items():
            if path.startswith("layers."):
                _, index, kind, name = path.split(".", 3)
                held = StreamingConvolution(history=value) if kind == "streams" else value
                getattr(cache.states[int(index)], kind)[name] = held
        return cache

    def flatten(self) -> tuple[list[Tensor], Any]:
        """The form in which `torch.export` takes and returns a cache: `named_tensors`, in the precision of the weights.

        Returns:
            The tensors, and what else `unflatten` needs.
        """
        tensors = {
            name: value.to(self.dtype) if value.dtype == torch.float64 else value
            for name, value in self.named_tensors().items()
        }
        return list(tensors.values()), [len(self), list(tensors)]

    def flatten_with_keys(self) -> tuple[list[tuple[Any, Tensor]], Any]:
        """`flatten` with the name of each tensor."""
        values, context = self.flatten()
        return [(_pytree.MappingKey(name), value) for name, value in zip(context[1], values, strict=True)], context

    @classmethod
    def unflatten(cls, values: Any, context: Any) -> "SSMCache":
        """The cache of what `flatten` returned; it belongs to no model yet."""
        count, names = context
        return cls._from_tensors(count, dict(zip(names, values, strict=True)))

    def save(self, file: str | os.PathLike[str], model: nn.Module) -> None:
        """Write the states to a safetensors file.

        Args:
            file: Path of the file.
            model: The model to which the states belong, with or without its head.

        Raises:
            ValueError: The cache is empty, or belongs to another model.
        """
        backbone: Any = getattr(model, "base_model", model)
        tensors = {name: value.detach().contiguous() for name, value in self.named_tensors().items()}
        if not tensors or not (self._owner is None or self.is_of(backbone)):
            raise ValueError("the cache is empty, or was filled by another model: give the model that filled it.")
        save_file(tensors, file, {"hf_ssm_cache": _fingerprint(backbone)})

    @classmethod
    def load(cls, file: str | os.PathLike[str], model: nn.Module) -> "SSMCache":
        """Read a cache that `save` wrote, on the device of the model.

        Args:
            file: Path of the file.
            model: The model that filled it, with or without its head.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged or does not hold a cache, or the cache was filled by another model or with
                other weights.
        """
        backbone: Any = getattr(model, "base_model", model)
        try:
            with safe_open(file, framework="pt", device=str(backbone.device)) as opened:
                metadata = opened.metadata() or {}
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{os.fspath(file)!r} is not a safetensors file: {error}") from error
        if metadata.get("hf_ssm_cache") != _fingerprint(backbone):
            raise ValueError(
                f"{os.fspath(file)!r} was filled by another model, or by this model with other weights: load the "
                "model that filled it, or read the tokens again."
            )
        cache = cls._from_tensors(len(backbone.layers), tensors | {"length": int(tensors["length"])})
        cache.claim(backbone)
        return cache

    def reset(self) -> None:
        """Remove all states; the cache can then be used with any model that has the same number of layers."""
        recording = self.recording
        self._begin(len(self))
        self.recording = None if recording is None else PastRecording()

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch, in this order; a row may appear more than once."""
        self._change(lambda value: value.index_select(0, indices.to(value.device)))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the rows for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        self._change(lambda value: value.repeat_interleave(repeats, 0))

    def rows(self, rows: Tensor) -> list[LayerState]:
        """States of these rows only."""
        return [layer.rows(rows) for layer in self.states]

    def assemble(self, groups: Sequence[tuple[Tensor, list[LayerState]]]) -> None:
        """Take over the states of groups of rows, which together are all rows."""
        order = torch.cat([rows for rows, _ in groups]).argsort()
        layers = [LayerState.concatenated(states) for states in zip(*[states for _, states in groups], strict=True)]
        self.layers = [layer.rows(order) for layer in layers]


# `torch.export` takes a cache apart into tensors. torch has no public name for this module; transformers registers its
# outputs here too.
_pytree.register_pytree_node(
    SSMCache,
    cast(Any, SSMCache.flatten),
    SSMCache.unflatten,
    serialized_type_name=f"{SSMCache.__module__}:{SSMCache.__qualname__}",
    flatten_with_keys_fn=cast(Any, SSMCache.flatten_with_keys),
)


def cache_for(
    model: Any, cache: SSMCache | None, use_cache: bool | None, output_tau: bool, batch: int
) -> SSMCache | None:
    """The cache that a call continues from or fills; `None` without a cache.

    Args:
        model: The backbone.
        cache: The argument `cache`.
        use_cache: Whether an empty cache is made. Default: the configuration's, for causal models outside training.
        output_tau: Whether τ is requested.
        batch: Number of rows.

    Raises:
        ValueError: A model that is not causal; together with τ or gradient checkpointing; a cache of another class,
            model or batch size.
    """
    if model.sharing is not None:
        if use_cache or cache is not None:
            raise ValueError("Processes that share sequences keep no cache: leave out `use_cache=True` and `cache`.")
        return None
    if cache is None and use_cache is False:
        return None
    # A cache that this model has filled was checked then.
    is_own = isinstance(cache, SSMCache) and cache.is_of(model)
    non_causal_flag = None if is_own else model.config.non_causal_flag
    if use_cache is None and cache is None:
        use_cache = model.config.use_cache and not model.training and non_causal_flag is None and not output_tau
    recomputes = model.training and model.gradient_checkpointing and torch.is_grad_enabled()
    if cache is None and (not use_cache or recomputes):
        return None
    argument = "use_cache=True" if cache is None else "cache"
    cache = SSMCache(model.config) if cache is None else cache
    reason = None
    if non_causal_flag is not None:
        reason = (
            f"`{argument}` needs a causal model, but this one has {non_causal_flag}: later tokens would change the "
            "outputs at earlier positions."
        )
    elif output_tau:
        reason = f"`output_tau=True` needs the whole sequence: leave out `{argument}`."
    elif recomputes:
        reason = (
            "Gradient checkpointing computes each layer twice, but the first computation changes the cache: leave out "
            "`cache`, or call `gradient_checkpointing_disable()`."
        )
    elif not isinstance(cache, SSMCache):
        reason = (
            f"`cache` must be an `SSMCache`, got {type(cache).__name__}: pass what a call with `use_cache=True` "
            "returned, or `SSMCache(model.config)`."
        )
    elif len(cache) != len(model.layers) or not (is_own or cache._owner is None):
        reason = (
            "`cache` was filled by another model: continue with that model, or start with an empty "
            "`SSMCache(model.config)`."
        )
    elif cache.tokens_seen is not None and cache.tokens_seen.shape[0] != batch:
        reason = (
            f"`cache` holds {cache.batch_size} sequences, but the input has {batch}: select rows with "
            "`cache.batch_select_indices`."
        )
    if reason is not None:
        raise ValueError(reason)
    return cache


def _fingerprint(model: nn.Module) -> str:
    """SHA-256 of the names, shapes and values of all weights; of sharded weights, of the part in this process."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(repr((name, tuple(parameter.shape))).encode())
        values: Any = parameter.detach()
        values = values.to_local() if is_sharded(values) else values
        # Not in its own precision: numpy has no bfloat16.
        digest.update(values.double().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


__all__ = ["SSMCache", "accepts_old_names", "cache_for", "generates_for_peft"]
