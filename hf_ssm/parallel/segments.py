"""Activation checkpointing along the sequence: one process trains on sequences whose activations do not fit in memory.

Legend: `B` batch, `L` length, `D` hidden size, `V` vocabulary, `S` segments.

```python
model.activation_checkpointing_enable({"segments": 16})
```

A causal model whose layers have recurrent states reads a sequence segment by segment, through all layers. Kept for the
backward pass are the states of the layers at the borders of segments, the embedding and the last hidden states; the
backward computes one segment after the other again, from the last to the first, and the gradients flow through the
states. The memory of activations is that of one segment, L / S positions, instead of L.

Other models (long convolutions without a recurrence, two-sided models, both strands), and calls that need whole rows
(packed rows, τ, batch norm, tied dropout), are computed again layer by layer, as `activation_checkpointing_enable()`
does.

The heads that predict tokens compute the loss of one segment after the other, too. While they do so (in training, with
labels), the output has no logits.

Values and gradients are those of the usual step, up to rounding; dropout draws other masks.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss

from hf_ssm.models.base.inputs import check_labels
from hf_ssm.models.views.alignment import permuted, right_aligned
from hf_ssm.modules.attention import SelfAttention
from hf_ssm.modules.block import Block
from hf_ssm.modules.operator import SequenceOperator
from hf_ssm.modules.rows import Rows, View
from hf_ssm.modules.state import LayerState
from hf_ssm.utils.processes import has_whole_parameters

__all__ = ["Segments", "recompute_in_segments"]

# Recurrences of state space models are fastest on multiples of this.
_BLOCK = 64
# The state of each layer: recurrent states by name.
States = Sequence[Mapping[str, Tensor]]


def recompute_in_segments(model: Any, count: int, options: Mapping[str, Any]) -> None:
    """Compute activations again along the sequence; called by `activation_checkpointing_enable({"segments": count})`.

    Args:
        model: A model of hf_ssm, with or without a head.
        count: S, the number of segments of a row; rows of fewer positions have fewer segments.
        options: Further arguments of `torch.utils.checkpoint.checkpoint`.

    Raises:
        TypeError: `segments` is not a number.
        ValueError: `segments` is not positive, or `use_reentrant` is true.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"`segments` must be a number of segments, such as 16, got {count!r}.")
    if count < 1:
        raise ValueError(f"`segments` must be positive, got {count}: give the number of segments of a row, such as 16.")
    if options.get("use_reentrant"):
        raise ValueError(
            "`use_reentrant=True` does not support `segments`, whose states carry gradients: leave out `use_reentrant`."
        )
    segments = Segments(count, {**options, "use_reentrant": False})
    for module in model.modules():
        if hasattr(module, "segments"):
            module.segments = segments
        if isinstance(module, Block):
            # Not a second time.
            module.gradient_checkpointing = False


