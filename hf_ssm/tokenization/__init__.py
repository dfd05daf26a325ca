"""Builders of fast tokenizers that save as a plain `tokenizer.json`, which loads without this package.

The names are imported on first use: `transformers`' tokenizer base costs a third of a second, and nobody who
only wants a model should pay it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_ssm.tokenization.dna import DNA_TOKENS as DNA_TOKENS
    from hf_ssm.tokenization.dna import build_dna_tokenizer as build_dna_tokenizer
    from hf_ssm.tokenization.text import BYTE_SPECIAL_TOKENS as BYTE_SPECIAL_TOKENS
    from hf_ssm.tokenization.text import build_byte_tokenizer as build_byte_tokenizer

__all__ = ["BYTE_SPECIAL_TOKENS", "DNA_TOKENS", "build_byte_tokenizer", "build_dna_tokenizer"]


def __getattr__(name: str) -> Any:
    """Import the builder's module when one of its names is first asked for."""
    if name in ("DNA_TOKENS", "build_dna_tokenizer"):
        from hf_ssm.tokenization import dna

        return getattr(dna, name)
    if name in ("BYTE_SPECIAL_TOKENS", "build_byte_tokenizer"):
        from hf_ssm.tokenization import text

        return getattr(text, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
