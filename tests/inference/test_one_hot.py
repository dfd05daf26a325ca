"""`OneHotModel` against plain loops over sequences in float64, which share no code with it."""

import itertools
import random
from functools import lru_cache
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.inference.one_hot import OneHotModel

VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
COMPLEMENT = dict(zip("ACGTN", "TGCAN", strict=True))
# With N; one length.
SEQUENCES = ["".join(random.Random(seed).choices("ACGTN", k=24)) for seed in range(5)]


def one_hot_of(texts: list[str]) -> torch.Tensor:
    """0 at all four bases of an N."""
    return torch.tensor([[[letter == base for letter in text] for base in "ACGT"] for text in texts]).to(torch.int8)


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


@lru_cache(maxsize=1000)
def logits_of(model: Any, tokenizer: Any, text: str) -> list[float]:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).logits[0].tolist()


def check(module: OneHotModel, expected: list[list[float]]) -> None:
    with torch.no_grad():
        outputs = module(one_hot_of(SEQUENCES)).double()
    torch.testing.assert_close(outputs, torch.tensor(expected, dtype=torch.double), rtol=1e-6, atol=1e-9)


def test_heads_and_both_strands(make_model: Any) -> None:
    tokenizer = hf_ssm.build_dna_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForSequenceClassification(BertConfig(**sizes, vocab_size=12, initializer_range=0.4)).double().eval()

    def mean_logits(text: str) -> list[float]:
        both = [logits_of(bert, tokenizer, one) for one in (text, turned(text))]
        return [sum(pair) / 2 for pair in zip(*both, strict=True)]

    check(OneHotModel(bert, tokenizer, both_strands=True), [mean_logits(text) for text in SEQUENCES])
    value = make_model("Hyena", "ForSequenceClassification", num_labels=1, problem_type="regression").double()
    check(OneHotModel(value, tokenizer), [logits_of(value, tokenizer, text) for text in SEQUENCES])
    causal = make_model("SSD", "ForCausalLM").double()

    def log_probs(model: Any, ids: list[int]) -> Any:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

    def likelihood(text: str) -> float:
        ids = [VOCABULARY[letter] for letter in text]
        return sum(log_probs(causal, ids)[place - 1, ids[place]].item() for place in range(1, len(ids)))

    check(OneHotModel(causal, tokenizer), [[likelihood(text)] for text in SEQUENCES])
    masked = make_model("S5", "ForMaskedLM", bidirectional=True).double()

    def pseudo_likelihood(text: str) -> float:
        ids = [VOCABULARY[letter] for letter in text]
        one_hidden = [[*ids[:place], VOCABULARY["[MASK]"], *ids[place + 1 :]] for place in range(len(ids))]
        return sum(log_probs(masked, hidden)[place, ids[place]].item() for place, hidden in enumerate(one_hidden))

    check(OneHotModel(masked, tokenizer), [[pseudo_likelihood(text)] for text in SEQUENCES])
    with pytest.raises(ValueError, match="does not predict a number for a sequence"):
        OneHotModel(make_model("S4", "ForTokenClassification"), tokenizer)


@pytest.mark.parametrize("option", [{"rc_equivariant": True}, {"rc_conjoin": "eval"}])
def test_models_that_read_both_strands(make_model: Any, option: dict[str, Any]) -> None:
    model, tokenizer = make_model("S4", "ForSequenceClassification", **option).double(), hf_ssm.build_dna_tokenizer()
    check(OneHotModel(model, tokenizer), [logits_of(model, tokenizer, text) for text in SEQUENCES])


def splitting_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Tokenizers that read "ACGTN" as five tokens, and other sequences otherwise."""
    merged = models.BPE(vocab={**VOCABULARY, "TT": 12}, merges=[("T", "T")], unk_token="[UNK]")
    letters = {"[UNK]": 0, "[PAD]": 1} | {letter: 2 + number for number, letter in enumerate("ACGTN")}
    pieces = letters | {f"##{letter}": 7 + number for number, letter in enumerate("ACGTN")}
    words = letters | {"".join(word): 7 + n for n, word in enumerate(itertools.product("ACGT", repeat=5))}
    backends = {
        "joined bases": Tokenizer(models.BPE(vocab={**VOCABULARY, "AC": 12}, merges=[("A", "C")], unk_token="[UNK]")),
        "merges of some pairs": Tokenizer(merged),
        "word pieces": Tokenizer(models.WordPiece(pieces, unk_token="[UNK]")),
        "words of five letters": Tokenizer(models.WordLevel(words, unk_token="[UNK]")),
    }
    backends["words of five letters"].pre_tokenizer = pre_tokenizers.Split(Regex("[ACGT]{5}|."), "isolated")
    return {
        name: PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
        for name, backend in backends.items()
    }


@pytest.mark.parametrize("name", ["joined bases", "merges of some pairs", "word pieces", "words of five letters"])
def test_tokens_that_depend_on_their_neighbours_are_read_as_texts(make_model: Any, name: str) -> None:
    tokenizer = splitting_tokenizers()[name]
    model = make_model("S4", "ForSequenceClassification", vocab_size=1040).double()
    texts = [text.replace("N", "A") for text in SEQUENCES]
    module = OneHotModel(model, tokenizer)
    expected = torch.tensor([logits_of(model, tokenizer, text) for text in texts], dtype=torch.double)
    torch.testing.assert_close(module(one_hot_of(texts)), expected, rtol=1e-12, atol=1e-12)
    masked = make_model("S4", "ForMaskedLM", vocab_size=1040)
    with pytest.raises(ValueError, match="a dependency map needs a tokenizer with one token for each base"):
        hf_ssm.dependency_map(masked, tokenizer, "ACGGTGACGTAG", 2, 8)


def test_the_module_is_differentiable_and_that_of_the_model(make_model: Any) -> None:
    model, tokenizer = make_model("SelectiveSSM", "ForSequenceClassification").double(), hf_ssm.build_dna_tokenizer()
    one_hot = one_hot_of(SEQUENCES).double().requires_grad_()
    outputs = OneHotModel(model, tokenizer)(one_hot)
    expected = [logits_of(model, tokenizer, text) for text in SEQUENCES]
    torch.testing.assert_close(outputs.detach(), torch.tensor(expected).double())
    (gradient,) = torch.autograd.grad(outputs.sum(), one_hot)
    assert (gradient != 0).any(1).float().mean() > 0.9
