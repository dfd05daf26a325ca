"""Token ids by a table, for tokenizers with one token for each letter."""

import json
import re
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

__all__ = ["LetterTable"]

_LETTER_CLASS = re.compile(r"\[[A-Za-z]+\]")
_CODES = 128


class LetterTable:
    """Encodes texts of ASCII letters as a tokenizer does that has one token for each letter.

    The tokenizers of DNA and of bytes are such. A look-up takes milliseconds for a million letters, the library of the
    tokenizers about a second.

    Args:
        ids: Token id of each ASCII code, `(128,)`; -1 for characters that the tokenizer has to read.
        first, last: Special tokens before and after the letters.
        truncation_side: The end at which a text is truncated.
    """

    def __init__(self, ids: np.ndarray, first: list[int], last: list[int], truncation_side: str):
        self._ids, self._side = ids, truncation_side
        self._first, self._last = np.array(first, dtype=np.int32), np.array(last, dtype=np.int32)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "LetterTable | None":
        """The table of a tokenizer; None for one that does not read each letter by itself."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or not _reads_single_letters(stored := json.loads(backend.to_str())):
            return None
        # Text that could begin a special token is left to the tokenizer.
        openings = {letter for token in stored["added_tokens"] for letter in _cases(token["content"][:1])}
        ids = np.full(_CODES, -1, dtype=np.int32)
        for code in range(_CODES):
            found = tokenizer(chr(code), add_special_tokens=False)["input_ids"]
            if len(found) == 1 and found[0] != tokenizer.unk_token_id and chr(code) not in openings:
                ids[code] = found[0]
        if not (ids >= 0).any():
            return None
        letter = int(np.flatnonzero(ids >= 0)[-1])
        framed = tokenizer(chr(letter))["input_ids"]
        place = framed.index(ids[letter])
        return cls(ids, framed[:place], framed[place + 1 :], tokenizer.truncation_side)

    def encode(self, text: str, limit: int) -> tuple[np.ndarray, bool] | None:
        """Token ids `(L,)` of a text, at most `limit`, and whether it was truncated; None for other characters."""
        room = limit - len(self._first) - len(self._last)
        if not text.isascii() or room < 1:
            return None
        ids = self._ids[np.frombuffer(text.encode(), dtype=np.uint8)]
        if not len(ids) or ids.min() < 0:
            return None
        is_cut = len(ids) > room
        if is_cut:
            ids = ids[-room:] if self._side == "left" else ids[:room]
        return np.concatenate([self._first, ids, self._last]), is_cut


def _cases(letter: str) -> set[str]:
    return {letter, letter.lower(), letter.upper()}


def _reads_single_letters(stored: dict[str, Any]) -> bool:
    """Whether the parts of a tokenizer, as in its `tokenizer.json`, treat each letter by itself."""
    model, post = stored["model"], stored["post_processor"]
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
    return (
        model["type"] == "BPE"
        and not model["merges"]
        and not any(model.get(option) for option in options)
        and (post is None or post["type"] == "TemplateProcessing")
        and _keeps_places(stored["normalizer"])
        and _splits_at_white_space(stored["pre_tokenizer"])
    )


def _keeps_places(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None or normalizer["type"] == "Lowercase":
        return True
    if normalizer["type"] == "Sequence":
        return all(map(_keeps_places, normalizer["normalizers"]))
    if normalizer["type"] != "Replace":
        return False
    pattern = normalizer["pattern"]
    return len(pattern.get("String", "")) == 1 or bool(_LETTER_CLASS.fullmatch(pattern.get("Regex", "")))


def _splits_at_white_space(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether a text without white space stays whole."""
    if pre_tokenizer is None or pre_tokenizer["type"] == "WhitespaceSplit":
        return True
    is_of_bytes = pre_tokenizer["type"] == "ByteLevel"
    return is_of_bytes and not (pre_tokenizer["add_prefix_space"] or pre_tokenizer["use_regex"])
