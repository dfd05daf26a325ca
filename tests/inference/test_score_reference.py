"""`score_variants` and `saturate` against plain loops over windows in float64, which share no code with them.

The genome is soft-masked and rich in N, and windows reach beyond both ends of its contig. The tokenizers have special
tokens or none, and one distinguishes case.
"""

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.genome import Genome

pytest.importorskip("pysam", reason="pysam is not installed")

VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
MASK, UNKNOWN, N = (VOCABULARY[token] for token in ("[MASK]", "[UNK]", "N"))
COMPLEMENT = dict(zip("ACGTNRY", "TGCANYR", strict=True))
WINDOW, HORIZON = 12, 5
LEFT = WINDOW // 2
MODELS = {
    "S4": ("S4", "ForCausalLM", {}),
    "SSD": ("SSD", "ForCausalLM", {}),
    "masked Hyena": ("Hyena", "ForMaskedLM", {"bidirectional": True}),
    "masked SelectiveSSM": ("SelectiveSSM", "ForMaskedLM", {"bidirectional": True}),
}


def cased_tokenizer() -> PreTrainedTokenizerFast:
    """Knows capitals only, and adds special tokens on both sides."""
    backend = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token="[UNK]", fuse_unk=False))
    ends = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]", pad_token="[PAD]", cls_token="[CLS]"
    )


# Tokenizer, ids before and after those of the letters, id of a letter that is no base.
TOKENIZERS: dict[str, tuple[Any, list[int], list[int], int]] = {
    "plain": (hf_ssm.build_dna_tokenizer(), [], [], N),
    "end": (hf_ssm.build_dna_tokenizer(add_eos=True), [], [VOCABULARY["[SEP]"]], N),
    "cased": (cased_tokenizer(), [VOCABULARY["[CLS]"]], [VOCABULARY["[SEP]"]], UNKNOWN),
}


def contig() -> str:
    """70 bases, a third of them in lower case, with a run of N, a long repeat and ambiguous letters."""
    letters = random.Random(5).choices("ACGT", k=70)
    letters[24:33] = "N" * 9
    letters[45:60] = "A" * 15
    letters[15] = "R"
    letters[36] = "N"
    return "".join(letters[:8]) + "".join(letters[8:30]).lower() + "".join(letters[30:])


CONTIG = contig()


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


def token_ids(text: str, tokenizer: str) -> list[int]:
    _, before, after, other = TOKENIZERS[tokenizer]
    return [*before, *(VOCABULARY.get(letter, other) for letter in text), *after]


def log_probs(model: Any, ids: list[int]) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)


def likelihood(model: Any, ids: list[int]) -> float:
    values = log_probs(model, ids)
    return sum(values[place - 1, ids[place]].item() for place in range(1, len(ids)))


def is_mostly_unknown(*texts: str) -> bool:
    return any(sum(letter not in "ACGT" for letter in text) > len(text) / 2 for text in texts)


def mean(values: list[float]) -> float | None:
    values = [value for value in values if not math.isnan(value)]
    return sum(values) / len(values) if values else None


def close(found: float | None, expected: float | None) -> bool:
    return found == expected if expected is None else found == pytest.approx(expected, abs=1e-8)


def windows_of_strand(text: str, start: int, ref: str, alt: str) -> tuple[str, str]:
    rests = [allele + text[start + len(ref) :] for allele in (ref, alt)]
    count = min(WINDOW - LEFT, *map(len, rests))
    before = text[max(0, start - LEFT) : start]
    return before + rests[0][:count], before + rests[1][:count]


def causal_scores(model: Any, tokenizer: str, ref: str, alt: str) -> tuple[float, float]:
    after = len(TOKENIZERS[tokenizer][2])
    both = [ids[: len(ids) - after] for ids in (token_ids(ref, tokenizer), token_ids(alt, tokenizer))]
    place = next(place for place, (one, two) in enumerate(zip(*both, strict=True)) if one != two)
    llr = likelihood(model, both[1]) - likelihood(model, both[0])
    if place == 0:
        return (math.nan if len(both[0]) == 1 else llr), math.nan
    values = log_probs(model, both[0][:place])[-1]
    return llr, (values[both[1][place]] - values[both[0][place]]).item()


