"""Token ids by a table are those of the tokenizer."""

import random

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_ssm.data.letters import LetterTable
from hf_ssm.tokenization import (
    build_byte_tokenizer,
    build_dna_tokenizer,
    build_listops_tokenizer,
    build_plant_dna_tokenizer,
)

TOKENIZERS = {
    "dna": build_dna_tokenizer(),
    "dna with an end": build_dna_tokenizer(add_eos=True),
    "dna of Caduceus": build_dna_tokenizer(keep_whitespace=True, keep_ambiguity=True),
    "plant dna": build_plant_dna_tokenizer(),
    "bytes": build_byte_tokenizer(add_eos=True),
    "bytes with special tokens": build_byte_tokenizer(special_tokens_in_text=True),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("limit", [10**9, 20, 3, 1])
@pytest.mark.parametrize("side", ["right", "left"])
def test_ids_are_those_of_the_tokenizer(name, limit, side):
    tokenizer, rng = TOKENIZERS[name], random.Random(0)
    tokenizer.truncation_side = side
    table = LetterTable.of(tokenizer)
    by_table = 0
    for letters in ("ACGT", "ACGTNacgtnRYuU", "ACGT \n", "The [MASK] of 3, é", "".join(map(chr, range(128)))):
        for _ in range(30):
            text = "".join(rng.choices(letters, k=rng.randint(0, 40)))
            encoded = table.encode(text, limit)
            if encoded is None:
                continue
            by_table += 1
            ids, is_cut = encoded
            expected = tokenizer(text, truncation=True, max_length=limit)["input_ids"]
            assert ids.tolist() == expected
            assert is_cut == (len(tokenizer(text)["input_ids"]) > limit)
    tokenizer.truncation_side = "right"
    # A limit of one leaves no room for a letter before the end token.
    ends = name in ("dna with an end", "bytes")
    assert by_table > 20 or (ends and limit == 1)


def test_texts_that_may_hold_special_tokens_are_left_to_the_tokenizer():
    table = LetterTable.of(TOKENIZERS["dna"])
    assert table.encode("ACG[MASK]T", 100) is None
    assert table.encode("ACG T", 100) is None
    assert table.encode("", 100) is None
    assert LetterTable.of(TOKENIZERS["bytes with special tokens"]).encode("a [MASK]", 100) is None


def test_tokenizers_of_words_have_no_table():
    assert LetterTable.of(build_listops_tokenizer()) is None
    merged = Tokenizer(models.BPE(vocab={"A": 0, "C": 1, "AC": 2, "?": 3}, merges=[("A", "C")], unk_token="?"))
    assert LetterTable.of(PreTrainedTokenizerFast(tokenizer_object=merged, unk_token="?")) is None
    split = Tokenizer(models.BPE(vocab={"A": 0, "C": 1, "?": 2}, merges=[], unk_token="?"))
    split.pre_tokenizer = pre_tokenizers.Metaspace()
    assert LetterTable.of(PreTrainedTokenizerFast(tokenizer_object=split, unk_token="?")) is None
