"""Builders of fast tokenizers that save as a plain `tokenizer.json`, which loads without this package.

The names are imported on first use: `transformers`' tokenizer base costs a third of a second, and nobody who
only wants a model should pay it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_ssm.tokenization.dna import DNA_TOKENS as DNA_TOKENS
    from hf_ssm.tokenization.dna import build_dna_tokenizer as build_dna_tokenizer
    from hf_ssm.tokenization.text import BYTE_SPECIAL_TOKENS as BYTE_SPECIAL_TOKENS
    from hf_ssm.tokenization.text import build_byte_tokenizer as build_byte_tokenizer
    from hf_ssm.tokenization.words import LISTOPS_WORDS as LISTOPS_WORDS
    from hf_ssm.tokenization.words import WORD_SPECIAL_TOKENS as WORD_SPECIAL_TOKENS
    from hf_ssm.tokenization.words import build_listops_tokenizer as build_listops_tokenizer
    from hf_ssm.tokenization.words import build_word_tokenizer as build_word_tokenizer
    from hf_ssm.tokenization.words import frequent_words as frequent_words

_MODULES = {
    "BYTE_SPECIAL_TOKENS": "text",
    "DNA_TOKENS": "dna",
    "LISTOPS_WORDS": "words",
    "WORD_SPECIAL_TOKENS": "words",
    "build_byte_tokenizer": "text",
    "build_dna_tokenizer": "dna",
    "build_listops_tokenizer": "words",
    "build_word_tokenizer": "words",
    "frequent_words": "words",
}
__all__ = [
    "BYTE_SPECIAL_TOKENS",
    "DNA_TOKENS",
    "LISTOPS_WORDS",
    "WORD_SPECIAL_TOKENS",
    "build_byte_tokenizer",
    "build_dna_tokenizer",
    "build_listops_tokenizer",
    "build_word_tokenizer",
    "frequent_words",
]


def __getattr__(name: str) -> Any:
    """Import the builder's module when one of its names is first asked for."""
    if name in _MODULES:
        return getattr(import_module(f"hf_ssm.tokenization.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
