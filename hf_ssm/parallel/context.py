"""Context parallelism: the processes of a group hold some positions of each sequence and compute as one.

Legend: `R` processes, `B` batch, `L` positions of whole rows, `l` positions of this process, `D` channels, `S` numbers
of a state.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers.loss.loss_utils import ForCausalLMLoss, ForMaskedLMLoss, ForTokenClassification

from hf_ssm.models.base.backbone import SSMModel
from hf_ssm.models.views.sequences import Documents
from hf_ssm.modules.pooling import pool
from hf_ssm.modules.rows import Rows
from hf_ssm.ops.context import is_exporting
from hf_ssm.parallel.layout import SharedLayout
from hf_ssm.utils.checks import check_model
from hf_ssm.utils.processes import Processes

__all__ = ["SequenceSharing", "backbone_of", "join_positions", "join_sequences", "split_sequences"]

# Losses that are sums over positions, divided by a number.
_SUMS = (ForCausalLMLoss, ForMaskedLMLoss, ForTokenClassification)


class SequenceSharing:
    """How processes share sequences; `backbone.sharing` of a model that `split_sequences` has changed.

    Args:
        group: A process group.
        cuts: Number of positions of each process for rows of a length; default: as equal as possible.

    Attributes:
        length: L of the rows that were read last.
    """

    is_shared = True

    def __init__(self, group: Any, cuts: Callable[[int], Sequence[int]] | None = None):
        self.group, self.cuts, self.length = group, cuts, 0
        self.processes = Processes(group)

    def __deepcopy__(self, memo: dict[int, Any]) -> "SequenceSharing":
        """The same processes share the sequences of a copy of the model."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "A model whose sequences are shared by processes cannot be pickled: write it by `save_pretrained`, or end "
            "the sharing by `join_sequences`."
        )

    @property
    def size(self) -> int:
        """R."""
        return dist.get_world_size(self.group)

    def layout(self, length: int, mask: Tensor | None = None, equally: bool = False) -> SharedLayout:
        """The layout of rows of this length.

        Raises:
            ValueError: Fewer positions than processes; `cuts` returns other numbers than described.
        """
        if length < self.size:
            raise ValueError(
                f"The rows have {length} positions, fewer than the {self.size} processes that share them: give longer "
                "rows, or use fewer processes for each sequence."
            )
        equal = [length // self.size + (place < length % self.size) for place in range(self.size)]
        lengths = tuple(equal if equally or self.cuts is None else self.cuts(length))
        if len(lengths) != self.size or sum(lengths) != length or min(lengths) < 1:
            raise ValueError(
                f"`cuts` must return {self.size} positive numbers with the sum {length}, the positions of each "
                f"process, got {lengths}."
            )
        self.length = length
        return SharedLayout(self.group, tuple(range(self.size)), lengths, mask)

    def divide(self, hidden_states: Tensor, rows: Rows, equally: bool = False) -> tuple[Tensor, Rows]:
        """The positions of this process, of whole rows `(B, L, D)`; documents as rows are divided `equally`.

        Raises:
            ValueError: While a program is exported.
        """
        if is_exporting():
            raise ValueError(
                "An exported program has no other processes: call `join_sequences(model)` before the export."
            )
        layout = self.layout(hidden_states.shape[1], rows.mask, equally)
        rows = rows.moved(layout.cut)._replace(layout=layout)
        return layout.cut(hidden_states), rows

    def cut(self, values: Tensor) -> Tensor:
        """The positions of this process, `(B, l, ...)`, of whole rows `(B, L, ...)`."""
        return self.layout(values.shape[1]).cut(values)

    def join(self, values: Tensor) -> Tensor:
        """All positions of outputs of the last call, `(B, L, ...)`, from those of this process, `(B, l, ...)`."""
        return self.layout(self.length).whole(values)

    def pool(self, hidden_states: Tensor, mask: Tensor | None, how: str, documents: Documents | None = None) -> Tensor:
        """As `Door.pool`, of the positions of all processes; `mask` and `documents` are of whole rows."""
        if how == "max":
            # Unlike the others, it is no weighted sum of the positions.
            whole = self.join(hidden_states)
            if documents is None:
                return pool(whole, mask, how)
            bucket = documents.bucket()
            return pool(bucket.take(whole), bucket.mask, how)
        batch, length = hidden_states.shape[0], self.length
        if documents is None:
            numbers = torch.arange(batch, device=hidden_states.device).unsqueeze(1).expand(batch, length)
            numbers = numbers if mask is None else torch.where(mask.to(numbers.device).bool(), numbers, -1)
        else:
            numbers, batch = _numbers_of(documents), len(documents)
        held = self.cut(_weights(numbers, batch, how)).to(hidden_states.device)
        numbers = self.cut(numbers).clamp(min=0).to(hidden_states.device)
        precise = torch.promote_types(hidden_states.dtype, torch.float32)
        weighted = torch.where(held.unsqueeze(-1) > 0, hidden_states.to(precise) * held.unsqueeze(-1).to(precise), 0)
        sums = weighted.new_zeros(batch, weighted.shape[-1]).index_add(0, numbers.flatten(), weighted.flatten(0, 1))
        return self.processes.sum(sums).to(hidden_states.dtype)

    def mean_loss(
        self,
        loss: "partial[Tensor]",
        labels: Tensor,
        *,
        shifts: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The mean loss of all positions, the same in each process.

        Args:
            loss: The loss of a head with its logits: that of transformers, which divides a sum by
                `num_items_in_batch`, or another one, which gets the logits of all positions.
            labels: `(B, L)` of whole rows, -100 where there is none.
            shifts: Whether a position predicts the label of the next one.
            num_items_in_batch: What the sum is divided by; default: the number of labels.
            shift_labels: With `shifts`, the label that each position predicts, `(B, L)`; default: from `labels`.
            kwargs: Further arguments of another loss.
        """
        if loss.func not in _SUMS:
            given = {"num_items_in_batch": num_items_in_batch, "shift_labels": shift_labels}
            given = {name: value for name, value in given.items() if value is not None}
            return loss(logits=self.join(loss.keywords["logits"]), labels=labels, **given, **kwargs)
        if shifts:
            following = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
            labels = following if shift_labels is None else shift_labels
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        held = self.cut(labels).contiguous()
        return self.processes.sum(loss(labels=held, shift_labels=held, num_items_in_batch=1)) / count

    def mean_squared_error(self, outputs: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
        """The mean squared error of all tokens; `labels` and `mask` are those of the whole rows."""
        held = self.cut(labels)
        _check_shapes(held, outputs, labels)
        squares = (outputs.float() - held.to(outputs.device).float()).square()
        if mask is None:
            return self.processes.sum(squares.sum()) / (labels.numel())
        tokens = self.cut(mask.to(outputs.device).bool())
        count = mask.bool().sum().to(outputs.device) * outputs.shape[-1]
        return self.processes.sum(torch.where(tokens.unsqueeze(-1), squares, 0).sum()) / count

    def frame_loss(self, frames: Tensor, labels: Tensor, l1_weight: float) -> Tensor:
        """The loss of predicted frames, each of which is compared with the next one; `labels` are whole videos."""
        layout = self.layout(labels.shape[1])
        _check_shapes(layout.cut(labels), frames, labels)
        target = labels[:, layout.start + 1 : layout.stop + 1].to(frames.device).float()
        difference = frames[:, : target.shape[1]].float() - target
        sums = self.processes.sum(torch.stack([difference.square().sum(), difference.abs().sum()]))
        squared, absolute = (sums / labels[:, 1:].numel()).unbind()
        return (1 - l1_weight) * squared + l1_weight * absolute


def _check_shapes(held: Tensor, outputs: Tensor, labels: Tensor) -> None:
    if held.shape != outputs.shape:
        raise ValueError(
            f"`labels` must be the labels of whole rows: the outputs of this process have the shape "
            f"{tuple(outputs.shape)}, which does not fit `labels` of the shape {tuple(labels.shape)}."
        )


def split_sequences(model: Any, mesh: Any = None, *, cuts: Callable[[int], Sequence[int]] | None = None) -> Any:
    """Let the processes of a group share the positions of each sequence that the model reads.

    Every process calls the model with the same whole batch: ids, masks, documents of packed rows and labels, which are
    small. Each computes the hidden states of its own positions, a slice of the rows, and returns their logits
    (`join_positions` returns those of all positions); pooled logits, losses and τ are those of the whole rows, the same
    in each process. Gradients of parameters are complete after they have been averaged over all processes, as
    `DistributedDataParallel` and `fully_shard` do.

    Args:
        model: A model of hf_ssm; changed in place.
        mesh: A `DeviceMesh` of one dimension (`mesh["cp"]`) or a process group; default: all processes.
        cuts: Maps L to the number of positions of each process; default: as equal as possible.

    Returns:
        The model; `join_sequences` ends the sharing.

    Raises:
        TypeError: Not a model of hf_ssm; no mesh or process group.
        ValueError: A mesh of several dimensions; there are no processes.

    Communication: numbers that a process sends in a layer and a training step, of which 1 of R + 1 parts in the forward
    pass, for B rows and D channels:

    - scans (S4, S5, ConvS5, Mamba, Mamba-2, without Sobolev filter): `(R + 1) (B S + P)` for each direction, with S
      numbers of a state (D N of Mamba) and P of the product of its decays (B D N of Mamba); independent of L;
    - short convolutions with k taps: `(R + 1) B (k - 1) D`, independent of L;
    - long convolutions (Hyena, Sobolev filters): `4 B L D / R` for each group of channels;
    - τ and rescaling: `(R + 1) B L D / R` for the input of an operator, and for Δ, B and C of selective scans. Both
      strands and packed documents, which are rows of their own: the same once in a step, with `rc_swap` in each layer.
    """
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(
                f"`mesh` has the dimensions {mesh.mesh_dim_names}: give only the dimension of the sequences, "
                "such as mesh['cp']."
            )
        mesh = mesh.get_group()
    if mesh is None and not dist.is_initialized():
        raise ValueError(
            "There are no processes to share sequences: call `torch.distributed.init_process_group()` in each of the "
            "processes that `torchrun` starts."
        )
    group = dist.group.WORLD if mesh is None else mesh
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"`mesh` must be a DeviceMesh or a process group with this process, got {type(mesh).__name__}.")
    backbone = backbone_of(model)
    backbone.sharing = SequenceSharing(group, cuts)
    return model


def join_sequences(model: Any) -> Any:
    """End the sharing of `split_sequences`: each process reads whole sequences again, for `generate` among others."""
    backbone_of(model).sharing = None
    return model


def backbone_of(model: Any) -> SSMModel:
    """The backbone of a model, also inside the wrappers of other libraries.

    Raises:
        TypeError: There is none.
    """
    check_model(model)
    backbone = next((module for module in model.modules() if isinstance(module, SSMModel)), None)
    if backbone is None:
        raise TypeError(f"`model` must be a model of hf_ssm, got {type(model).__name__}.")
    return backbone


def join_positions(model: Any, values: Tensor) -> Tensor:
    """The outputs of the last call of a model whose sequences are shared, for all positions, with gradients.

    Args:
        model: The model; all processes of the group call the function.
        values: The positions of this process, `(B, l, ...)`.

    Returns:
        `(B, L, ...)`.
    """
    return backbone_of(model).sharing.join(values)


def _numbers_of(documents: Documents) -> Tensor:
    """The number of the document at each position, `(B, L)`, on the CPU; -1 where there is none."""
    numbers = torch.full((documents.shape[0] * documents.shape[1],), -1)
    numbers[documents.places] = torch.arange(len(documents)).repeat_interleave(documents.lengths)
    return numbers.view(documents.shape)


def _weights(numbers: Tensor, count: int, how: str) -> Tensor:
    """The weight of each position in the vector of its sequence, `(B, L)`, float64.

    Args:
        numbers: Number of the sequence at each position, `(B, L)`, -1 where there is none.
        count: Number of sequences.
        how: `"mean"`, `"first"` or `"last"`.
    """
    is_token = numbers >= 0
    # Positions of no sequence have an entry of their own: their number is not read back from a GPU.
    entries = torch.where(is_token, numbers, count)
    if how == "mean":
        ones = torch.ones(numbers.numel(), dtype=torch.float64, device=numbers.device)
        sizes = ones.new_zeros(count + 1).index_add(0, entries.flatten(), ones)
        return torch.where(is_token, 1 / sizes[entries], 0.0)
    places = torch.arange(numbers.numel(), device=numbers.device).view(numbers.shape)
    signed = places if how == "last" else -places
    best = signed.new_full((count + 1,), -numbers.numel() - 1)
    best = best.scatter_reduce(0, entries.flatten(), signed.flatten(), "amax")
    return (is_token & (best[entries] == signed)).double()
