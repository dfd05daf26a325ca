"""What the tokenizer builders share: checks of their arguments, the post-processor, and the wrapper."""

from collections.abc import Mapping

from tokenizers import AddedToken, Tokenizer, processors
from transformers import PreTrainedTokenizerFast


def check_arguments(model_max_length: int | None, padding_side: str) -> None:
    """Refuse lengths and padding sides that no tokenizer can have.

    Raises:
        ValueError: `model_max_length` is not None and not a positive integer, or `padding_side` is neither
            "right" nor "left".
    """
    if model_max_length is not None and (
        isinstance(model_max_length, bool) or not isinstance(model_max_length, int) or model_max_length < 1
    ):
        raise ValueError(
            f"model_max_length={model_max_length!r}: give a positive number of tokens, or None for no limit."
        )
    if padding_side not in ("right", "left"):
        raise ValueError(f'padding_side={padding_side!r}: choose "right" or "left".')


def register_special_tokens(backend: Tokenizer, tokens: list[str]) -> None:
    """Mark `tokens`, already in the vocabulary, as special.

    `normalized=False` matters: they are then cut out of the text before the normalizer sees it, so folding
    the case of bases cannot break them.
    """
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])


def template(vocabulary: Mapping[str, int], eos_token: str | None) -> processors.TemplateProcessing:
    """Post-processor that puts `[SEP]` between the two texts of a pair, and `eos_token` at the end if not None.

    It is written even for tokenizers that are never given pairs: transformers would otherwise put a
    post-processor of its own in the empty place when it loads the tokenizer.
    """
    end = "" if eos_token is None else f" {eos_token}:"
    special_tokens = {"[SEP]", *([] if eos_token is None else [eos_token])}
    return processors.TemplateProcessing(
        single=f"$A:0{end and end + '0'}",
        pair=f"$A:0 [SEP]:0 $B:1{end and end + '1'}",
        special_tokens=[(token, vocabulary[token]) for token in sorted(special_tokens)],
    )


def wrap(
    backend: Tokenizer,
    names: dict[str, str],
    *,
    model_max_length: int | None,
    padding_side: str,
    split_special_tokens: bool = False,
) -> PreTrainedTokenizerFast:
    """Wrap `backend` in transformers' own class, so that no code of ours is needed to load it.

    Args:
        backend: The tokenizer of the `tokenizers` library.
        names: The named special tokens, such as `{"pad_token": "[PAD]"}`.
        model_max_length: Longest input in tokens; None means no limit.
        padding_side: "right" or "left".
        split_special_tokens: Read special tokens in a text as plain characters.

    Returns:
        A `PreTrainedTokenizerFast` (the class is called `TokenizersBackend` since transformers 5).
    """
    limit = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side=padding_side,
        # State space models have no segment embedding; a `token_type_ids` input would be an unknown argument.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=split_special_tokens,
        **names,
        **limit,
    )
