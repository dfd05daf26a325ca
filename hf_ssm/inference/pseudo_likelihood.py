"""Log-probabilities of the tokens of a text under a masked language model, whose sums are pseudo-log-likelihoods.

Legend: `L` tokens of a text, `T` those without special tokens, `B` texts of a batch, `V` vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hf_ssm.inference.likelihoods import log_probs_of
from hf_ssm.inference.model import Encoded, SequenceModel

__all__ = ["mask_token_of", "masked_log_probs", "unmasked_log_probs"]


def mask_token_of(model: SequenceModel) -> int:
    """The id of the mask token.

    Raises:
        ValueError: The tokenizer has none.
    """
    mask = model.tokenizer.mask_token_id
    if mask is None:
        raise ValueError(
            "this measure of a masked language model needs a tokenizer with a mask token: give another tokenizer."
        )
    return int(mask)


def masked_log_probs(model: SequenceModel, texts: Sequence[Encoded]) -> list[Tensor]:
    """Log-probability of each token where it alone is masked, given all others.

    The sum is the pseudo-log-likelihood (PLL) of Salazar et al. 2020, "Masked Language Model Scoring", equation 1. Each
    text is read as often as it has tokens.

    Args:
        model: A masked language model and its tokenizer.
        texts: The texts. Special tokens are neither masked nor scored.

    Returns:
        `(T,)` for each text, float64, on the CPU.
    """
    mask = mask_token_of(model)
    log_probs = [torch.zeros(int((~text.special).sum()), dtype=torch.double) for text in texts]
    for copies in _batches(_places(texts), texts, model.max_tokens_per_batch):
        masked = [_with_mask(texts[number], place, mask) for number, _, place in copies]
        for batch in model.run(masked):
            chosen = [copies[row] for row in batch.rows]
            logits = batch.outputs.logits
            places = torch.tensor([place for _, _, place in chosen], device=logits.device)
            ids = torch.stack([texts[number].ids[place] for number, _, place in chosen]).to(logits.device)
            values = log_probs_of(logits[torch.arange(len(chosen), device=logits.device), places], ids).cpu()
            for (number, rank, _), value in zip(chosen, values, strict=True):
                log_probs[number][rank] = value
    return log_probs


def unmasked_log_probs(model: SequenceModel, texts: Sequence[Encoded]) -> list[Tensor]:
    """Log-probability of each token in one pass over the text in which nothing is masked.

    The model sees the token that it predicts, so that the values are larger than those of `masked_log_probs`; Huebner
    et al. 2021 (BabyBERTa) score sentences by their sum. This is not the "one fell swoop" estimate of Kantroo et al.
    2024, for which another network is trained.

    Args:
        model: A masked language model and its tokenizer.
        texts: The texts. Special tokens are not scored.

    Returns:
        `(T,)` for each text, float64, on the CPU.
    """
    log_probs = [torch.zeros(0)] * len(texts)
    for batch in model.run(texts):
        for row, logits in zip(batch.rows, batch.outputs.logits, strict=True):
            places = (~texts[row].special).nonzero().squeeze(1).to(logits.device)
            log_probs[row] = log_probs_of(logits[places], texts[row].ids.to(logits.device)[places]).cpu()
    return log_probs


_Copy = tuple[int, int, int]
"""A text with one masked token: number of the text, number of the token among those not special, its place."""


def _places(texts: Sequence[Encoded]) -> Iterator[_Copy]:
    for number, text in enumerate(texts):
        for rank, place in enumerate((~text.special).nonzero().squeeze(1).tolist()):
            yield number, rank, place


def _batches(copies: Iterator[_Copy], texts: Sequence[Encoded], limit: int) -> Iterator[list[_Copy]]:
    """Consecutive copies of at most `limit` tokens, padding included, so that not all exist at once."""
    batch, longest = list[_Copy](), 0
    for copy in copies:
        length = len(texts[copy[0]].ids)
        longest = max(longest, length)
        if batch and (len(batch) + 1) * longest > limit:
            yield batch
            batch, longest = [], length
        batch.append(copy)
    if batch:
        yield batch


def _with_mask(text: Encoded, place: int, mask: int) -> Encoded:
    ids = text.ids.clone()
    ids[place] = mask
    return replace(text, ids=ids)
