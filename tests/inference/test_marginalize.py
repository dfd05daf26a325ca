"""`marginalize` against plain loops over sequences in float64, which share no code with it."""

import itertools
import math
import random
import statistics
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.motif_files import motif_of_letters, read_motifs
from hf_ssm.inference.marginalize import shuffled
from hf_ssm.inference.one_hot import OneHotModel, one_hot_of

pytest.importorskip("tangermeme", reason="tangermeme is not installed (the extra `genomics`)")

VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
COMPLEMENT = dict(zip("ACGTN", "TGCAN", strict=True))
# Soft-masked, with N; one length.
BACKGROUNDS = ["".join(random.Random(seed).choices("ACGTacgtN", k=24)) for seed in range(5)]
MEME = """MEME version 4

ALPHABET= ACGT

MOTIF MA1 first
letter-probability matrix: alength= 4 w= 3 nsites= 20 E= 0
 0.1 0.7 0.1 0.1
 0.25 0.25 0.25 0.25
 0 0 0 1
URL http://x

MOTIF MA2\tsecond one
letter-probability matrix: alength= 4 w= 2
0.5 0.2 0.3 0.0
0.0 0.0 0.5 0.5
"""
JASPAR = """>MA0001.1\tAGL3
A  [ 0  3 79 ]
C  [94 75  4 ]
G  [ 1  0  3 ]
T  [ 2 19 11 ]
>MA0002.1 X
1 0
0 1.5
0 0.5
3 0
"""


