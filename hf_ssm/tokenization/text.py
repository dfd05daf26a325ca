"""A fast tokenizer of UTF-8 bytes: every text has a code, and every code of a text gives it back exactly."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_ssm.tokenization._common import (
    check_arguments,
    register_special_tokens,
    template,
    wrap,
)

BYTE_SPECIAL_TOKENS: dict[str, int] = {
    "[PAD]": 256,
    "[BOS]": 257,
    "[EOS]": 258,
    "[MASK]": 259,
    "[UNK]": 260,
    "[CLS]": 261,
    "[SEP]": 262,
}
"""Special tokens and their ids; ids 0 to 255 are the byte values themselves."""


def build_byte_tokenizer(
    model_max_length: int | None = None,
    padding_side: str = "right",
    add_eos: bool = False,
    special_tokens_in_text: bool = False,
) -> PreTrainedTokenizerFast:
    """Build the byte-level tokenizer.

    The id of a byte of the text's UTF-8 form is its value, 0 to 255, so `"A"` is 65 and `"é"` is 195, 169;
    the special tokens follow, with the ids of `BYTE_SPECIAL_TOKENS` (263 tokens in all). A pair of texts is joined
    by `[SEP]`. `decode` gives the
    text back exactly, white space, control characters and emoji included. `[UNK]` stands in the vocabulary
    because programs ask for it; no text produces it. Ids that are not a whole UTF-8 text (a sequence cut
    inside a character) decode with U+FFFD in that place.

    Args:
        model_max_length: Longest input in tokens (bytes), to which `truncation=True` cuts; None (the default)
            means no limit.
        padding_side: Where a batch is padded, "right" (default) or "left" (what `generate` wants).
        add_eos: Append `[EOS]` to every text. Default False.
        special_tokens_in_text: Read "[MASK]" and the like inside a text as the special token. Default False:
            they are the characters they are, which keeps the round trip exact for every text.

    Returns:
        A fast tokenizer whose saved copy is a plain `tokenizer.json`, loaded by `AutoTokenizer` without this
        package. Its outputs are `input_ids` and `attention_mask`.

    Raises:
        ValueError: `model_max_length` or `padding_side` is not one of the values above.
    """
    check_arguments(model_max_length, padding_side)
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    vocabulary.update(BYTE_SPECIAL_TOKENS)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    register_special_tokens(backend, list(BYTE_SPECIAL_TOKENS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = template(BYTE_SPECIAL_TOKENS, "[EOS]" if add_eos else None)
    names = {f"{name.strip('[]').lower()}_token": name for name in BYTE_SPECIAL_TOKENS}
    return wrap(
        backend,
        names,
        model_max_length=model_max_length,
        padding_side=padding_side,
        split_special_tokens=not special_tokens_in_text,
    )


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a `ByteLevel` vocabulary, indexed by the byte.

    Vocabularies hold text, so the library writes bytes as visible characters: those that Latin-1 shows as one
    visible character keep it (33-126, 161-172, 174-255), the other 68 take U+0100, U+0101, ... in order.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = []
    moved = 0
    for byte in range(256):
        if byte in visible:
            characters.append(chr(byte))
        else:
            characters.append(chr(0x100 + moved))
            moved += 1
    return characters
