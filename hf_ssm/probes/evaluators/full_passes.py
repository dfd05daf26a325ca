"""Values of masked variants of a sequence by full forward passes, for any model.

Legend: `R` positions that the model reads, `V` variants of the sequence, `K` fills of each, `B` of all of them in one
batch, `D` size of an embedding, `C` classes or tokens.
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
        fills: `(K, R)`, ids that replace masked tokens; `None` for a zero embedding.
        max_tokens: Largest number of tokens per batch. A batch has at least one variant.

    Attributes:
        draws: K.
        evaluations: Number of filled variants evaluated so far.
        tokens: Number of tokens processed by the model so far; a backward pass counts as two passes.
    """

    def __init__(self, model: Any, sequence: ProbedSequence, fills: Tensor | None, max_tokens: int):
        self.model = model
        self.sequence = sequence
        self.max_tokens = max_tokens
        self.target = sequence.target
        self.device = model.get_input_embeddings().weight.device
        self.read = sequence.read.to(self.device)
        self.hidden = sequence.hidden.to(self.device)
        self.redraw(fills)
        self.candidates = sequence.candidates
        self.evaluations = 0
        self.tokens = 0
        self._options = _options(model, self.target.read_at)

    def redraw(self, fills: Tensor | None) -> None:
        """Replace the fills `(K, R)`."""
        self.fills = None if fills is None else fills.to(self.device)
        self.draws = 1 if fills is None else len(fills)

    @property
    def length(self) -> int:
        """R."""
        return len(self.read)

    def start_logits(self) -> Tensor:
        """Logits of the unmasked sequence, `(1, C)`; for a callable target as the model returns them."""
        return self._logits(self.hidden.unsqueeze(0), self._filled(torch.tensor([0])))

    def start(self) -> Tensor:
        """The values of the unmasked sequence, `(K,)`."""
        return self.values(self.hidden.unsqueeze(0), None if self.hidden.any() else [0])[0].expand(self.draws)

    def answer(self) -> int | None:
        """The class or token that is predicted with all maskable tokens masked; `None` for a callable target."""
        if self.target.function is not None:
            return None
        masked = self.masked(self.candidates.tolist()).unsqueeze(0)
        fills = torch.arange(self.draws).split(self.rows_per_batch(self.length))
        rows = [self._logits(masked.expand(len(numbers), -1), self._filled(numbers)) for numbers in fills]
        return int(torch.cat(rows).double().softmax(-1).mean(0).argmax())

    def masked(self, positions: Sequence[int]) -> Tensor:
        """True at `positions` and at positions masked from the start, `(R,)`."""
        masked = self.hidden.clone()
        masked[torch.tensor(positions, dtype=torch.long, device=self.device)] = True
        return masked

    def values(self, masked: Tensor, draws: Sequence[int] | None = None, known: Tensor | None = None) -> Tensor:
        """The values of variants `(V, R)`, `(V, K)`, float64, on the CPU.

        Args:
            masked: True where a variant is masked.
            draws: Numbers of the fills; default: all.
            known: `(V, K)`, values that need no forward pass, NaN for all others.
        """
        numbers = torch.tensor(range(self.draws) if draws is None else draws)
        values = torch.full((len(masked), len(numbers)), torch.nan, dtype=torch.float64) if known is None else known
        unknown = values.isnan().nonzero()
        for pairs in unknown.split(self.rows_per_batch(self.length)) if len(unknown) else ():
            rows, columns = pairs.T
            self.evaluations += len(rows)
            logits = self._logits(masked[rows.to(masked.device)], self._filled(numbers[columns]))
            values[rows, columns] = self.target.value(logits)
        return values

    def values_if_masked(
        self, masked: Tensor, candidates: Sequence[int], draws: Sequence[int] | None = None, now: Tensor | None = None
    ) -> Tensor:
        """The values with each one of the candidates masked too, `(V, K)`, float64, on the CPU.

        Args:
            masked: `(R,)`, true where the sequence is masked already.
            candidates: V positions.
            draws: Numbers of the fills; default: all.
            now: `(K,)`, the values with `masked`, which are also those of a candidate that its fill does not change.
        """
        found = []
        for rows, places in self._variants(masked, candidates):
            known = None
            if now is not None and self.fills is not None:
                numbers = list(range(self.draws) if draws is None else draws)
                same = (self.fills[numbers][:, places] == self.read[places]).T.cpu()
                known = torch.where(same, now[numbers], torch.nan)
            found.append(self.values(rows, draws, known))
        return torch.cat(found)

    def along(self, masked: Tensor, order: Sequence[int]) -> Tensor:
        """The values while the positions of `order` are masked one after the other, `(V, K)`, float64, on the CPU."""
        return torch.cat([self.values(rows) for rows, _ in self._variants(masked, order, cumulative=True)])

    def _variants(
        self, masked: Tensor, positions: Sequence[int], cumulative: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Variants `(V, R)` with each one of the positions `(V,)` masked, or with each one and all before it."""
        for places in torch.tensor(positions, device=masked.device).split(self.rows_per_batch(self.length)):
            order = torch.arange(len(places), device=masked.device)
            is_masked = order <= order.unsqueeze(1) if cumulative else order == order.unsqueeze(1)
            rows = masked.repeat(len(places), 1)
            rows[:, places] |= is_masked
            yield rows, places
            masked = rows[-1] if cumulative else masked

    def embedded(self, masked: Tensor) -> Tensor:
        """Embeddings of one variant `(R,)` with each of the fills, `(K, R, D)`, without a gradient."""
        ids = self.read.unsqueeze(0) if self.fills is None else torch.where(masked, self.fills, self.read)
        embedded = self.embedded_ids(ids).detach()
        return embedded if self.fills is not None else embedded.masked_fill(masked[None, :, None], 0)

    def log_values(self, embedded: Tensor) -> Tensor:
        """Differentiable log-probabilities, or values of a callable target, of embeddings `(B, R, D)`, `(B,)`.

        A backward pass follows, and counts as two passes.
        """
        self.tokens += embedded.shape[:2].numel() * 3
        logits = self.model(inputs_embeds=embedded, **self._arguments(len(embedded))).logits
        return self.target.log_value(self._selected(logits))

    def _filled(self, numbers: Tensor) -> Tensor | None:
        """The fills of these numbers, `(B, R)`."""
        return None if self.fills is None else self.fills[numbers.to(self.device)]

    def _inputs(self, masked: Tensor, fills: Tensor | None, first: int = 0) -> dict[str, Tensor]:
        """Model inputs of variants `(B, P)` of the first P positions, from position `first` on, by argument name."""
        stop = masked.shape[1]
        read, masked = self.read[first:stop], masked[:, first:]
        if fills is not None:
            return {"input_ids": torch.where(masked, fills[:, first:stop], read)}
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

    def _logits(self, masked: Tensor, fills: Tensor | None) -> Tensor:
        self.tokens += masked.numel()
        return self._selected(self.model(**self._inputs(masked, fills), **self._arguments(len(masked))).logits)

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
