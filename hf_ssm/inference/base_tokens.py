"""Texts of DNA as tokens, of which each stands for one base."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hf_ssm.data.records import Record
from hf_ssm.inference.likelihoods import without_end
from hf_ssm.inference.model import Encoded, SequenceModel

__all__ = ["BASES", "BaseTokens", "base_ids", "base_tokens"]

BASES = "ACGT"


@dataclass(frozen=True)
class BaseTokens:
    """The tokens of a text, of which each letter has one.

    Attributes:
        encoded: The tokens, with special ones.
        before: Number of special tokens before the letters.
        is_unknown: Whether each letter is ambiguous or unknown to the tokenizer.
    """

    encoded: Encoded
    before: int
    is_unknown: np.ndarray

    @property
    def bases(self) -> Tensor:
        """The ids of the letters."""
        return self.encoded.ids[self.before : self.before + len(self.is_unknown)]


def base_tokens(model: SequenceModel, text: str, purpose: str, remedy: str) -> BaseTokens:
    """A text as tokens, one for each letter.

    Args:
        model: The model and its tokenizer.
        text: The letters.
        purpose: What needs such tokens, for the error message.
        remedy: What to do with another tokenizer.

    Raises:
        ValueError: The tokenizer joins letters.
    """
    record = Record(text, "the sequence")
    (encoded,) = model.encode([record], refuse_unknown=False)
    stop = len(without_end(encoded))
    before = stop - len(text)
    if before < 0 or not torch.equal(encoded.letters[before:stop, 0], torch.arange(len(text))):
        raise ValueError(f"{purpose} needs a tokenizer with one token for each base; {remedy}.")
    return BaseTokens(encoded, before, model.unknown_letters(record, encoded))


def base_ids(model: SequenceModel, keeps_case: bool, purpose: str, remedy: str) -> Tensor:
    """Ids of the four bases as capitals, and of those that replace lower-case letters: `(2, 4)`."""
    cases = (BASES, BASES.lower() if keeps_case else BASES)
    return torch.stack(
        [torch.cat([base_tokens(model, base, purpose, remedy).bases for base in case]) for case in cases]
    )
