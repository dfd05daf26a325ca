"""Random reverse complements and unknown bases."""

import pytest
import torch
from datasets import Dataset

from hf_ssm.data.augment import with_random_reverse_complement, with_random_unknown_bases
from hf_ssm.tokenization import build_dna_tokenizer, build_listops_tokenizer

TOKENIZER = build_dna_tokenizer()


def turned(texts: list[str], probability: float = 1.0) -> list[str]:
    tokens = Dataset.from_dict({"input_ids": TOKENIZER(texts)["input_ids"], "labels": list(range(len(texts)))})
    rows = with_random_reverse_complement(tokens, TOKENIZER, probability)[:]
    assert rows["labels"] == list(range(len(texts)))
    return TOKENIZER.batch_decode(rows["input_ids"])


def test_bases_are_reversed_and_complemented() -> None:
    assert turned(["ACGTN", "AAC", "T"]) == ["NACGT", "GTT", "A"]


def test_special_tokens_stay_where_they_are() -> None:
    assert turned(["[BOS]AAC[MASK]G[SEP]"]) == ["[BOS]CGT[MASK]T[SEP]"]


def test_half_of_the_rows_are_turned_and_each_reading_draws_anew() -> None:
    tokens = Dataset.from_dict({"input_ids": TOKENIZER(["AC"] * 400)["input_ids"]})
    rows = with_random_reverse_complement(tokens, TOKENIZER)
    torch.manual_seed(1)
    first, second = rows[:]["input_ids"], rows[:]["input_ids"]
    share = sum(row == TOKENIZER("GT")["input_ids"] for row in first) / 400
    assert 0.4 < share < 0.6
    assert first != second
    torch.manual_seed(1)
    assert rows[:]["input_ids"] == first
    assert turned(["AC"], probability=0.0) == ["AC"]


def test_unknown_bases_replace_a_random_share_and_follow_another_transform() -> None:
    tokens = Dataset.from_dict({"input_ids": TOKENIZER(["[BOS]" + "AC" * 100 + "[SEP]"] * 200)["input_ids"]})
    unknown, turned_base = TOKENIZER.convert_tokens_to_ids(["N", "G"])
    rows = with_random_unknown_bases(with_random_reverse_complement(tokens, TOKENIZER, 1.0), TOKENIZER, 0.6)
    torch.manual_seed(1)
    ids = torch.tensor(rows[:]["input_ids"])
    assert (ids[:, [0, -1]] == torch.tensor(TOKENIZER("[BOS][SEP]")["input_ids"])).all()
    shares = (ids == unknown).double().mean(1)
    assert shares.min() < 0.1 and 0.5 < shares.max() < 0.72 and 0.25 < shares.mean() < 0.35
    assert ((ids == turned_base) | (ids == unknown))[:, 1:-1:2].all()
    assert rows[:]["input_ids"] != ids.tolist()
    assert with_random_unknown_bases(tokens, TOKENIZER, 0.0)[0]["input_ids"] == tokens[0]["input_ids"]
    with pytest.raises(ValueError, match=r"share=1\.5"):
        with_random_unknown_bases(tokens, TOKENIZER, 1.5)


def test_bad_input() -> None:
    tokens = Dataset.from_dict({"input_ids": [[7, 8]]})
    with pytest.raises(ValueError, match="no token for the bases"):
        with_random_reverse_complement(tokens, build_listops_tokenizer())
    with pytest.raises(ValueError, match="probability=2"):
        with_random_reverse_complement(tokens, TOKENIZER, 2)
    with pytest.raises(ValueError, match="no such column"):
        with_random_reverse_complement(Dataset.from_dict({"ids": [[7]]}), TOKENIZER)
