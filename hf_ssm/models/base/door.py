"""The door of a backbone: what a client gives becomes rows that layers read, and the outputs go back to its places.

Legend: `B` batch, `L` length, `D` hidden size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from hf_ssm.models.base.cache import SSMCache
from hf_ssm.models.base.inputs import check_extra_inputs, check_mask, check_without_holes
from hf_ssm.models.views.alignment import plain_rows, read_with_cache
from hf_ssm.models.views.packing import find_documents, read_packed_with_cache
from hf_ssm.models.views.strands import Strands
from hf_ssm.modules.rows import Rows
from hf_ssm.ops.context import is_exporting
from hf_ssm.ops.documents import Bucket, Documents
from hf_ssm.utils.processes import has_whole_parameters

__all__ = ["Batch", "Door"]


class Batch(NamedTuple):
    """Rows that the layers read together.

    Attributes:
        hidden_states: `(R, M, D)`.
        rows: Mask, extra inputs and observer of these rows.
        undo: Functions that `restored` calls to put the outputs of layers back, the last one first.
        swap: Called with hidden states and rows before each layer (`rc_swap`).
    """

    hidden_states: Tensor
    rows: Rows
    undo: Sequence[Callable[[Tensor], Tensor]] = ()
    swap: Callable[[Tensor, Rows], Tensor] | None = None


def restored(output: Tensor, undo: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Put the output of a layer back to where its rows came from."""
    for step in reversed(undo):
        output = step(output)
    return output


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
        self.both_strands: bool = model.config.rc_equivariant if both_strands is None else both_strands
        self.extra = {name: kwargs[name] for name in model.extra_inputs if kwargs.get(name) is not None}
        if self.extra and self.both_strands:
            name = next(iter(self.extra))
            raise ValueError(f"`{name}` is for signals, which have no reverse complement: leave it out.")
        self.seq_idx = kwargs.get("seq_idx")
        self._buckets: list[Bucket] = []

    def batches(self, hidden_states: Tensor, rows: Rows) -> list[Batch]:
        """Arrange the rows that layers read: those of the client, or documents of similar length together.

        Args:
            hidden_states: `(B, L, D)`, or the embeddings of both strands, `(B, L, 2 D)`.
            rows: Rows that the result adds to.
        """
        hidden_states, rows, undo = self._arrange(hidden_states, rows)
        if self.documents is None:
            return [self._batch(hidden_states, rows, undo)]
        # One batch where statistics of all rows are needed, and where all processes must read as many.
        is_one = rows.observer is not None or self.model.sharing is not None
        is_one = is_one or (self.model.training and self.model.config.norm_type == "batch")
        is_one = is_one or not has_whole_parameters(self.model)
        least = 1 if self.model.sharing is None else self.model.sharing.size
        self._buckets = [self.documents.bucket(least=least)] if is_one else self.documents.buckets()
        return [
            self._batch(bucket.take(hidden_states), rows.moved(bucket.take)._replace(mask=bucket.mask), [])
            for bucket in self._buckets
        ]

    def restore(self, batches: Sequence[Batch], outputs: Sequence[Tensor]) -> Tensor:
        """The hidden states of a layer at the positions of the client, from its outputs for the batches."""
        parts = [restored(output, batch.undo) for batch, output in zip(batches, outputs, strict=True)]
        whole = parts[0] if self.documents is None else self.documents.restore(self._buckets, parts)
        # Strands are turned round, and documents moved, as a whole.
        is_whole = self.model.sharing is not None and (self.both_strands or self.documents is not None)
        return self.model.sharing.cut(whole) if is_whole else whole

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
        hidden_states, rows, undo = self._arrange(hidden_states, rows)
        hidden_states = model.dropout(hidden_states)
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
        return [restored(output, undo) for output in outputs] if undo else outputs

    def _arrange(self, hidden_states: Tensor, rows: Rows) -> tuple[Tensor, Rows, list[Callable[[Tensor], Tensor]]]:
        """Extra inputs and mask; the tokens of rows with holes are moved to the left."""
        model, mask, cache = self.model, self.attention_mask, self.cache
        if self.extra:
            hidden_states = hidden_states.to(model.dtype)
            rows = rows._replace(extra=check_extra_inputs(self.extra, mask, hidden_states))
        if mask is None or self.documents is not None:
            return hidden_states, rows, []
        # An exported program checks the number of positions where it has to know them, in a streaming convolution.
        past = cache.get_seq_length() if isinstance(cache, SSMCache) and not is_exporting() else 0
        mask = check_mask(mask, hidden_states, past, in_pieces=cache is not None)
        rows = rows._replace(mask=mask)
        if model.sharing is not None:
            check_without_holes(mask)
        if mask is None or cache is not None or model.sharing is not None:
            return hidden_states, rows, []
        hidden_states, rows, back = plain_rows(hidden_states, rows, mask, model.training)
        return hidden_states, rows, [] if back is None else [back]

    def _batch(self, hidden_states: Tensor, rows: Rows, undo: list[Callable[[Tensor], Tensor]]) -> Batch:
        """Strands, dropout, and the positions of this process."""
        model, swap = self.model, None
        if self.both_strands:
            strands = Strands(rows.mask)
            hidden_states, rows = strands.arrange(hidden_states, rows)
            undo.append(strands.restore)
            swap = strands.exchanged if model.config.rc_swap else None
        hidden_states = model.dropout(hidden_states) if model.training else hidden_states
        if model.sharing is not None:
            hidden_states, rows = model.sharing.divide(hidden_states, rows, equally=self.documents is not None)
            if self.both_strands or self.documents is not None:
                undo.append(rows.layout.whole)
        return Batch(hidden_states, rows, undo, swap)
