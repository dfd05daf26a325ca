"""`dependency_map` against a double loop over positions in float64, which shares no code with it."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.inference.dependency import ROWS_PER_PART, DependencyMap

VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
COMPLEMENT = dict(zip("ACGTNR", "TGCANY", strict=True))
# Some bases are soft-masked, some unknown; the region is longer than the rows that share a state.
LETTERS = random.Random(3).choices("ACGT", k=60)
LETTERS[21] = LETTERS[30] = "N"
LETTERS[25] = "R"
SEQUENCE = "".join(LETTERS[:28]) + "".join(LETTERS[28:40]).lower() + "".join(LETTERS[40:])
START, STOP, WINDOW = 18, 18 + ROWS_PER_PART + 3, 30
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 12}


def with_ends() -> PreTrainedTokenizerFast:
    """Knows capitals only, and adds special tokens on both sides."""
    backend = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token="[UNK]", fuse_unk=False))
    ends = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")


def probabilities(model: Any, text: str, ends: bool, is_causal: bool) -> list[list[float]]:
    """Of the four bases at each position of a text."""
    other = VOCABULARY["[UNK]"] if ends else VOCABULARY["N"]
    ids = [VOCABULARY.get(letter, other) for letter in text]
    ids = [VOCABULARY["[CLS]"]] * ends + ids + [VOCABULARY["[SEP]"]] * (ends and not is_causal)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].double()
    rows = logits.softmax(-1)[:, [VOCABULARY[base] for base in "ACGT"]]
    rows = rows / rows.sum(1, keepdim=True)
    # Of a causal model, those of a base come from the token before it.
    return rows[ends - is_causal if ends else 0 :].tolist() if ends or not is_causal else [[0.25] * 4, *rows.tolist()]


def one_strand(model: Any, text: str, first: int, last: int, ends: bool, is_causal: bool) -> np.ndarray:
    effects = np.full((last - first, 4, last - first), np.nan)
    old = probabilities(model, text, ends, is_causal)
    for i in range(first, last):
        for alt in (alt for alt in range(4) if text[i] in "ACGT" and "ACGT"[alt] != text[i]):
            mutant = text[:i] + "ACGT"[alt] + text[i + 1 :]
            new = probabilities(model, mutant, ends, is_causal)
            for j in range(i + 1 if is_causal else first, last):
                if i != j:
                    ratios = [q / (1 - q) / (p / (1 - p)) for p, q in zip(old[j], new[j], strict=True)]
                    effects[i - first, alt, j - first] = max(abs(math.log2(ratio)) for ratio in ratios)
    return effects


def expected(model: Any, ends: bool, is_causal: bool, both: bool, start: int = START, stop: int = STOP) -> np.ndarray:
    around = (WINDOW - (stop - start)) // 2
    left, right = min(around, start), min(around, len(SEQUENCE) - stop)
    text = SEQUENCE.upper()[start - left : stop + right]
    effects = [one_strand(model, text, left, left + stop - start, ends, is_causal)]
    if both:
        other = "".join(COMPLEMENT[letter] for letter in reversed(text))
        effects.append(one_strand(model, other, right, right + stop - start, ends, is_causal)[::-1, ::-1, ::-1])
    counts = sum(np.isfinite(one) for one in effects)
    sums = sum(np.nan_to_num(one) for one in effects)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def model_of(name: str, make_model: Any) -> Any:
    if name == "Llama":
        return (
            LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=None, eos_token_id=None, initializer_range=0.4))
            .double()
            .eval()
        )
    if name == "Bert":
        return BertForMaskedLM(BertConfig(**SIZES, initializer_range=0.4)).double().eval()
    family, head = name.split()
    options = {"bidirectional": True} if head == "ForMaskedLM" else {}
    return make_model(family, head, **options).double()


@pytest.mark.parametrize(
    ("name", "ends", "both"),
    [
        ("S4 ForCausalLM", False, True),
        ("SelectiveSSM ForCausalLM", True, False),
        ("Hyena ForMaskedLM", True, True),
        ("S5 ForMaskedLM", False, False),
        ("Llama", False, True),
        ("Bert", True, True),
    ],
)
def test_against_a_double_loop(make_model: Any, name: str, ends: bool, both: bool) -> None:
    model = model_of(name, make_model)
    is_causal = "Causal" in name or name == "Llama"
    tokenizer = with_ends() if ends else hf_ssm.build_dna_tokenizer()
    found = hf_ssm.dependency_map(
        model, tokenizer, SEQUENCE, START, STOP, window=WINDOW, both_strands=both, max_tokens_per_batch=200
    )
    effects = expected(model, ends, is_causal, both)
    matrix, influence = np.full((STOP - START,) * 2, np.nan), np.full((STOP - START, 4), np.nan)
    for i, of_position in enumerate(effects):
        for j in range(STOP - START):
            values = [value for value in of_position[:, j] if not math.isnan(value)]
            matrix[i, j] = max(values, default=math.nan)
        for alt, row in enumerate(of_position):
            values = [value for value in row if not math.isnan(value)]
            influence[i, alt] = sum(values) / len(values) if values else math.nan
    np.testing.assert_allclose(found.matrix, matrix, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.influence, influence, rtol=1e-6, atol=1e-9)
    assert found.sequence == SEQUENCE[START:STOP].upper() and found.start == START
    # A substitution of an unknown base has no effect; without the other strand, nor has one on the bases before it.
    is_known = np.array([base in "ACGT" for base in found.sequence])
    one_way = np.triu(np.ones_like(matrix), 1) if is_causal and not both else 1 - np.eye(len(matrix))
    assert (np.isfinite(found.matrix) == is_known[:, None] * one_way).all()
    assert np.nanmax(found.matrix) > 0.01


@pytest.mark.parametrize("name", ["S5 ForMaskedLM", "S4 ForCausalLM"])
@pytest.mark.parametrize(("start", "stop"), [(0, 6), (3, 9), (53, 60)])
def test_at_the_ends_of_a_sequence(make_model: Any, name: str, start: int, stop: int) -> None:
    """The context is shorter on one side."""
    model, tokenizer = model_of(name, make_model), hf_ssm.build_dna_tokenizer()
    found = hf_ssm.dependency_map(model, tokenizer, SEQUENCE, start, stop, window=WINDOW).matrix
    effects = expected(model, False, "Causal" in name, True, start, stop)
    largest = np.where(np.isnan(effects), -1, effects).max(1)
    np.testing.assert_allclose(np.nan_to_num(found, nan=-1), largest, rtol=1e-6, atol=1e-9)


def test_blocks_are_the_strongest_ones_that_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.random((24, 24))
    matrix[5:9, 5:9] += 5
    matrix[5:9, 15:19] += 4
    matrix[15:19, 5:9] += 3
    np.fill_diagonal(matrix, np.nan)
    matrix[2] = np.nan
    sequence = "".join(random.Random(1).choices("ACGT", k=24))
    sequence = sequence[:2] + "N" + sequence[3:]
    blocks = DependencyMap(matrix, np.zeros((24, 4)), sequence, 100).blocks(size=4, count=3)
    rows = {kind: [row for row in blocks if row["kind"] == kind] for kind in ("site", "pair")}

    def score(first: int, second: int) -> float:
        cells = {(i, j) for i in range(first, first + 4) for j in range(second, second + 4)}
        values = [matrix[i, j] for i, j in cells | {(j, i) for i, j in cells}]
        return float(np.quantile([value for value in values if not math.isnan(value)], 0.25))

    candidates = {
        "site": [(score(p, p), p, p) for p in range(3, 21)],
        "pair": [(score(p, q), p, q) for p in range(3, 21) for q in range(p + 4, 21)],
    }
    for kind, of_kind in candidates.items():
        left, chosen = sorted(of_kind, reverse=True), []
        while left and len(chosen) < 3:
            best, *left = left
            chosen.append(best)
            left = [(s, p, q) for s, p, q in left if abs(p - best[1]) >= 4 or abs(q - best[2]) >= 4]
        assert [(row["start_i"] - 100, row["start_j"] - 100) for row in rows[kind]] == [(p, q) for _, p, q in chosen]
        assert [row["score"] for row in rows[kind]] == pytest.approx([value for value, _, _ in chosen], rel=1e-12)
    assert rows["site"][0]["start_i"] == 105 and rows["site"][0]["bases_i"] == sequence[5:9]
    assert (rows["pair"][0]["start_i"], rows["pair"][0]["start_j"]) == (105, 115)
    cells = np.concatenate([matrix[5:9, 15:19], matrix[15:19, 5:9]])
    assert (rows["pair"][0]["mean"], rows["pair"][0]["max"]) == pytest.approx((cells.mean(), cells.max()))


def test_errors(make_model: Any) -> None:
    causal, tokenizer = make_model("S4", "ForCausalLM"), hf_ssm.build_dna_tokenizer()
    for arguments, message in (
        ({"start": 3, "stop": 3}, "`start`=3, `stop`=3: give a region inside the 60 bases"),
        ({"start": 3, "stop": 61}, "give a region inside the 60 bases"),
        ({"window": 20}, r"the region has 60 bases, but the context has only `window`=20 .*--window"),
        ({"window": 1}, "`window`=1: give at least two"),
    ):
        with pytest.raises(ValueError, match=message):
            hf_ssm.dependency_map(causal, tokenizer, SEQUENCE, **arguments)
    with pytest.raises(ValueError, match="the region has no A, C, G or T; give another region"):
        hf_ssm.dependency_map(causal, tokenizer, "ACGTACGTAC" + "n" * 6, 10, 16)
    # No site of two known bases.
    assert len(hf_ssm.dependency_map(causal, tokenizer, "ACGTACGTAC" + "NANCN", 10, 15).blocks(2)) == 0
    with pytest.raises(ValueError, match="60% of the window are N"):
        hf_ssm.dependency_map(causal, tokenizer, "ACGT" + "N" * 6)
    with pytest.raises(ValueError, match="is not a language model, but a dependency map needs a language model"):
        hf_ssm.dependency_map(make_model("S4", "ForSequenceClassification"), tokenizer, SEQUENCE)
    pairs = Tokenizer(models.BPE(vocab={**VOCABULARY, "AC": 12}, merges=[("A", "C")], unk_token="[UNK]"))
    joined = PreTrainedTokenizerFast(tokenizer_object=pairs, unk_token="[UNK]")
    with pytest.raises(ValueError, match="needs a tokenizer with one token for each base"):
        hf_ssm.dependency_map(causal, joined, "ACGTACGT")
    with pytest.raises(ValueError, match="`size`=9: give 2 to 3 bases"):
        DependencyMap(np.zeros((3, 3)), np.zeros((3, 4)), "ACG").blocks(9)