def masked_score(model: Any, tokenizer: str, ref: str, alt: str) -> float:
    one, two = token_ids(ref, tokenizer), token_ids(alt, tokenizer)
    places = [place for place in range(len(one)) if one[place] != two[place]]
    values = log_probs(model, [MASK if place in places else token for place, token in enumerate(one)])
    return sum((values[place, two[place]] - values[place, one[place]]).item() for place in places)


def expected_scores(model: Any, tokenizer: str, is_causal: bool, start: int, ref: str, alt: str) -> dict[str, Any]:
    text = CONTIG.upper()
    strands = [(text, start, ref, alt), (turned(text), len(text) - start - len(ref), turned(ref), turned(alt))]
    found: list[tuple[float, ...]] = []
    for strand in strands:
        pair = windows_of_strand(*strand)
        if is_mostly_unknown(*pair) or pair[0] == pair[1]:
            continue
        if is_causal:
            found.append(causal_scores(model, tokenizer, *pair))
        elif len(ref) == len(alt):
            found.append((masked_score(model, tokenizer, *pair),))
    names = ("llr", "next_token") if is_causal else ("masked_log_odds",)
    return {name: mean([values[number] for values in found]) for number, name in enumerate(names)}


def variants() -> Iterator[tuple[int, str, str]]:
    text = CONTIG.upper().replace("R", "A")
    for start in (0, 1, 6, 9, 15, 21, 23, 33, 34, 38, 52, 66, 69):
        yield start, text[start], turned(text[start])
    for start in (0, 2, 12, 52, 60, 64, 67):
        yield start, text[start : start + 3], text[start]
        yield start, text[start], text[start] + "GA"
    yield 69, text[69], text[69] + "C"
    yield 40, text[40:43], turned(text[40:43])


@pytest.fixture
def genome(tmp_path: Path) -> Iterator[Genome]:
    (tmp_path / "g.fa").write_text(f">chr1\n{CONTIG}\n")
    with Genome(tmp_path / "g.fa") as found:
        yield found


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_scores_of_variants(make_model, genome: Genome, name: str, tokenizer: str) -> None:
    family, head, options = MODELS[name]
    model = make_model(family, head, num_hidden_layers=1, **options).double()
    rows = [{"chrom": "chr1", "pos": start + 1, "ref": ref, "alt": alt} for start, ref, alt in variants()]
    found = hf_ssm.score_variants(model, TOKENIZERS[tokenizer][0], rows, genome, window=WINDOW)
    scored = 0
    for own, (start, ref, alt) in zip(found, variants(), strict=True):
        expected = expected_scores(model, tokenizer, head == "ForCausalLM", start, ref, alt)
        assert all(close(own[score], value) for score, value in expected.items()), (own, expected)
        missing = [score for score, value in expected.items() if value is None]
        assert bool(own["reason"]) == (len(missing) == len(expected)), own
        assert bool(own["missing"]) == (0 < len(missing) < len(expected)), own
        scored += not missing
    # Neither all nor none: the genome has windows of both kinds.
    assert len(rows) / 3 < scored < len(rows)


def log_prob(model: Any, ids: list[int], place: int, read: list[int]) -> float:
    """Log-probability of a token of `ids` where the model reads other ones."""
    return log_probs(model, read)[place, ids[place]].item()


def totals(model: Any, tokenizer: str, kind: str, text: str) -> tuple[float, int]:
    """A log-likelihood of a window, and how many tokens it has."""
    ids = token_ids(text, tokenizer)
    before, after = (len(TOKENIZERS[tokenizer][side]) for side in (1, 2))
    if kind == "llr":
        ids = ids[: len(ids) - after]
        return likelihood(model, ids), len(ids) - 1
    places = range(before, len(ids) - after)
    reads = [
        [MASK if kind == "pseudo_llr" and at == place else token for at, token in enumerate(ids)] for place in places
    ]
    return sum(log_prob(model, ids, place, read) for place, read in zip(places, reads, strict=True)), len(places)


