"""Values of masked variants of a sequence by full forward passes, for any model.

Legend: `R` positions that the model reads, `V` variants of the sequence, `B` of them in one batch, `D` size of an
embedding, `K` classes or tokens.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.models.base.pretrained import SSMPreTrainedModel
from hf_ssm.models.views.strands import embed_strands
from hf_ssm.probes.targets import ProbedSequence
from hf_ssm.utils.evaluation import evaluating

__all__ = ["Evaluator", "probing"]

# Largest number of logits in one batch, which bounds the memory for large vocabularies.
_MOST_LOGITS = 2**27


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients of the weights, on whole sequences in each process; all is restored."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    try:
        for weight in trained:
            weight.requires_grad_(False)
        with evaluating(model):
            yield
    finally:
        for weight in trained:
            weight.requires_grad_(True)


class Evaluator:
    """Computes the target of masked variants of one sequence in batches; to be used within `probing(model)`.

    Args:
        model: As in `MaskingProbe`.
        sequence: The sequence and its target.
        mask_id: Id that replaces masked tokens; `None` for a zero embedding.
        max_tokens: Largest number of tokens per batch. A batch has at least one variant.

    Attributes:
        evaluations: Number of variants evaluated so far.
        tokens: Number of tokens processed by the model so far; a backward pass counts as two passes.
    """

    def __init__(self, model: Any, sequence: ProbedSequence, mask_id: int | None, max_tokens: int):
        self.model = model
        self.mask_id = mask_id
        self.max_tokens = max_tokens
        self.target = sequence.target
        self.device = model.get_input_embeddings().weight.device
        self.read = sequence.read.to(self.device)
        self.hidden = sequence.hidden.to(self.device)
        self.candidates = sequence.candidates
        self.evaluations = 0
        self.tokens = 0
        self._options = _options(model, self.target.read_at)

    @property
    def length(self) -> int:
        """R."""
        return len(self.read)

    def start_logits(self) -> Tensor:
        """Logits of the unmasked sequence, `(1, K)`; for a callable target as the model returns them."""
        return self._logits(self.hidden.unsqueeze(0))

    def masked(self, positions: Sequence[int]) -> Tensor:
        """True at `positions` and at positions masked from the start, `(R,)`."""
        masked = self.hidden.clone()
        masked[torch.tensor(positions, dtype=torch.long, device=self.device)] = True
        return masked

    def one(self, masked: Tensor) -> float:
        """The value of one variant, `(R,)`."""
        return self._values(masked.unsqueeze(0)).item()

    def values_if_masked(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        """The values with each one of the candidates masked too, `(V,)`, float64, on the CPU."""
        return torch.cat([self._values(rows) for rows in self._variants(masked, candidates)])

    def along(self, masked: Tensor, order: Sequence[int]) -> Tensor:
        """The values while the positions of `order` are masked one after the other, `(V,)`, float64, on the CPU."""
        return torch.cat([self._values(rows) for rows in self._variants(masked, order, cumulative=True)])

    def _variants(self, masked: Tensor, positions: Sequence[int], cumulative: bool = False) -> Iterator[Tensor]:
        """Batches `(B, R)` of variants with each one of the positions masked, or with each one and all before it."""
        for places in torch.tensor(positions, device=masked.device).split(self.rows_per_batch(self.length)):
            order = torch.arange(len(places), device=masked.device)
            is_masked = order <= order.unsqueeze(1) if cumulative else order == order.unsqueeze(1)
            rows = masked.repeat(len(places), 1)
            rows[:, places] |= is_masked
            yield rows
            masked = rows[-1] if cumulative else masked

    def scores(self, masked: Tensor) -> Tensor:
        """First-order change of the log-probability when each one of the tokens is masked, `(R,)`, float64."""
        with torch.enable_grad():
            embedded = self.embedded(masked).requires_grad_()
            (gradient,) = torch.autograd.grad(self.log_values(embedded, True).sum(), embedded)
        mask = torch.zeros_like(embedded[0, :1])
        if self.mask_id is not None:
            mask = self.embedded_ids(torch.tensor([self.mask_id], device=self.device))
        return ((mask - embedded[0].detach()) * gradient[0]).sum(-1).double().cpu()

    def embedded(self, masked: Tensor) -> Tensor:
        """Embeddings of one variant `(R,)`, `(1, R, D)`, without a gradient."""
        ids = self.read if self.mask_id is None else torch.where(masked, self.mask_id, self.read)
        embedded = self.embedded_ids(ids.unsqueeze(0)).detach()
        return embedded if self.mask_id is not None else embedded.masked_fill(masked[None, :, None], 0)

    def log_values(self, embedded: Tensor, has_gradient: bool) -> Tensor:
        """Differentiable log-probabilities, or values of a callable target, of embeddings `(B, R, D)`, `(B,)`.

        Args:
            embedded: The embeddings.
            has_gradient: Whether a backward pass follows, for the count of tokens.
        """
        self.tokens += embedded.shape[:2].numel() * (3 if has_gradient else 1)
        logits = self.model(inputs_embeds=embedded, **self._arguments(len(embedded))).logits
        return self.target.log_value(self._selected(logits))

    def _inputs(self, masked: Tensor, first: int = 0) -> dict[str, Tensor]:
        """Model inputs of variants `(B, P)` of the first P positions, from position `first` on, by argument name."""
        read, masked = self.read[first : masked.shape[1]], masked[:, first:]
        if self.mask_id is not None:
            return {"input_ids": torch.where(masked, self.mask_id, read)}
        embedded = self.embedded_ids(read).unsqueeze(0)
        return {"inputs_embeds": embedded.expand(len(masked), -1, -1).masked_fill(masked.unsqueeze(-1), 0)}

    def embedded_ids(self, ids: Tensor) -> Tensor:
        """Embeddings of ids as `inputs_embeds`: those of both strands where the model reads both."""
        embedding, config = self.model.get_input_embeddings(), self.model.config
        if isinstance(self.model, SSMPreTrainedModel) and config.reads_both_strands(training=False):
            return embed_strands(embedding, ids, config)
        embedded: Tensor = embedding(ids)
        return embedded

    def _arguments(self, rows: int) -> dict[str, Any]:
        options = dict(self._options)
        if options.pop("attention_mask", False):
            options["attention_mask"] = torch.ones(rows, self.length, dtype=torch.long, device=self.device)
        return options

    def _values(self, masked: Tensor) -> Tensor:
        """The values of variants `(B, R)`, `(B,)`."""
        self.evaluations += len(masked)
        return self.target.value(self._logits(masked))

    def _logits(self, masked: Tensor) -> Tensor:
        self.tokens += masked.numel()
        return self._selected(self.model(**self._inputs(masked), **self._arguments(len(masked))).logits)

    def _selected(self, logits: Tensor) -> Tensor:
        """The logits at the position of the target."""
        if self.target.read_at is None:
            return logits
        # With `logits_to_keep`, the model returns that position only.
        return logits[:, 0 if logits.shape[1] == 1 else self.target.read_at]

    def rows_per_batch(self, length: int) -> int:
        """Number of variants of that length in a batch."""
        if _needs_single_rows(self.model):
            return 1
        rows = self.max_tokens // length
        if self.target.read_at is not None and "logits_to_keep" not in self._options:
            vocab_size = getattr(self.model.config, "vocab_size", 1) or 1
            rows = min(rows, _MOST_LOGITS // (length * max(vocab_size, 1)))
        return max(1, rows)


def _options(model: Any, read_at: int | None) -> dict[str, Any]:
    """Arguments of `model.forward` that avoid unneeded work; "attention_mask" marks that one is to be passed."""
    accepted = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    options: dict[str, Any] = {"return_dict": True} if takes_any or "return_dict" in accepted else {}
    if "use_cache" in accepted:
        options["use_cache"] = False
    if read_at is not None and "logits_to_keep" in accepted:
        options["logits_to_keep"] = torch.tensor([read_at])
    if not isinstance(model, SSMPreTrainedModel) and "attention_mask" in accepted:
        # Without one, some models of transformers infer a mask from the ids, or warn.
        options["attention_mask"] = True
    return options


def _needs_single_rows(model: Any) -> bool:
    """Whether the model refuses batches: decoders of transformers that classify, without a padding token."""
    if isinstance(model, SSMPreTrainedModel) or not type(model).__name__.endswith("ForSequenceClassification"):
        return False
    return getattr(model.config, "pad_token_id", None) is None
