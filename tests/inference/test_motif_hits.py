"""`motif_hits` against enumeration of all words, and `base_attributions` against plain passes of the model."""

import contextlib
import itertools
import math
import random
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.motif_files import motif_of_letters

pytest.importorskip("tangermeme", reason="tangermeme is not installed (the extra `genomics`)")

COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))
VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
MATRIX = np.array([[0.7, 0.1, 0.05, 0.2], [0.1, 0.1, 0.05, 0.3], [0.1, 0.7, 0.1, 0.3], [0.1, 0.1, 0.8, 0.2]])


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


def steps(word: str) -> int:
    """The score of FIMO, in its steps of 0.1 bits."""
    return sum(round(math.log2((MATRIX["ACGT".index(b), n] + 1e-4) * 4) / 0.1) for n, b in enumerate(word))


def test_hits_of_substitutions_beside_a_scan_by_hand() -> None:
    rng = random.Random(0)
    parts = [("chr1", 101, "".join(rng.choices("ACGT", k=60))), ("chr1", 301, "".join(rng.choices("ACGT", k=50)))]
    parts.append(("chr2", 301, "".join(rng.choices("ACGT", k=40))))
    table = [
        {"chrom": chrom, "pos": first + n, "ref": base, "alt": alt, "llr": rng.gauss(0, 1), "next_token": 9.0}
        for chrom, first, text in parts
        for n, base in enumerate(text)
        for alt in "ACGT"
        if alt != base
    ]
    columns = {name: [row[name] for row in table] for name in table[0]}
    columns["ref"] = [base.lower() if n % 15 < 9 else base for n, base in enumerate(columns["ref"])]
    found = hf_ssm.motif_hits(columns, {"m": MATRIX, "too long": np.full((4, 70), 0.25)}, threshold=0.2)
    of_words = [steps("".join(word)) for word in itertools.product("ACGT", repeat=4)]
    expected = {}
    for chrom, first, text in parts:
        losses = [
            -statistics.mean(r["llr"] for r in table if (r["chrom"], r["pos"]) == (chrom, first + n))
            for n in range(len(text))
        ]
        means = [statistics.mean(losses[n : n + 4]) for n in range(len(text) - 3)]
        for n, strand in itertools.product(range(len(means)), "+-"):
            word = text[n : n + 4] if strand == "+" else turned(text[n : n + 4])
            p_value = sum(other >= steps(word) for other in of_words) / 256
            below = sum(mean < means[n] for mean in means) + 0.5
            if p_value < 0.2:
                percentile = 100 * below / len(means)
                expected[chrom, first + n, strand] = (first + n + 3, word, p_value, means[n], percentile)
    assert len(found) == len(expected) > 10
    for row in found:
        end, word, p_value, importance, percentile = expected[row["sequence"], row["start"], row["strand"]]
        assert (row["motif"], row["end"], row["bases"]) == ("m", end, word)
        assert row["p_value"] == pytest.approx(p_value, rel=1e-5)
        assert row["importance"] == pytest.approx(importance, rel=1e-9)
        assert row["percentile"] == pytest.approx(percentile, rel=1e-9)
    assert found["percentile"] == sorted(found["percentile"], reverse=True)


def test_hits_of_tokens_and_errors() -> None:
    letters = "ACGTGACTCAGG[SEP]"
    tokens = {"row": [3] * 12, "position": list(range(1, 13)), "token": list(letters[:12]), "effect": [0.0] * 12}
    tokens["effect"][4:11] = [1.0] * 7
    found = hf_ssm.motif_hits(tokens, {"AP1": motif_of_letters("TGASTCA")}, threshold=0.01)
    assert [(row["start"], row["end"], row["bases"], row["importance"]) for row in found] == [
        (4, 10, "TGACTCA", pytest.approx(6 / 7)),
        (4, 10, "TGAGTCA", pytest.approx(6 / 7)),
    ]
    # Distances and absolute scores of substitutions are large where they matter; others are low.
    distances = {"pos": tokens["position"], "ref": tokens["token"], "alt": ["A"] * 12}
    for name, sign in (("embedding_distance", 1), ("abs_llr", 1), ("llr", -1), ("next_token", -1)):
        table = distances | {name: tokens["effect"]}
        first = hf_ssm.motif_hits(table, {"AP1": motif_of_letters("TGASTCA")}, score=name, threshold=0.01)[0]
        assert first["importance"] == pytest.approx(sign * 6 / 7)
    for change, options, message in (
        ({"position": None}, {}, "no column of positions"),
        ({}, {"score": "llr"}, r"no column of scores \(llr\); its columns are row, position, token, effect"),
        ({"effect": [math.nan] * 12}, {}, "no base of the table has a number in the column 'effect'"),
        ({}, {"score": "token"}, "the column 'token' of the table does not hold numbers"),
        ({}, {"threshold": 2.0}, "`threshold`=2.0: give a p-value"),
    ):
        columns = {name: values for name, values in (tokens | change).items() if values is not None}
        with pytest.raises(ValueError, match=message):
            hf_ssm.motif_hits(columns, {"AP1": motif_of_letters("TGASTCA")}, **options)


SEQUENCES = ["".join(random.Random(seed).choices("ACGTacgt", k=20)) for seed in range(4)]


def value(model: Any, text: str, kind: str, target: int) -> float:
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[VOCABULARY[base] for base in text.upper()]])).logits[0]
    if kind == "log_odds":
        return (logits[target] - logits[1 - target]).item()
    return logits.log_softmax(-1)[target].item() if kind == "log_probability" else logits[target].item()


