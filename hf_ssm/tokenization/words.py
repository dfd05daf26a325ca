"""Fast tokenizers of whole words: of any list of words, of the words of given texts, and of ListOps."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_ssm.tokenization._common import check_arguments, register_special_tokens, template, wrap

WORD_SPECIAL_TOKENS: dict[str, int] = {
    token: index for index, token in enumerate(["[PAD]", "[BOS]", "[EOS]", "[MASK]", "[UNK]", "[CLS]", "[SEP]"])
}
"""Special tokens and their ids; the words follow."""

LISTOPS_WORDS: tuple[str, ...] = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""The words of ListOps: digits, opened operators and the closing bracket."""


def build_word_tokenizer(
    words: Sequence[str],
    model_max_length: int | None = None,
    padding_side: str = "right",
    add_eos: bool = False,
    prose: bool = False,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer whose tokens are whole words.

    The ids of `WORD_SPECIAL_TOKENS` come first, then the words in their order. A word that is not among them is
    one `[UNK]`; a special token written out in a text is that token. `decode` joins with spaces.

    Args:
        words: The vocabulary, each word once.
        model_max_length: Longest input in tokens, to which `truncation=True` cuts; None (the default) means no
            limit.
        padding_side: Where a batch is padded, "right" (default) or "left".
        add_eos: Append `[EOS]` to every text. Default False.
        prose: Texts in natural language: lower case, accents dropped, punctuation marks are words of their own,
            as for BERT's uncased vocabulary. Default False: a word is what stands between white space.

    Returns:
        A fast tokenizer whose saved copy is a plain `tokenizer.json`, loaded by `AutoTokenizer` without this
        package. Its outputs are `input_ids` and `attention_mask`.

    Raises:
        ValueError: No words, a word twice, one that is a special token or holds white space; or
            `model_max_length` or `padding_side` is not one of the values above.
    """
    check_arguments(model_max_length, padding_side)
    _check_words(words)
    backend = _backend(list(words), normalizers.Sequence([]), add_eos)
    if prose:
        backend.normalizer = _prose_normalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _wrapped(backend, model_max_length, padding_side)


def build_listops_tokenizer(
    model_max_length: int | None = None, padding_side: str = "right", add_eos: bool = False
) -> PreTrainedTokenizerFast:
    """Build the tokenizer of ListOps (Nangia & Bowman 2018), as the Long Range Arena reads it.

    The tokens are `LISTOPS_WORDS`. Parentheses are dropped, as the published readers of the Long Range Arena drop
    them: they only repeat what the brackets say, and make a sequence three times as long.

    Args:
        model_max_length: Longest input in tokens, to which `truncation=True` cuts; None (the default) means no
            limit.
        padding_side: Where a batch is padded, "right" (default) or "left".
        add_eos: Append `[EOS]` to every expression, as the S4 authors do. Default False.

    Returns:
        A fast tokenizer of 22 tokens whose saved copy is a plain `tokenizer.json`.

    Raises:
        ValueError: `model_max_length` or `padding_side` is not one of the values above.
    """
    check_arguments(model_max_length, padding_side)
    # A blank, not nothing: "7)(" must not become one word.
    parentheses = normalizers.Sequence([normalizers.Replace("(", " "), normalizers.Replace(")", " ")])
    return _wrapped(_backend(LISTOPS_WORDS, parentheses, add_eos), model_max_length, padding_side)


def frequent_words(texts: Iterable[str], size: int, min_count: int = 1) -> list[str]:
    """The most frequent words of texts in natural language, for `build_word_tokenizer(..., prose=True)`.

    Args:
        texts: The texts; of a training split alone, if there is a test.
        size: How many words at most.
        min_count: Leave out rarer words.

    Returns:
        The words, the most frequent first, those of one frequency by the alphabet.

    Raises:
        ValueError: `size` or `min_count` is not positive, or no word is left.
    """
    for name, value in (("size", size), ("min_count", min_count)):
        if value < 1:
            raise ValueError(f"{name}={value!r}: give a positive number.")
    normalizer, splitter = _prose_normalizer(), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    ordered = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
    if not ordered:
        raise ValueError(f"min_count={min_count!r}: no word of the texts occurs that often; lower it, or give more.")
    return ordered[:size]


def _prose_normalizer() -> normalizers.Normalizer:
    return normalizers.BertNormalizer(lowercase=True, strip_accents=True)


def _backend(words: Sequence[str], normalizer: normalizers.Normalizer, add_eos: bool) -> Tokenizer:
    first = len(WORD_SPECIAL_TOKENS)
    vocabulary = {**WORD_SPECIAL_TOKENS, **{word: first + index for index, word in enumerate(words)}}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="[UNK]"))
    register_special_tokens(backend, list(WORD_SPECIAL_TOKENS))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = template(WORD_SPECIAL_TOKENS, "[EOS]" if add_eos else None)
    return backend


def _wrapped(backend: Tokenizer, model_max_length: int | None, padding_side: str) -> PreTrainedTokenizerFast:
    names = {f"{name.strip('[]').lower()}_token": name for name in WORD_SPECIAL_TOKENS}
    return wrap(backend, names, model_max_length=model_max_length, padding_side=padding_side)


def _check_words(words: Sequence[str]) -> None:
    if isinstance(words, str) or not words:
        raise ValueError(f"words={words!r}: give a list of at least one word.")
    counts = Counter(words)
    bad = [word for word in counts if counts[word] > 1 or word in WORD_SPECIAL_TOKENS or word.split() != [word]]
    if bad:
        raise ValueError(
            f"words: {bad[:5]} are given twice, are special tokens, or hold white space; give each word once, without."
        )
