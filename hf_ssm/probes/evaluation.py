"""What a model says of one sequence when more and more of its tokens are masked.

Legend: `R` positions that the model reads, `V` variants of the sequence, `B` of them in one batch, `D` hidden size.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hf_ssm.models.base.backbone import SSMPreTrainedModel
from hf_ssm.models.base.heads import SSMForCausalLM, SSMForMaskedLM
from hf_ssm.modules.long_convolution import LongConvolution
from hf_ssm.probes.targets import Subject
from hf_ssm.utils.evaluation import evaluating

__all__ = ["Evaluator", "probing"]

# Logits of one batch, in numbers: a large vocabulary fills the memory before the tokens do.
_MOST_LOGITS = 2**27


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradient of the weights, and kernels made once; afterwards all is as it was."""
    wanted = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in wanted:
        weight.requires_grad_(False)
    convolutions = [part for part in model.modules() if isinstance(part, LongConvolution)]
    for part in convolutions:
        # The weights stay, and some kernels take longer to make than all else does.
        part.__dict__["kernels"] = lru_cache(maxsize=4)(part.kernels)
    try:
        with evaluating(model):
            yield
    finally:
        for part in convolutions:
            part.__dict__.pop("kernels", None)
        for weight in wanted:
            weight.requires_grad_(True)


