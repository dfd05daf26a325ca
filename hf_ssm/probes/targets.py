"""What is probed: the probability of a class or of a token, or any number of the logits.

Legend: `B` batch, `L` length of a sequence, `R` positions of it that the model reads, `K` classes or tokens.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hf_ssm.models.base.heads import (
    SSMForCausalLM,
    SSMForMaskedLM,
    SSMForSequenceClassification,
    SSMForTokenClassification,
)

__all__ = ["Start", "Subject", "Target", "head_of", "make_subject"]

# How classes of transformers end that predict what we can read.
_ENDINGS = {
    "ForCausalLM": "causal",
    "LMHeadModel": "causal",
    "ForMaskedLM": "masked",
    "ForSequenceClassification": "class",
    "ForTokenClassification": "tokens",
}
_OURS: dict[type, str] = {
    SSMForCausalLM: "causal",
    SSMForMaskedLM: "masked",
    SSMForSequenceClassification: "class",
    SSMForTokenClassification: "tokens",
}


@dataclass(frozen=True)
class Start:
    """What a model says of a sequence with nothing masked.

    Attributes:
        probability: Of the target; of a callable its number.
        predicted: The class or token with the highest probability; `None` for a callable.
        right: Whether that is the target; always, for a callable.
    """

    probability: float
    predicted: int | None
    right: bool


@dataclass(frozen=True)
class Target:
    """A number that is read from the logits of a batch.

    Attributes:
        kind: "class", "token" or "callable".
        index: The class, or the id of the token; `None` for a callable, and for a class that is yet to be predicted.
        position: Of the token that is predicted or classified; `None` for a class of the whole sequence.
        read_at: At which position of what the model reads the logits are taken; `None`: logits are not by position.
        function: Logits to `(B,)`, for a callable.
    """

    kind: str
    index: int | None = None
    position: int | None = None
    read_at: int | None = None
    function: Callable[[Tensor], Tensor] | None = None

    def describe(self) -> dict[str, Any]:
        """The same in words that JSON can hold."""
        if self.function is not None:
            return {"kind": "callable", "name": getattr(self.function, "__qualname__", type(self.function).__name__)}
        place = {} if self.position is None else {"position": self.position}
        return {"kind": self.kind, **place, "token" if self.kind == "token" else "label": self.index}

    def value(self, logits: Tensor) -> Tensor:
        """The probability, or what the callable says, `(B,)`, of logits `(B, K)` (a callable: as the model gives them).

        Probabilities are those of the softmax in float64.

        Raises:
            ValueError: A callable gives another shape, or numbers that are not finite.
        """
        if self.function is not None:
            return self._called(logits)
        values = _precise(logits).softmax(-1)[:, self.index]
        if values.isnan().any():
            raise ValueError("the model gives NaN: its weights hold NaN, or its precision is too low for it.")
        return values

    def log_value(self, logits: Tensor) -> Tensor:
        """The logarithm of the probability, `(B,)`, through which gradients flow; of a callable its number itself."""
        if self.function is not None:
            return self._called(logits)
        return _precise(logits).log_softmax(-1)[:, self.index]

    def _called(self, logits: Tensor) -> Tensor:
        assert self.function is not None
        values = self.function(logits)
        if not isinstance(values, Tensor) or values.shape != logits.shape[:1]:
            found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"`target` must return a tensor with one number for each sequence, {tuple(logits.shape[:1])}, of "
                f"logits {tuple(logits.shape)}; it returned {found}."
            )
        if not torch.isfinite(values).all():
            raise ValueError("`target` returned NaN or an infinite number: return finite ones.")
        return _precise(values)

    def start(self, logits: Tensor) -> Start:
        """What logits `(1, K)` with nothing masked say; a class that is yet to be predicted is right."""
        target = self.predicted(logits)
        value = target.value(logits).item()
        if self.function is not None:
            return Start(value, None, True)
        best = int(logits[0].argmax())
        return Start(value, best, best == target.index)

    def predicted(self, logits: Tensor) -> "Target":
        """The target with the class that logits `(1, K)` predict, where none is named."""
        if self.kind != "class" or self.index is not None:
            return self
        return replace(self, index=int(logits[0].argmax()))


@dataclass(frozen=True)
class Subject:
    """One sequence with what is asked of it.

    Attributes:
        input_ids: `(L,)`, as given.
        read: `(R,)`, what the model reads when nothing is masked.
        hidden: `(R,)`, true where the mask stands from the start.
        candidates: `(M,)`, the positions that can be masked, ascending.
        target: What is read.
    """

    input_ids: Tensor
    read: Tensor
    hidden: Tensor
    candidates: Tensor
    target: Target


def _precise(logits: Tensor) -> Tensor:
    # Not every accelerator knows double precision.
    return (logits.cpu() if logits.device.type == "mps" else logits).double()


def head_of(model: Any) -> str | None:
    """What a model predicts: "class", "tokens" (a class of each), "causal", "masked"; `None` where that is not known.

    Raises:
        ValueError: The model has an encoder and a decoder.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(f"{type(model).__name__} has an encoder and a decoder: a probe takes models of one sequence.")
    for head, name in _OURS.items():
        if isinstance(model, head):
            return name
    names = [cls.__name__ for cls in type(model).__mro__]
    return next((kind for name in names for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_labels_exclude_each_other(config: Any) -> None:
    """Refuse heads whose logits have no softmax."""
    problem, labels = getattr(config, "problem_type", None), getattr(config, "num_labels", 0)
    if problem in ("regression", "multi_label_classification") or labels < 2:
        raise ValueError(
            f"The model has `num_labels`={labels} and `problem_type`={problem!r}, so that its logits are no "
            "probabilities of classes: give a callable of the logits as `target`."
        )


def make_subject(
    head: str | None,
    config: Any,
    ids: Tensor,
    target: Any,
    *,
    mask_id: int | None,
    own_mask_id: int | None,
    special: Collection[int],
    where: str = "",
) -> Subject:
    """Check what is asked of one sequence, and find out which of its tokens can be masked.

    Args:
        head: What `head_of` says.
        config: Of the model.
        ids: `(L,)`.
        target: As `MaskingProbe.run` takes it, for one sequence.
        mask_id: What is put in the place of a masked token; `None` for a vector of zeros.
        own_mask_id: The mask token that the model was trained with, if it has one; it stands in the place of a token
            that a masked head predicts.
        special: Ids that are never masked.
        where: Which sequence this is, for messages.

    Raises:
        ValueError: A target that does not fit the head, or is out of range; nothing can be masked.
    """
    found, read, hidden = _target(head, config, ids, target, where), ids, []
    position = found.position
    if position is not None and head == "causal":
        # A causal model says what it knows of a token before it reads it, and of what follows it knows nothing.
        read = ids[:position]
    elif position is not None and head == "masked":
        read = ids.clone()
        if own_mask_id is not None:
            read[position] = own_mask_id
        elif mask_id is not None:
            read[position] = mask_id
        else:
            hidden = [position]
    candidates = [
        place
        for place, token in enumerate(read.tolist())
        if token not in special and token != mask_id and not (head == "masked" and place == position)
    ]
    if not candidates:
        raise ValueError(
            f"{where}nothing can be masked: all {len(read)} tokens that the prediction rests on are special tokens or "
            "the mask already."
        )
    concealed = torch.zeros(len(read), dtype=torch.bool)
    concealed[hidden] = True
    return Subject(ids, read, concealed, torch.tensor(candidates), found)


def _target(head: str | None, config: Any, ids: Tensor, target: Any, where: str) -> Target:
    if callable(target):
        return Target("callable", function=target)
    if head is None:
        raise ValueError(
            "The model is no classifier, causal or masked language model that the probe knows: give a callable of its "
            "logits as `target`."
        )
    if head == "class":
        return _class(config, target, where)
    if head == "tokens":
        position, label = target if isinstance(target, (tuple, list)) and len(target) == 2 else (target, None)
        position = _position(position, ids, 0, where, "the position of a token, or a pair of position and class")
        return replace(_class(config, label, where), position=position, read_at=position)
    position = _position(target, ids, 1 if head == "causal" else 0, where, "the position of a token")
    return Target("token", int(ids[position]), position, position - 1 if head == "causal" else position)


def _class(config: Any, label: Any, where: str) -> Target:
    check_labels_exclude_each_other(config)
    if label is not None and not _is_int(label):
        raise ValueError(
            f"{where}`target`={label!r}: give the number of a class, None for the class that is predicted, 'label' for "
            "the column of a Dataset, or a callable of the logits."
        )
    if label is not None and not 0 <= label < config.num_labels:
        raise ValueError(f"{where}`target`={label}: the model has the classes 0 to {config.num_labels - 1}.")
    return Target("class", label)


def _position(position: Any, ids: Tensor, first: int, where: str, what: str) -> int:
    if not _is_int(position):
        raise ValueError(f"{where}`target`={position!r}: give {what}, an integer, or a callable of the logits.")
    if not first <= position < len(ids):
        why = " (the first token is predicted from nothing)" if first else ""
        raise ValueError(
            f"{where}`target`={position}: the sequence has {len(ids)} tokens, so give a position from {first} to "
            f"{len(ids) - 1}{why}."
        )
    return int(position)