class Segments:
    """How a model computes activations again.

    Args:
        count: S, the number of segments of a row.
        options: Arguments of `torch.utils.checkpoint.checkpoint`.
    """

    def __init__(self, count: int, options: Mapping[str, Any]):
        self.count = count
        self.recompute: Callable[..., Any] = partial(checkpoint, **options)

    def sizes(self, length: int) -> list[int]:
        """The lengths of the segments of a row, at most `_BLOCK` above L / S; the first one is the longest."""
        block = _BLOCK if length > self.count * _BLOCK else 1
        blocks = -(-length // block)
        count = min(self.count, blocks)
        each, longer = divmod(blocks, count)
        sizes = [block * (each + (number < longer)) for number in range(count)]
        sizes[-1] -= blocks * block - length
        return sizes

    def of(self, model: Any) -> SimpleNamespace:
        """The method `run` for a model, in the place of its own."""
        return SimpleNamespace(run=partial(self.run, model))

    def run(
        self, model: Any, hidden_states: Tensor, rows: Rows, views: Sequence[View] = (), keep_all: bool = True
    ) -> tuple[list[Tensor], list[Tensor]]:
        """`SSMModel.run`, without states."""
        in_segments = reads_in_segments(model, rows, views)
        for layer in model.layers:
            layer.gradient_checkpointing, layer._gradient_checkpointing_func = not in_segments, self.recompute
        if not in_segments:
            return model.run(hidden_states, rows, views=views, keep_all=keep_all)
        back = None
        if rows.mask is not None and any(isinstance(layer.mixer, SelfAttention) for layer in model.layers):
            # The state of attention has no padding behind tokens.
            hidden_states, rows, back = right_aligned(hidden_states, rows, rows.mask)
        # Not slices, whose gradients would be added in full size.
        pieces = hidden_states.split(self.sizes(hidden_states.shape[1]), dim=1)
        states: States = [{} for _ in model.layers]
        # Computed again in the backward pass, too: the steps between the weights and the constants are large.
        constants = [self.recompute(_shared_constants, layer) for layer in model.layers]
        outputs: list[list[Tensor]] = []
        start = 0
        for number, piece in enumerate(pieces, start=1):
            positions = slice(start, start + piece.shape[1])
            read_rows = rows.moved(itemgetter((slice(None), positions)))
            # The backward pass begins with the last segment, whose activations can be kept until then.
            read = _read_segment if number == len(pieces) else partial(self.recompute, _read_segment)
            read_outputs, states = read(model, keep_all, constants, piece, read_rows, states)
            outputs.append(read_outputs)
            start = positions.stop
        whole = [torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True)]
        return whole if back is None else [permuted(output, back) for output in whole], []

    def loss(
        self, head: Any, hidden_states: Tensor, labels: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor | None, Tensor]:
        """The logits and the loss of a head that predicts tokens; the logits are `None` where they are not kept.

        Args:
            head: The model.
            hidden_states: The last ones, `(B, L, D)`.
            labels, attention_mask, kwargs: As of `task_loss`.
        """
        is_causal = head.loss_function is ForCausalLMLoss
        is_sum = is_causal or head.loss_function is ForMaskedLMLoss
        is_shared = getattr(head.model, "sharing", None) is not None
        if not is_sum or is_shared or labels.shape != hidden_states.shape[:2]:
            # A loss of the user may be no sum over positions.
            logits = head.scores(hidden_states)
            return logits, head.task_loss(logits, labels, attention_mask, **kwargs)
        check_labels(labels, head.config.vocab_size, "vocab_size")
        targets = head.counted_labels(labels, attention_mask, **kwargs)
        if is_causal:
            shifted = kwargs.get("shift_labels")
            targets = nn.functional.pad(targets, (0, 1), value=-100)[:, 1:] if shifted is None else shifted
        count = kwargs.get("num_items_in_batch")
        count = (targets != -100).sum() if count is None else count
        sizes = self.sizes(labels.shape[1])
        pieces = zip(hidden_states.split(sizes, dim=1), targets.split(sizes, dim=1), strict=True)
        losses = [self.recompute(_loss_of_segment, head, piece, target, count, is_causal) for piece, target in pieces]
        return None, torch.stack(losses).sum()


def reads_in_segments(model: Any, rows: Rows, views: Sequence[View] = ()) -> bool:
    """Whether a call of a model can be read segment by segment; otherwise it is computed again layer by layer."""
    config = model.config
    needs_whole_rows = (
        rows.layout is not None
        or rows.observer is not None
        or config.norm_type == "batch"
        or (config.tie_dropout and config.hidden_dropout > 0)
        or any(type(view).between is not View.between for view in views)
    )
    operators = [module for module in model.modules() if isinstance(module, SequenceOperator)]
    return not needs_whole_rows and all(part.is_causal and part.has_recurrent_state for part in operators)


def _read_segment(
    model: Any,
    keep_all: bool,
    constants: Sequence[dict[str, Any]],
    hidden_states: Tensor,
    rows: Rows,
    before: States,
) -> tuple[list[Tensor], States]:
    """The outputs of `SSMModel.run` for one segment, and the states of the layers after it."""
    states = [LayerState() for _ in before]
    for state, tensors, shared in zip(states, before, constants, strict=True):
        state.tensors, state.constants = dict(tensors), dict(shared)
    outputs, _ = model.run(hidden_states, rows, states, keep_all=keep_all)
    return outputs, [state.tensors for state in states]


def _shared_constants(layer: nn.Module) -> dict[str, Any]:
    """What the operators of a layer compute once for all segments."""
    if not has_whole_parameters(layer):
        # FSDP2 gathers them while the layer is called.
        return {}
    operators = (module for module in layer.modules() if isinstance(module, SequenceOperator))
    return {name: value for operator in operators for name, value in operator.shared_constants().items()}


def _loss_of_segment(head: Any, hidden_states: Tensor, targets: Tensor, count: Any, is_causal: bool) -> Tensor:
    """The part of the loss of one segment, where `count` tokens of the batch have a label."""
    targets = targets.contiguous()
    shifted = {"shift_labels": targets} if is_causal else {}
    logits, size = head.scores(hidden_states), head.config.vocab_size
    loss: Tensor = head.loss_function(
        logits=logits, labels=targets, vocab_size=size, num_items_in_batch=count, **shifted
    )
    return loss