class Evaluator:
    """The target of one sequence, for as many masked variants of it as are asked for.

    Variants go through the model in batches of at most `max_tokens` tokens (but one whole variant at least). Use it
    within `probing(model)`.

    Args:
        model: As `MaskingProbe` takes it.
        subject: The sequence and its target.
        mask_id: What stands in the place of a masked token; `None` for a vector of zeros.
        max_tokens: Most tokens in a batch.

    Attributes:
        evaluations: Variants evaluated so far.
        tokens: Tokens that went through the model so far, a backward pass counted as two more passes.
    """

    def __init__(self, model: Any, subject: Subject, mask_id: int | None, max_tokens: int):
        self.model = model
        self.mask_id = mask_id
        self.max_tokens = max_tokens
        self.target = subject.target
        self.device = model.get_input_embeddings().weight.device
        self.read = subject.read.to(self.device)
        self.hidden = subject.hidden.to(self.device)
        self.candidates = subject.candidates
        self.evaluations = 0
        self.tokens = 0
        self._options = _options(model, self.target.read_at)

    @property
    def length(self) -> int:
        """R."""
        return len(self.read)

    def start_logits(self) -> Tensor:
        """Logits with nothing masked, `(1, K)` (for a callable as the model gives them)."""
        return self._logits(self.hidden.unsqueeze(0))

    def masked(self, positions: Sequence[int]) -> Tensor:
        """True where the mask stands once these positions are masked, `(R,)`."""
        masked = self.hidden.clone()
        masked[torch.tensor(positions, dtype=torch.long, device=self.device)] = True
        return masked

    def one(self, masked: Tensor) -> float:
        """The value of a single variant, `(R,)`."""
        return self._values(masked.unsqueeze(0)).item()

    def after(self, masked: Tensor, candidates: Sequence[int]) -> Tensor:
        """The values when each of the candidates alone is masked too, `(V,)`, float64, on the CPU."""
        parts = []
        for chunk in _chunks(candidates, self._rows(self.length)):
            rows = masked.repeat(len(chunk), 1)
            rows[torch.arange(len(chunk)), torch.tensor(chunk)] = True
            parts.append(self._values(rows))
        return torch.cat(parts)

    def along(self, masked: Tensor, order: Sequence[int]) -> Tensor:
        """The values when the positions of `order` are masked one after the other, `(V,)`, float64, on the CPU."""
        parts = []
        for chunk in _chunks(order, self._rows(self.length)):
            places = torch.tensor(chunk, device=masked.device)
            rows = masked.repeat(len(chunk), 1)
            # Row k has the first k + 1 places masked.
            rows[:, places] |= torch.ones(len(chunk), len(chunk), dtype=torch.bool, device=masked.device).tril()
            parts.append(self._values(rows))
            masked = rows[-1]
        return torch.cat(parts)

    def scores(self, masked: Tensor) -> Tensor:
        """By how much the logarithm of the probability would rise, to first order, with each token masked, `(R,)`."""
        embedding = self.model.get_input_embeddings()
        ids = self._ids(masked)
        with torch.enable_grad():
            embedded = embedding(ids.unsqueeze(0)).detach()
            if self.mask_id is None:
                embedded = embedded.masked_fill(masked[None, :, None], 0)
            embedded.requires_grad_()
            logits = self._selected(self.model(inputs_embeds=embedded, **self._arguments(1)).logits)
            (gradient,) = torch.autograd.grad(self.target.log_value(logits).sum(), embedded)
        self.tokens += 3 * self.length
        mask = torch.zeros_like(embedded[0, :1])
        if self.mask_id is not None:
            mask = embedding(torch.tensor([self.mask_id], device=self.device))
        return ((mask - embedded[0].detach()) * gradient[0]).sum(-1).double().cpu()

    def _ids(self, masked: Tensor) -> Tensor:
        """What stands at each place, of one variant or of several."""
        if self.mask_id is None:
            return self.read.expand_as(masked)
        return torch.where(masked, self.mask_id, self.read)

    def _inputs(self, masked: Tensor, first: int = 0) -> dict[str, Tensor]:
        """The inputs of variants `(B, R)` from a position on, by their name."""
        masked = masked[:, first:]
        if self.mask_id is not None:
            return {"input_ids": torch.where(masked, self.mask_id, self.read[first:])}
        embedded = self.model.get_input_embeddings()(self.read[first:]).unsqueeze(0)
        return {"inputs_embeds": embedded.expand(len(masked), -1, -1).masked_fill(masked.unsqueeze(-1), 0)}

    def _arguments(self, rows: int) -> dict[str, Any]:
        options = dict(self._options)
        if options.pop("attention_mask", False):
            options["attention_mask"] = torch.ones(rows, self.length, dtype=torch.long, device=self.device)
        return options

    def _values(self, masked: Tensor) -> Tensor:
        """The values of variants, `(B, R)` to `(B,)`."""
        self.evaluations += len(masked)
        return self.target.value(self._logits(masked)).cpu()

    def _logits(self, masked: Tensor) -> Tensor:
        self.tokens += masked.numel()
        return self._selected(self.model(**self._inputs(masked), **self._arguments(len(masked))).logits)

    def _selected(self, logits: Tensor) -> Tensor:
        """Those at the position of the target."""
        if self.target.read_at is None:
            return logits
        # Where the model was asked for one position alone, it gave one.
        return logits[:, 0 if logits.shape[1] == 1 else self.target.read_at]

    def _rows(self, length: int) -> int:
        """How many variants of that length go into a batch."""
        config = self.model.config
        if _wants_single_rows(self.model):
            return 1
        rows = self.max_tokens // length
        if self.target.read_at is not None and "logits_to_keep" not in self._options:
            rows = min(rows, _MOST_LOGITS // (length * max(getattr(config, "vocab_size", 1) or 1, 1)))
        return max(1, rows)


def _chunks(positions: Sequence[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(positions), size):
        yield list(positions[first : first + size])


def _options(model: Any, read_at: int | None) -> dict[str, Any]:
    """Arguments that spare the model work, where it knows them."""
    ours = isinstance(model, SSMPreTrainedModel)
    known = inspect.signature(model.forward).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    options: dict[str, Any] = {"return_dict": True} if takes_any or "return_dict" in known else {}
    if "use_cache" in known:
        options["use_cache"] = False
    if read_at is not None and isinstance(model, (SSMForCausalLM, SSMForMaskedLM)):
        options["logits_to_keep"] = torch.tensor([read_at])
    elif read_at is not None and "logits_to_keep" in known and type(model).__name__.endswith(("CausalLM", "HeadModel")):
        # The logits of a causal model are read at its last position.
        options["logits_to_keep"] = 1
    if not ours and "attention_mask" in known:
        # Models of others take a mask from the ids, or warn, where they are not told that all are tokens.
        options["attention_mask"] = True
    return options


def _wants_single_rows(model: Any) -> bool:
    """Whether the model refuses batches: decoders that classify, where no token is said to be padding."""
    if isinstance(model, SSMPreTrainedModel) or not type(model).__name__.endswith("ForSequenceClassification"):
        return False
    return getattr(model.config, "pad_token_id", None) is None
