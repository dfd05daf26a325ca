"""DNA as tokens, with one token for each base."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hf_ssm.data.records import Record
from hf_ssm.inference.likelihoods import without_end
from hf_ssm.inference.model import Encoded, SequenceModel

__all__ = ["BASES", "PAIRS", "PAIRS_WITH_N", "BaseTokens", "base_ids", "base_tokens", "ids_of_letters", "other_bases"]

BASES = "ACGT"
PAIRS = "AACAGATCCGCTGGTTA"
"""A text with all pairs of bases, in which every merge of a tokenizer shows."""
PAIRS_WITH_N = PAIRS + "NNCNGNTNA"
"""The same with N as a fifth letter."""


@dataclass(frozen=True)
class BaseTokens:
    """The tokens of a text with one token for each letter.

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


def ids_of_letters(tokens: BaseTokens, text: str, letters: str, purpose: str, remedy: str) -> Tensor:
    """The id of each letter, which must be the same at all places of a text.

    Args:
        tokens: The tokens of the text.
        text: The letters.
        letters: The letters whose ids are returned; the text has each of them.
        purpose, remedy: As for `base_tokens`.

    Raises:
        ValueError: The token of a letter depends on its place, as in a vocabulary of word pieces.
    """
    pairs = list(zip(text, tokens.bases.tolist(), strict=True))
    ids = [{token for other, token in pairs if other == letter} for letter in letters]
    if any(len(of_letter) > 1 for of_letter in ids):
        raise ValueError(
            f"{purpose} needs a tokenizer with one token for each base, at each place of the sequence; {remedy}."
        )
    return torch.tensor([of_letter.pop() for of_letter in ids])


def base_ids(model: SequenceModel, keeps_case: bool, purpose: str, remedy: str) -> Tensor:
    """Ids of the four bases as capitals, and of those that replace lower-case letters: `(2, 4)`."""
    rows = []
    for letters, text in ((BASES, PAIRS), (BASES.lower(), PAIRS.lower()) if keeps_case else (BASES, PAIRS)):
        tokens = base_tokens(model, text, purpose, remedy)
        rows.append(ids_of_letters(tokens, text, letters, purpose, remedy))
    return torch.stack(rows)


def other_bases(token: Tensor, bases: Tensor) -> list[int]:
    """The bases that differ from a token; none if it is another letter."""
    present = (bases == token).nonzero().flatten().tolist()
    return [base for base in range(len(BASES)) if present and base != present[0]]
