"""The door of a backbone: what a client gives becomes rows that layers read, and the outputs go back to its places.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.inputs import check_extra_inputs, check_mask, check_without_holes
from hf_ssm.models.views.alignment import plain_rows, read_with_cache
from hf_ssm.models.views.packing import find_documents, read_packed_with_cache
from hf_ssm.models.views.strands import Strands
from hf_ssm.modules.rows import Rows
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.documents import Documents

__all__ = ["Door"]


class Door:
    """Arranges the rows of one call of a backbone, and restores the outputs of its layers.

    Args:
        model: The backbone.
        attention_mask: `(B, L)` or `(B, P + L)`, where P positions were read before; 1 at tokens.
        cache: The cache to continue from, or `None`.
        kwargs: Further arguments of `forward`: the extra inputs, what `find_documents` reads, and what heads have
            looked up (`documents`, `both_strands`).
        inputs: The inputs of the model, of which one is given: `(B, L)` or `(B, L, ...)`.
    """

    def __init__(
        self,
        model: Any,
        attention_mask: Tensor | None,
        cache: SSMCache | None,
        kwargs: Mapping[str, Any],
        inputs: Sequence[Tensor | None],
    ):
        self.model, self.attention_mask, self.cache = model, attention_mask, cache
        self.documents: Documents | None = kwargs.get("documents")
        if self.documents is None:
            self.documents = find_documents(attention_mask, cache, kwargs, *inputs)
        both_strands = kwargs.get("both_strands")
        both_strands = model.config.rc_equivariant if both_strands is None else both_strands
        self.strands = Strands(model.config, self.documents) if both_strands else None
        self.extra = {name: kwargs[name] for name in model.extra_inputs if kwargs.get(name) is not None}
        if self.extra and both_strands:
            raise ValueError(
                f"`{next(iter(self.extra))}` is for signals, which have no reverse complement: leave it out."
            )
        self.seq_idx = kwargs.get("seq_idx")
        # What `restore` undoes, the last one first.
        self._undo: list[Callable[[Tensor], Tensor]] = []

    def arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """The rows of both strands, before documents are moved or processes take their share.

        Args:
            hidden_states: `(B, L, D)`; of both strands `(B, L, 2 D)`.
            rows: Rows that the result adds to.

        Returns:
            The rows, `(B, L, D)` or `(2 B, L, D)`.
        """
        model, mask, cache = self.model, self.attention_mask, self.cache
        if self.extra:
            hidden_states = hidden_states.to(model.dtype)
            rows = rows._replace(extra=check_extra_inputs(self.extra, mask, hidden_states))
        if mask is not None and self.documents is None:
            # An exported program checks the number of positions where it has to know them, in a streaming convolution.
            past = cache.get_seq_length() if isinstance(cache, SSMCache) and not is_exporting() else 0
            mask = check_mask(mask, hidden_states, past, in_pieces=cache is not None)
            if model.sharing is not None:
                check_without_holes(mask)
            rows = rows._replace(mask=mask)
            if mask is not None and cache is None and model.sharing is None:
                hidden_states, rows, back = plain_rows(hidden_states, rows, mask, model.training)
                if back is not None:
                    self._undo.append(back)
        if self.strands is not None:
            hidden_states, rows = self.strands.arrange(hidden_states, rows)
            self._undo.append(self.strands.restore)
        # Of each strand by itself, and before the tokens of documents are copied.
        return model.dropout(hidden_states) if model.training else hidden_states, rows

    def divide(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """The rows that layers read: documents in their layout, or the positions of this process."""
        documents = rows.layout or self.documents
        if self.model.sharing is not None:
            hidden_states, rows = self.model.sharing.divide(hidden_states, rows, documents)
            if self.strands is not None:
                # The strands are turned round as a whole.
                self._undo.insert(0, self.model.sharing.cut)
                self._undo.append(rows.layout.whole)
        elif documents is not None:
            rows = rows._replace(mask=None).moved(documents.arrange)
            rows = rows._replace(mask=documents.mask, layout=documents)
            hidden_states = documents.arrange(hidden_states)
            self._undo.append(documents.restore)
        return hidden_states, rows

    def restore(self, hidden_states: Tensor) -> Tensor:
        """The hidden states of a layer at the positions of the client."""
        for undo in reversed(self._undo):
            hidden_states = undo(hidden_states)
        return hidden_states

    def read_next(self, hidden_states: Tensor, rows: Rows, cache: SSMCache) -> list[Tensor]:
        """Read the next positions of the sequences in a cache: padded rows, or packed ones.

        Args:
            hidden_states: `(B, L, D)`.
            rows: What is known of the rows.
            cache: Changed in place.

        Returns:
            The hidden states of every layer, each `(B, L, D)`.
        """
        model, mask = self.model, self.attention_mask
        hidden_states, rows = self.arrange(hidden_states, rows)
        # The call has been checked: a refused one leaves an empty cache to any model.
        cache.claim(model)
        if self.documents is not None:
            cache.crop(0)
            outputs = read_packed_with_cache(model.run_states, hidden_states, rows, self.documents, cache)
        elif cache.recording is None:
            length = hidden_states.shape[1]
            has_past = mask is not None and mask.shape[1] > length
            before = mask[:, :-length].bool().sum(1) if mask is not None and has_past else None
            outputs = read_with_cache(model.run_states, hidden_states, rows, cache, before)
        else:

            def read(hidden_states: Tensor, rows: Rows) -> list[Tensor]:
                return read_with_cache(model.run_states, hidden_states, rows, cache)

            outputs = cache.recording.read(cache, read, hidden_states, rows)
        if self.seq_idx is not None:
            cache.remember_document(self.seq_idx.expand(hidden_states.shape[0], -1), mask)
        return [self.restore(output) for output in outputs]