@pytest.mark.parametrize("tokenizer", ["plain", "cased"])
@pytest.mark.parametrize("name", ["S4", "SSD", "masked Hyena"])
def test_forms_of_likelihoods(make_model, genome: Genome, name: str, tokenizer: str) -> None:
    family, head, options = MODELS[name]
    model = make_model(family, head, num_hidden_layers=1, **options).double()
    kinds = ("llr",) if head == "ForCausalLM" else ("pseudo_llr", "unmasked_llr")
    chosen = list(variants())[:: 2 if head == "ForCausalLM" else 4]
    rows = [{"chrom": "chr1", "pos": start + 1, "ref": ref, "alt": alt} for start, ref, alt in chosen]
    scores = [f"{form}{kind}" for kind in kinds for form in ("", "ref_", "alt_", "abs_", "mean_")]
    # Batches of a few windows.
    limits = {"window": WINDOW, "max_tokens_per_batch": 40}
    found = hf_ssm.score_variants(
        model, TOKENIZERS[tokenizer][0], rows, genome, scores=scores, per_strand=True, **limits
    )
    text = CONTIG.upper()
    for row, (start, ref, alt) in zip(found, chosen, strict=True):
        strands = [(text, start, ref, alt), (turned(text), len(text) - start - len(ref), turned(ref), turned(alt))]
        for kind in kinds:
            expected: dict[str, list[float]] = {form: [] for form in ("", "ref_", "alt_", "mean_")}
            for strand, place in zip(("forward", "reverse"), strands, strict=True):
                pair = windows_of_strand(*place)
                sums = [totals(model, tokenizer, kind, window) for window in pair]
                has_none = is_mostly_unknown(*pair) or pair[0] == pair[1] or min(sums[0][1], sums[1][1]) == 0
                if has_none:
                    assert row[f"{kind}_{strand}"] is row[f"abs_{kind}_{strand}"] is None
                    continue
                ratio = sums[1][0] - sums[0][0]
                of_strand = (ratio, sums[0][0], sums[1][0], sums[1][0] / sums[1][1] - sums[0][0] / sums[0][1])
                for form, value in zip(expected, of_strand, strict=True):
                    assert close(row[f"{form}{kind}_{strand}"], value)
                    expected[form].append(value)
                assert close(row[f"abs_{kind}_{strand}"], abs(ratio))
            means = {form: mean(values) for form, values in expected.items()}
            assert all(close(row[form + kind], value) for form, value in means.items()), (row, means)
            assert close(row[f"abs_{kind}"], None if means[""] is None else abs(means[""]))
    assert sum(not reason for reason in found["reason"]) > len(rows) / 2


def expected_substitution(
    model: Any, tokenizer: str, is_causal: bool, text: str, region: tuple[int, int], place: int, alt: str
) -> tuple[float, ...]:
    """The scores of one strand."""
    begin = max(0, (region[0] if is_causal else place) - LEFT)
    ref = text[begin : place + (HORIZON if is_causal else WINDOW - LEFT)]
    if is_mostly_unknown(ref):
        return (math.nan, math.nan)
    mutant = ref[: place - begin] + alt + ref[place - begin + 1 :]
    if is_causal:
        return causal_scores(model, tokenizer, ref, mutant)
    return (masked_score(model, tokenizer, ref, mutant),)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("region", [(0, 3), (21, 24), (33, 35), (68, 70)])
def test_saturation(make_model, name: str, tokenizer: str, region: tuple[int, int]) -> None:
    family, head, options = MODELS[name]
    model, is_causal = make_model(family, head, num_hidden_layers=1, **options).double(), head == "ForCausalLM"
    found = hf_ssm.saturate(model, TOKENIZERS[tokenizer][0], CONTIG, *region, window=WINDOW, horizon=HORIZON)
    text, size = CONTIG.upper(), len(CONTIG)
    places = [
        (place, alt) for place in range(*region) for alt in "ACGT" if text[place] in "ACGT" and alt != text[place]
    ]
    assert [(row["position"], row["alt"]) for row in found] == places
    for row, (place, alt) in zip(found, places, strict=True):
        own = expected_substitution(model, tokenizer, is_causal, text, region, place, alt)
        back, other = (size - region[1], size - region[0]), size - 1 - place
        reverse = expected_substitution(model, tokenizer, is_causal, turned(text), back, other, turned(alt))
        names = ("llr", "next_token") if is_causal else ("masked_log_odds",)
        expected = {score: mean([own[number], reverse[number]]) for number, score in enumerate(names)}
        assert all(close(row[score], value) for score, value in expected.items()), (row, expected)
        assert bool(row["reason"]) == all(value is None for value in expected.values())
