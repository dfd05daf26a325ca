"""A fast tokenizer of single nucleotides, with the ids of HyenaDNA (Nguyen et al., 2023)."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_ssm.tokenization._common import (
    check_arguments,
    register_special_tokens,
    template,
    wrap,
)

_SPECIAL_TOKENS = ["[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]"]
_BASES = ["A", "C", "G", "T", "N"]

DNA_TOKENS: dict[str, int] = {token: index for index, token in enumerate(_SPECIAL_TOKENS + _BASES)}
"""Token to id: [CLS] 0, [SEP] 1, [BOS] 2, [MASK] 3, [PAD] 4, [RESERVED] 5, [UNK] 6, A 7, C 8, ..., N 11."""


def build_dna_tokenizer(
    model_max_length: int | None = None, padding_side: str = "right", add_eos: bool = False
) -> PreTrainedTokenizerFast:
    """Build the single-nucleotide tokenizer.

    One base is one token, with the ids of `DNA_TOKENS`:

    * `a c g t n` (soft-masked bases) read as their capitals;
    * white space is dropped, so a FASTA record may be given with its line breaks; offsets still point into
      the text as it was given;
    * every other character, the ambiguity codes `R Y S W K M B D H V` and `U` among them, is one `[UNK]`;
    * a special token written out, such as `ACG[MASK]TT`, is that token, in this spelling only;
    * a pair of sequences is joined by `[SEP]`.

    `decode` joins the tokens without spaces. A saved copy is a plain `tokenizer.json`: `AutoTokenizer` loads
    it without this package. Time grows linearly with length, about a second for a million bases.

    Args:
        model_max_length: Longest input in tokens, to which `truncation=True` cuts; None (the default) means
            no limit.
        padding_side: Where a batch is padded, "right" (default) or "left" (what `generate` wants).
        add_eos: Append `[SEP]` to every sequence, HyenaDNA's convention in pretraining. Default False: a
            sequence of L bases gives L tokens.

    Returns:
        A fast tokenizer with `[SEP]` as end of sequence, `[BOS]`, `[CLS]`, `[MASK]`, `[PAD]` and `[UNK]`. Its
        outputs are `input_ids` and `attention_mask`.

    Raises:
        ValueError: `model_max_length` or `padding_side` is not one of the values above.
    """
    check_arguments(model_max_length, padding_side)
    # A BPE without merges looks up one character after another inside one piece of text. A pre-tokenizer that
    # splits at every character allocates an object per base, and took four times as long for 1 Mb.
    backend = Tokenizer(models.BPE(vocab=DNA_TOKENS, merges=[], unk_token="[UNK]", fuse_unk=False))
    register_special_tokens(backend, _SPECIAL_TOKENS)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(base.lower(), base) for base in _BASES]  # there is no upper-case normalizer
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    backend.post_processor = template(DNA_TOKENS, "[SEP]" if add_eos else None)
    names = {
        "bos_token": "[BOS]",
        "eos_token": "[SEP]",
        "sep_token": "[SEP]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
    }
    return wrap(backend, names, model_max_length=model_max_length, padding_side=padding_side)