def pairs_tokenizer() -> PreTrainedTokenizerFast:
    """Joins A and C to one token, as byte pair encodings do."""
    backend = Tokenizer(models.BPE(vocab={**VOCABULARY, "AC": 12}, merges=[("A", "C")], unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


@lru_cache(maxsize=1000)
def logits_of(model: Any, tokenizer: Any, text: str) -> list[float]:
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).logits[0].tolist()


def log_odds(logits: list[float], index: int) -> float:
    return logits[index] - math.log(sum(math.exp(value) for number, value in enumerate(logits) if number != index))


def replaced(text: str, motif: str, position: int) -> str:
    letters = list(text.upper())
    for place, letter in enumerate(motif):
        if letter != "N":
            letters[position + place] = letter
    return "".join(letters)


def check(row: dict[str, Any], value: Any, motif: str) -> None:
    before = [value(text.upper()) for text in BACKGROUNDS]
    after = [value(replaced(text, motif, row["position"])) for text in BACKGROUNDS]
    effects = [two - one for one, two in zip(before, after, strict=True)]
    assert row["before"] == pytest.approx(statistics.mean(before), rel=1e-9)
    assert row["effect"] == pytest.approx(statistics.mean(effects), rel=1e-6, abs=1e-12)
    assert row["standard_error"] == pytest.approx(statistics.stdev(effects) / math.sqrt(5), rel=1e-6)
    assert row["inserted"] == motif and row["backgrounds"] == 5


@pytest.mark.parametrize("joined", [False, True], ids=["single bases", "joined bases"])
def test_classes_at_positions_and_on_strands(make_model: Any, joined: bool) -> None:
    tokenizer = pairs_tokenizer() if joined else hf_ssm.build_dna_tokenizer()
    options = {"num_labels": 3, "id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
    model = make_model("S4", "ForSequenceClassification", vocab_size=13, **options).double()
    motifs = {"short": "TGNA", "matrix": np.array([[0.1, 0.2, 0.0], [0.6, 0.3, 0.0], [0.2, 0.4, 0.0], [0.1, 0.1, 1.0]])}
    best = {"short": "TGNA", "matrix": "CGT"}
    found = hf_ssm.marginalize(model, tokenizer, motifs, BACKGROUNDS, scan=7, reverse_complement=True)
    places = [(name, strand, p) for name in motifs for strand in "+-" for p in (0, 7, 14) + (21,) * (name == "matrix")]
    rows = [(row["motif"], row["strand"], row["position"], row["output"]) for row in found]
    assert rows == [(*place, output) for place in places for output in "abc"]
    for row in found:
        motif = best[row["motif"]]
        index = "abc".index(row["output"])
        check(
            row,
            lambda text, index=index: log_odds(logits_of(model, tokenizer, text), index),
            motif if row["strand"] == "+" else turned(motif),
        )
    (middle,) = hf_ssm.marginalize(model, tokenizer, ["TGNA"], BACKGROUNDS, target="c")
    assert (middle["position"], middle["output"]) == (10, "c")
    check(middle, lambda text: log_odds(logits_of(model, tokenizer, text), 2), "TGNA")


def test_other_heads_and_both_strands(make_model: Any) -> None:
    tokenizer = hf_ssm.build_dna_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForSequenceClassification(BertConfig(**sizes, vocab_size=12, initializer_range=0.4)).double().eval()
    (row,) = hf_ssm.marginalize(bert, tokenizer, ["TGA"], BACKGROUNDS, position=2, both_strands=True)
    assert row["output"] == "LABEL_1"

    def mean_logits(text: str) -> list[float]:
        both = [logits_of(bert, tokenizer, one) for one in (text, turned(text))]
        return [sum(pair) / 2 for pair in zip(*both, strict=True)]

    check(row, lambda text: log_odds(mean_logits(text), 1), "TGA")
    value = make_model("Hyena", "ForSequenceClassification", num_labels=1, problem_type="regression").double()
    (row,) = hf_ssm.marginalize(value, tokenizer, ["TGA"], BACKGROUNDS)
    check(row, lambda text: logits_of(value, tokenizer, text)[0], "TGA")
    causal = make_model("SSD", "ForCausalLM").double()

    def log_probs(model: Any, ids: list[int]) -> Any:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)

    def likelihood(text: str) -> float:
        ids = [VOCABULARY[letter] for letter in text]
        return sum(log_probs(causal, ids)[place - 1, ids[place]].item() for place in range(1, len(ids)))

    (row,) = hf_ssm.marginalize(causal, tokenizer, ["TGA"], BACKGROUNDS)
    assert row["output"] == "log_likelihood"
    check(row, likelihood, "TGA")
    masked = make_model("S5", "ForMaskedLM", bidirectional=True).double()

    def pseudo_likelihood(text: str) -> float:
        ids = [VOCABULARY[letter] for letter in text]
        one_hidden = [[*ids[:place], VOCABULARY["[MASK]"], *ids[place + 1 :]] for place in range(len(ids))]
        return sum(log_probs(masked, hidden)[place, ids[place]].item() for place, hidden in enumerate(one_hidden))

    (row,) = hf_ssm.marginalize(masked, tokenizer, ["TGA"], BACKGROUNDS)
    assert row["output"] == "pseudo_log_likelihood"
    check(row, pseudo_likelihood, "TGA")


@pytest.mark.parametrize("option", [{"rc_equivariant": True}, {"rc_conjoin": "eval"}])
def test_models_that_read_both_strands(make_model: Any, option: dict[str, Any]) -> None:
    model, tokenizer = make_model("S4", "ForSequenceClassification", **option).double(), hf_ssm.build_dna_tokenizer()
    (row,) = hf_ssm.marginalize(model, tokenizer, ["TGAC"], BACKGROUNDS, position=3)
    check(row, lambda text: log_odds(logits_of(model, tokenizer, text), 1), "TGAC")


def test_of_equally_probable_bases_the_strands_take_complements(make_model: Any) -> None:
    model, tokenizer = make_model("S4", "ForSequenceClassification").double(), hf_ssm.build_dna_tokenizer()
    rows = hf_ssm.marginalize(model, tokenizer, ["TGASTCR"], BACKGROUNDS, position=5, reverse_complement=True)
    assert [row["inserted"] for row in rows] == ["TGACTCA", turned("TGACTCA")]
    for row in rows:
        check(row, lambda text: log_odds(logits_of(model, tokenizer, text), 1), row["inserted"])


def splitting_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Tokenizers that read "ACGTN" as five tokens, and other sequences otherwise."""
    merged = models.BPE(vocab={**VOCABULARY, "TT": 12}, merges=[("T", "T")], unk_token="[UNK]")
    letters = {"[UNK]": 0, "[PAD]": 1} | {letter: 2 + number for number, letter in enumerate("ACGTN")}
    pieces = letters | {f"##{letter}": 7 + number for number, letter in enumerate("ACGTN")}
    words = letters | {"".join(word): 7 + n for n, word in enumerate(itertools.product("ACGT", repeat=5))}
    backends = {
        "merges of some pairs": Tokenizer(merged),
        "word pieces": Tokenizer(models.WordPiece(pieces, unk_token="[UNK]")),
        "words of five letters": Tokenizer(models.WordLevel(words, unk_token="[UNK]")),
    }
    backends["words of five letters"].pre_tokenizer = pre_tokenizers.Split(Regex("[ACGT]{5}|."), "isolated")
    return {
        name: PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
        for name, backend in backends.items()
    }


@pytest.mark.parametrize("name", ["merges of some pairs", "word pieces", "words of five letters"])
def test_tokens_that_depend_on_their_neighbours_are_read_as_texts(make_model: Any, name: str) -> None:
    tokenizer = splitting_tokenizers()[name]
    model = make_model("S4", "ForSequenceClassification", vocab_size=1040).double()
    texts = [text.upper().replace("N", "A") for text in BACKGROUNDS]
    module = OneHotModel(model, tokenizer)
    expected = torch.tensor([logits_of(model, tokenizer, text) for text in texts], dtype=torch.double)
    torch.testing.assert_close(module(one_hot_of(texts)), expected, rtol=1e-12, atol=1e-12)
    assert not module.is_differentiable
    masked = make_model("S4", "ForMaskedLM", vocab_size=1040)
    with pytest.raises(ValueError, match="a dependency map needs a tokenizer with one token for each base"):
        hf_ssm.dependency_map(masked, tokenizer, "ACGGTGACGTAG", 2, 8)


def test_samples_approach_the_mean_over_the_matrix(make_model: Any) -> None:
    model, tokenizer = make_model("S4", "ForSequenceClassification").double(), hf_ssm.build_dna_tokenizer()
    matrix = np.array([[0.2, 0.25, 0.0], [0.8, 0.25, 0.5], [0.0, 0.25, 0.5], [0.0, 0.25, 0.0]])
    (row,) = hf_ssm.marginalize(model, tokenizer, {"m": matrix}, BACKGROUNDS, samples=100, position=4)
    effects, words = [], {"ANC": 0.1, "ANG": 0.1, "CNC": 0.4, "CNG": 0.4}
    for text in BACKGROUNDS:
        before = log_odds(logits_of(model, tokenizer, text.upper()), 1)
        after = [log_odds(logits_of(model, tokenizer, replaced(text, word, 4)), 1) for word in words]
        effects.append(sum(p * value for p, value in zip(words.values(), after, strict=True)) - before)
        spread = max(after) - min(after)
    assert abs(row["effect"] - statistics.mean(effects)) < 4 * spread / math.sqrt(5 * 100)
    again = hf_ssm.marginalize(model, tokenizer, {"x": "A", "m": matrix}, BACKGROUNDS, samples=100, position=4)
    assert again[1] == row


def test_the_module_is_differentiable_and_that_of_the_model(make_model: Any) -> None:
    model, tokenizer = make_model("SelectiveSSM", "ForSequenceClassification").double(), hf_ssm.build_dna_tokenizer()
    one_hot = one_hot_of(BACKGROUNDS).double().requires_grad_()
    outputs = OneHotModel(model, tokenizer)(one_hot)
    expected = [logits_of(model, tokenizer, text.upper()) for text in BACKGROUNDS]
    torch.testing.assert_close(outputs.detach(), torch.tensor(expected).double())
    (gradient,) = torch.autograd.grad(outputs.sum(), one_hot)
    assert (gradient != 0).any(1).float().mean() > 0.9


def test_shuffles_keep_dinucleotides() -> None:
    copies = shuffled(BACKGROUNDS, 3, seed=1)
    assert len(copies) == 15 and copies == shuffled(BACKGROUNDS, 3, seed=1) != shuffled(BACKGROUNDS, 3, seed=2)
    for number, copy in enumerate(copies):
        original = BACKGROUNDS[number // 3].upper()
        pairs = [sorted(text[place : place + 2] for place in range(23)) for text in (copy, original)]
        assert pairs[0] == pairs[1]


def test_motif_files(tmp_path: Path) -> None:
    (tmp_path / "m.meme").write_text(MEME)
    found = read_motifs(tmp_path / "m.meme")
    assert list(found) == ["MA1 first", "MA2 second one"]
    np.testing.assert_allclose(found["MA1 first"][:, 0], [0.1, 0.7, 0.1, 0.1])
    assert found["MA2 second one"].shape == (4, 2)
    (tmp_path / "m.jaspar").write_text(JASPAR)
    found = read_motifs(tmp_path / "m.jaspar")
    assert list(found) == ["MA0001.1 AGL3", "MA0002.1 X"]
    np.testing.assert_allclose(found["MA0001.1 AGL3"][:, 2], np.array([79, 4, 3, 11]) / 97)
    np.testing.assert_allclose(found["MA0002.1 X"], [[0.25, 0], [0, 0.75], [0, 0.25], [0.75, 0]])
    # Rows by their names; numbers with or without digits before the point.
    (tmp_path / "n.pfm").write_text(">m\nT | .5 1e1\ng | 0.25 0\nC: 5. 0\nA[ 0 30 ]\n>n\r\n1\r\n2\r\n3\r\n4\r\n")
    found = read_motifs(tmp_path / "n.pfm")
    np.testing.assert_allclose(found["m"], np.array([[0, 30], [5, 0], [0.25, 0], [0.5, 10]]) / [5.75, 40])
    np.testing.assert_allclose(found["n"][:, 0], [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(motif_of_letters("sn"), [[0, 0.25], [0.5, 0.25], [0.5, 0.25], [0, 0.25]])
    for text, message in (
        ("nothing", "x holds no motif: give a MEME file or a JASPAR file"),
        (MEME.replace("MA2\tsecond one", "MA1 first"), "x holds two motifs of the name 'MA1 first'"),
        (MEME.replace("0.0 0.0 0.5 0.5\n", ""), "motif 'MA2 second one': the matrix is incomplete"),
        (MEME.replace("0.5 0.2 0.3 0.0", "0.5 0.2"), "x is not a MEME file"),
        (MEME.replace("0.5 0.2 0.3 0.0", "0 0 0 0"), "motif 'MA2 second one': the numbers are not probabilities"),
        (JASPAR.replace("3 0\n", "3 0 1\n"), "motif 'MA0002.1 X': give four lines"),
        (JASPAR.replace("0 1.5\n", "0 1,5\n"), "motif 'MA0002.1 X': give four lines"),
        (JASPAR.replace("C  [", "A  ["), "the lines name the bases AAGT, but must name A, C, G and T"),
        (MEME.replace("w= 2", ""), "each matrix needs its width"),
        (JASPAR.replace("1 0\n", "-1 0\n"), "motif 'MA0002.1 X': the numbers are not probabilities"),
        (JASPAR + JASPAR, "two motifs of the name"),
    ):
        (tmp_path / "x").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_motifs(tmp_path / "x")


def test_errors(make_model: Any) -> None:
    model, tokenizer = make_model("S4", "ForSequenceClassification"), hf_ssm.build_dna_tokenizer()
    for motifs, arguments, message in (
        (["TGE"], {}, "motif 'TGE': give letters of DNA"),
        (["A" * 25], {}, "has 25 bases, but the backgrounds have only 24"),
        (["TGA"], {"position": 22}, "`position`=22: motif 'TGA' has 3 bases; give 0 to 21"),
        (["TGA"], {"position": 2, "scan": 2}, "give either a position or a scan"),
        (["TGA"], {"scan": 0}, "`scan`=0: give a positive"),
        (["TGA"], {"samples": 0}, "`samples`=0: give a positive"),
        (["TGA"], {"target": "x"}, "`target`='x': the model has the outputs LABEL_0, LABEL_1"),
        (["TGA"], {"target": 2}, "`target`=2: the model has"),
    ):
        with pytest.raises(ValueError, match=message):
            hf_ssm.marginalize(model, tokenizer, motifs, BACKGROUNDS, **arguments)
    with pytest.raises(ValueError, match="the sequences have 3 to 4 bases: give sequences of one length"):
        hf_ssm.marginalize(model, tokenizer, ["A"], ["ACGT", "ACG"])
    with pytest.raises(ValueError, match="'L' is not a letter of DNA"):
        hf_ssm.marginalize(model, tokenizer, ["A"], ["ACGT", "ACGL"])
    with pytest.raises(ValueError, match="a language model has no target"):
        hf_ssm.marginalize(make_model("S4", "ForCausalLM"), tokenizer, ["A"], BACKGROUNDS, target=1)
    with pytest.raises(ValueError, match="does not predict a number for a sequence"):
        OneHotModel(make_model("S4", "ForTokenClassification"), tokenizer)
