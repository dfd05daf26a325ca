"""Which views a call of a model needs."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.views.alignment import Alignment, read_with_cache
from hf_ssm.models.views.extra_inputs import ExtraInputs
from hf_ssm.models.views.packing import Packing, find_documents, read_packed_with_cache
from hf_ssm.models.views.strands import Strands
from hf_ssm.modules.rows import Rows, View

# Arguments of a backbone that its heads have looked up; callers do not pass them.
FROM_HEADS = ("documents", "both_strands")


class EmbeddingDropout(View):
    """Dropout of the embeddings, after the strands are rows of their own and before documents are moved."""

    def __init__(self, dropout: Callable[[Tensor], Tensor]):
        self.dropout = dropout

    @classmethod
    def of(cls, model: Any, call: dict[str, Any]) -> "EmbeddingDropout | None":
        return cls(model.dropout) if model.dropout.training else None

    def arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        return self.dropout(hidden_states), rows


def _registered(*views: type[View]) -> list[type[View]]:
    for view in views:
        View.all_arguments.update(view.arguments)
    return list(views)


# In the order in which they arrange rows.
VIEWS = _registered(ExtraInputs, Alignment, Strands, EmbeddingDropout, Packing)


def register_view(view: type[View]) -> None:
    """Add a view to all models, which then accept its arguments; it arranges rows after the others."""
    VIEWS.extend(_registered(view))


def views_of(model: Any, call: dict[str, Any]) -> list[View]:
    """The views that a call of a backbone needs, in the order in which they arrange rows.

    Args:
        model: The backbone.
        call: The arguments of `forward` by name. `documents` and `both_strands` may come from a head, which has looked
            them up; otherwise they are added.

    Raises:
        TypeError, ValueError: Arguments that do not fit; see the views.
    """
    if call.get("documents") is None:
        inputs = (call["input_ids"], call["inputs_embeds"], call.get("input_values"))
        call["documents"] = find_documents(call["attention_mask"], call["cache"], call, *inputs)
    if call.get("both_strands") is None:
        call["both_strands"] = model.config.rc_equivariant
    return [view for kind in VIEWS if (view := kind.of(model, call)) is not None]


def read_next(
    model: Any, hidden_states: Tensor, rows: Rows, views: Sequence[View], cache: SSMCache, call: dict[str, Any]
) -> list[Tensor]:
    """Read the next positions of the sequences in a cache: padded rows, or packed ones.

    Args:
        model: The backbone.
        hidden_states: `(B, L, D)`.
        rows: What is known of the rows.
        views: Those of the call.
        cache: Changed in place.
        call: The arguments of `forward`.

    Returns:
        The hidden states of every layer, each `(B, L, D)`.
    """
    # The documents of packed rows continue from the cache, or begin anew, each by itself.
    views = [view for view in views if not isinstance(view, Packing)]
    for view in views:
        hidden_states, rows = view.arrange(hidden_states, rows)
    # The views have checked the call: a refused one leaves an empty cache to any model.
    cache.claim(model)
    if call.get("documents") is not None:
        cache.crop(0)
        outputs = read_packed_with_cache(model.run_states, hidden_states, rows, call["documents"], cache)
    else:
        masks = [view for view in views if isinstance(view, Alignment) and cache.recording is None]
        tokens_before = masks[0].tokens_before(hidden_states.shape[1]) if masks else None

        def read(hidden_states: Tensor, rows: Rows) -> list[Tensor]:
            return read_with_cache(model.run_states, hidden_states, rows, cache, tokens_before)

        if cache.recording is None:
            outputs = read(hidden_states, rows)
        else:
            outputs = cache.recording.read(cache, read, hidden_states, rows)
    if (seq_idx := call.get("seq_idx")) is not None:
        cache.remember_document(seq_idx.expand(hidden_states.shape[0], -1), call["attention_mask"])
    for view in reversed(views):
        outputs = [view.restore(output) for output in outputs]
    return outputs


__all__ = ["FROM_HEADS", "VIEWS", "read_next", "register_view", "views_of"]