@pytest.mark.parametrize(
    ("family", "options", "target", "kind"),
    [
        ("S4", {}, None, "log_odds"),
        ("SelectiveSSM", {"num_labels": 3}, 2, "log_probability"),
        ("Hyena", {"num_labels": 1, "problem_type": "regression"}, None, "value"),
    ],
)
def test_deep_lift_is_complete_and_linear_in_the_hypothetical_bases(
    make_model: Any, family: str, options: dict[str, Any], target: int | None, kind: str
) -> None:
    from tangermeme.ersatz import dinucleotide_shuffle

    model = make_model(family, "ForSequenceClassification", **options).double()
    tokenizer = hf_ssm.build_dna_tokenizer()
    found = hf_ssm.base_attributions(model, tokenizer, SEQUENCES, target, references=3, seed=5)
    index = {None: 1 if kind == "log_odds" else 0}.get(target, target)
    assert found.one_hot.shape == found.hypothetical.shape == (4, 4, 20)
    assert found.one_hot.argmax(1).tolist() == [["ACGT".index(base) for base in text.upper()] for text in SEQUENCES]
    for row, text in enumerate(SEQUENCES):
        shuffles = [
            dinucleotide_shuffle(torch.from_numpy(found.one_hot[row : row + 1]), n=1, random_state=5 + number)[0, 0]
            for number in range(3)
        ]
        texts = ["".join("ACGT"[code] for code in shuffle.argmax(0).tolist()) for shuffle in shuffles]
        output = value(model, text, kind, index)
        expected = output - statistics.mean(value(model, other, kind, index) for other in texts)
        assert found.output[row] == pytest.approx(output, rel=1e-9)
        assert found.difference[row] == pytest.approx(expected, rel=1e-6)
        size = float(np.abs(found.hypothetical[row] * found.one_hot[row]).sum())
        assert found.total[row] == pytest.approx(expected, rel=1e-6, abs=1e-6 * size)
        # A base that all references have at a position contributes nothing there.
        for place in range(20):
            bases = {other[place] for other in texts}
            if len(bases) == 1:
                assert abs(found.hypothetical[row, "ACGT".index(*bases), place]) < 1e-6
    alone = hf_ssm.base_attributions(model, tokenizer, SEQUENCES[2:3], target, references=3, seed=5)
    np.testing.assert_allclose(alone.hypothetical[0], found.hypothetical[2], rtol=1e-5, atol=1e-7)


def test_attention_has_rules_and_incomplete_attributions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    bert = BertForSequenceClassification(BertConfig(**sizes, vocab_size=12, initializer_range=0.4)).double().eval()
    arguments = bert, hf_ssm.build_dna_tokenizer(), SEQUENCES[:2]
    found = hf_ssm.base_attributions(*arguments, references=2)
    np.testing.assert_allclose(found.total, found.difference, rtol=1e-5)
    monkeypatch.setattr("hf_ssm.inference.modisco.deep_lift_rules", lambda model: contextlib.nullcontext())
    with pytest.raises(ValueError, match=r"no rules for some operations of BertFor.* miss the change of the output by"):
        hf_ssm.base_attributions(*arguments, references=2)


def test_in_silico_mutagenesis_beside_a_loop(make_model: Any) -> None:
    tokenizer = hf_ssm.build_dna_tokenizer()
    model = make_model("S5", "ForSequenceClassification").double()
    found = hf_ssm.base_attributions(model, tokenizer, SEQUENCES[:2], 0, method="in_silico_mutagenesis")
    for row, text in enumerate(SEQUENCES[:2]):
        for place in range(20):
            values = [value(model, text[:place] + base + text[place + 1 :], "log_odds", 0) for base in "ACGT"]
            expected = [one - statistics.mean(values) for one in values]
            np.testing.assert_allclose(found.hypothetical[row, :, place], expected, rtol=1e-6, atol=1e-8)
    assert np.isnan(found.difference).all()


def test_errors_of_attributions(make_model: Any) -> None:
    tokenizer, model = hf_ssm.build_dna_tokenizer(), make_model("S4", "ForSequenceClassification", num_labels=3)
    backend = Tokenizer(models.BPE(vocab={**VOCABULARY, "AC": 12}, merges=[("A", "C")], unk_token="[UNK]"))
    joined = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")
    both = make_model("S4", "ForSequenceClassification", rc_equivariant=True)
    for arguments, options, message in (
        ((model, tokenizer, SEQUENCES), {}, "`target` is missing: the model has 3 outputs"),
        ((model, tokenizer, SEQUENCES, 3), {}, "`target`=3: give a number from 0 to 2"),
        ((model, tokenizer, ["ACGT", "ACNT"], 0), {}, "sequence 1 has other letters than A, C, G and T"),
        ((model, joined, SEQUENCES, 0), {}, "'deep_lift' needs .* one token for each base"),
        ((make_model("S4", "ForCausalLM"), tokenizer, SEQUENCES), {}, "'deep_lift' needs a classifier"),
        (
            (both, tokenizer, SEQUENCES),
            {},
            "needs a classifier or regressor that reads one strand.* reads both strands.* use 'in_silico_mutagenesis'",
        ),
        ((model, tokenizer, SEQUENCES, 0), {"method": "x"}, "`method`"),
        ((model, tokenizer, SEQUENCES, 0), {"references": 0}, "`references`=0"),
    ):
        with pytest.raises(ValueError, match=message):
            hf_ssm.base_attributions(*arguments, **options)
