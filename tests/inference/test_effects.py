"""Effects on predictions against plain loops in float64 over single windows, which share no code with them.

The genome is soft-masked and rich in N, and windows reach beyond the ends of its contigs. The tokenizers have one token
for each base, with special tokens or without.
"""

import math
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.genome import Genome
from hf_ssm.inference import evaluate_scores

pytest.importorskip("pysam", reason="pysam is not installed")

PLAIN = hf_ssm.build_dna_tokenizer()
VOCABULARY = PLAIN.get_vocab()
COMPLEMENT = dict(zip("ACGTNR", "TGCANY", strict=True))
WINDOW, LEFT = 13, 6
NAMES = {0: "silencer", 1: "open enhancer", 2: "promoter"}


def with_ends() -> PreTrainedTokenizerFast:
    """Knows capitals only, and adds special tokens on both sides."""
    backend = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token="[UNK]", fuse_unk=False))
    ends = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "mask", "pad", "cls", "sep")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def contigs() -> dict[str, str]:
    rng = random.Random(5)
    first, second = rng.choices("ACGT", k=60), rng.choices("ACGT", k=40)
    first[24:33] = "N" * 9
    first[45:55] = "A" * 10
    return {
        "chr1": "".join(first[:8]) + "".join(first[8:30]).lower() + "".join(first[30:]),
        "chr2": "".join(second[:20]) + "".join(second[20:]).lower(),
    }


CONTIGS = contigs()
VARIANTS = [
    *[("chr1", start, (0, 1)) for start in (0, 1, 7, 15, 23, 33, 36, 59)],
    *[("chr1", start, (3, 1)) for start in (0, 12, 49, 57)],
    *[("chr1", start, (1, 3)) for start in (2, 14, 48, 59)],
    *[("chr2", start, sizes) for start in (0, 21, 39) for sizes in ((1, 1), (1, 2))],
    *[("chr2", start, (2, 2)) for start in (10, 30)],
]


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


def rows() -> list[dict[str, Any]]:
    made = []
    for chrom, start, (count, alternative) in VARIANTS:
        ref = CONTIGS[chrom][start : start + max(1, count)].upper()
        alts = [turned(ref)] if count < 2 and alternative == 1 else [ref[0]]
        if alternative == 3:
            alts = [ref + "GA", ref + "TT"]
        if (count, alternative) == (1, 2):
            alts = [turned(ref), ref + "C"]
        if (count, alternative) == (2, 2):
            alts = [turned(ref) if turned(ref) != ref else "".join("CA" if ref != "CA" else "GT")]
        made += [{"chrom": chrom, "pos": start + 1, "ref": ref, "alt": alt} for alt in alts]
    return made


@pytest.fixture
def genome(tmp_path: Path) -> Iterator[Genome]:
    (tmp_path / "g.fa").write_text("".join(f">{name}\n{text}\n" for name, text in CONTIGS.items()))
    with Genome(tmp_path / "g.fa") as opened:
        yield opened


def bert(head: Any, **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return head(BertConfig(**sizes, vocab_size=12, initializer_range=0.5, **config)).double().eval()


# Kind of prediction, whether of tokens, and the tokenizer.
MODELS: dict[str, tuple[str, bool, Any]] = {
    "S4": ("classes", False, PLAIN),
    "SelectiveSSM labels": ("labels", False, PLAIN),
    "S4 values": ("values", False, with_ends()),
    "Bert": ("classes", False, with_ends()),
    "S5 tokens": ("classes", True, PLAIN),
    "Bert tokens": ("labels", True, with_ends()),
    "Hyena token values": ("values", True, PLAIN),
}
PROBLEMS = {"classes": "single_label_classification", "labels": "multi_label_classification", "values": "regression"}


def model_of(make_model: Any, name: str) -> Any:
    kind, of_tokens, _ = MODELS[name]
    options = {"id2label": NAMES, "problem_type": PROBLEMS[kind]}
    if kind == "values":
        options["id2label"] = {0: "LABEL_0", 1: "LABEL_1"}
    if name.startswith("Bert"):
        return bert(BertForTokenClassification if of_tokens else BertForSequenceClassification, **options)
    head = "ForTokenClassification" if of_tokens else "ForSequenceClassification"
    options["num_labels"] = len(options["id2label"])
    return make_model(name.split()[0], head, num_hidden_layers=1, **options).double()


@lru_cache(maxsize=None)
def predicted(model: Any, kind: str, tokenizer: Any, text: str) -> list[list[float]]:
    """Probability or value of each class, of a window or of each base."""
    ids = [VOCABULARY[letter] if letter in "ACGT" else VOCABULARY["N"] for letter in text]
    if tokenizer is not PLAIN:
        ids = [VOCABULARY["[UNK]"] if letter not in "ACGTN" else VOCABULARY[letter] for letter in text]
        ids = [VOCABULARY["[CLS]"], *ids, VOCABULARY["[SEP]"]]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    lines = logits.tolist() if logits.dim() == 2 else [logits.tolist()]
    if logits.dim() == 2 and tokenizer is not PLAIN:
        lines = lines[1:-1]
    return [probabilities(kind, line) for line in lines]


def probabilities(kind: str, line: list[float]) -> list[float]:
    if kind == "values":
        return line
    if kind == "labels":
        return [1 / (1 + math.exp(-value)) for value in line]
    total = sum(math.exp(value) for value in line)
    return [math.exp(value) / total for value in line]


def log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


def is_mostly_unknown(text: str) -> bool:
    return sum(letter not in "ACGT" for letter in text) > len(text) / 2


def views(row: dict[str, Any], shifts: list[int]) -> Iterator[tuple[str, list[str], int]]:
    """Strand, both windows, and the number of bases before the alleles."""
    text, start = CONTIGS[row["chrom"]].upper(), row["pos"] - 1
    other = len(text) - start - len(row["ref"])
    for shift in shifts:
        strands = [("+", text, start, row["ref"], row["alt"])]
        strands.append(("-", turned(text), other, turned(row["ref"]), turned(row["alt"])))
        for strand, letters, place, ref, alt in strands:
            rests = [allele + letters[place + len(ref) :] for allele in (ref, alt)]
            count = min(WINDOW - LEFT + shift, *map(len, rests))
            before = letters[max(0, place - LEFT + shift) : place]
            windows = [before + rest[:count] for rest in rests]
            if windows[0] != windows[1] and not any(map(is_mostly_unknown, windows)):
                yield strand, windows, len(before)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def expected_effects(
    model: Any, name: str, row: dict[str, Any], shifts: list[int], number: int, flank: int | None, strands: str
) -> dict[str, float] | None:
    """The columns of class `number`, without its name."""
    kind, of_tokens, tokenizer = MODELS[name]
    alleles = [len(row["ref"]), len(row["alt"])]
    levels: dict[str, list[float]] = {"ref": [], "alt": [], "logit_ref": [], "logit_alt": []}
    by_place: dict[int, list[float]] = {}
    for strand, windows, before in views(row, shifts):
        if strand not in strands:
            continue
        # An allele may end behind its window, at the end of a contig.
        behind = max(0, len(windows[0]) - before - max(alleles))
        first = before - min(before, before if flank is None else flank)
        tracks: list[dict[int, float]] = []
        for allele, window, size in zip(("ref", "alt"), windows, alleles, strict=True):
            values = [of_base[number] for of_base in predicted(model, kind, tokenizer, window)]
            chosen = list(range(len(values)))
            if of_tokens:
                last = before + size + min(behind, behind if flank is None else flank)
                chosen = list(range(first, min(len(values), last)))
            levels[allele].append(sum(values[place] for place in chosen))
            if kind != "values":
                levels[f"logit_{allele}"].append(sum(log_odds(values[place]) for place in chosen))
            track = {}
            for place in chosen if of_tokens else ():
                # From the first base of the allele, in the direction of the strand, and of the reference.
                offset = place - before
                if 0 <= offset < size and alleles[0] != alleles[1]:
                    continue
                offset += alleles[0] - size if offset >= size else 0
                track[offset if strand == "+" else alleles[0] - 1 - offset] = values[place]
            tracks.append(track)
        for place in tracks[0].keys() & tracks[1].keys():
            by_place.setdefault(place, []).append(tracks[1][place] - tracks[0][place])
    if not levels["ref"]:
        return None
    result = {column: mean(values) for column, values in levels.items() if values}
    for scale in ("", "logit_") if kind != "values" else ("",):
        result[f"{scale}delta"] = result[f"{scale}alt"] - result[f"{scale}ref"]
    if of_tokens:
        place = max(sorted(by_place), key=lambda place: abs(mean(by_place[place])))
        result |= {"delta_max": mean(by_place[place]), "delta_max_offset": place}
    return result


def check(row: dict[str, Any], title: str, expected: dict[str, float] | None, suffix: str = "") -> None:
    columns = [column for column in row if column.startswith(f"{title}_") and column.endswith(suffix)]
    if expected is None:
        assert all(row[column] is None for column in columns)
        return
    for column, value in expected.items():
        if column == "delta_max_offset" and abs(expected["delta_max"]) < 1e-9:
            # Rounding only: a causal model has read nothing of the variant.
            continue
        found = row[f"{title}_{column}{suffix}"]
        assert found == pytest.approx(value, rel=1e-8, abs=1e-10), (column, row)


@pytest.mark.parametrize("name", MODELS)
def test_effects_of_both_strands_and_shifts(make_model, genome: Genome, name: str) -> None:
    model, (kind, of_tokens, tokenizer) = model_of(make_model, name), MODELS[name]
    options = {"window": WINDOW, "shifts": [-2, 0, 1], "max_tokens_per_batch": 100, "per_strand": True}
    found = hf_ssm.score_variants(model, tokenizer, rows(), genome, target="all", **options)
    titles = ["value_0", "value_1"] if kind == "values" else list(NAMES.values())
    scored = 0
    for row, variant in zip(found, rows(), strict=True):
        for number, title in enumerate(titles):
            expected = expected_effects(model, name, variant, [-2, 0, 1], number, None, "+-")
            assert bool(row["reason"]) == (expected is None), row
            check(row, title, expected)
            for strand, sign in (("forward", "+"), ("reverse", "-")):
                of_strand = expected_effects(model, name, variant, [-2, 0, 1], number, None, sign)
                check(row, title, of_strand, f"_{strand}")
        scored += not row["reason"]
    assert len(rows()) / 2 < scored <= len(rows())
    # Every result of the expectation is a column, and the other way round.
    count = (3 if kind == "values" else 6) + 2 * of_tokens
    assert len(found.column_names) == 4 + 3 * count * len(titles) + 2


@pytest.mark.parametrize("name", ["S5 tokens", "Bert tokens"])
def test_flanks_of_tokens_on_one_strand(make_model, genome: Genome, name: str) -> None:
    model, tokenizer = model_of(make_model, name), MODELS[name][2]
    options = {"window": WINDOW, "flank": 2, "both_strands": False}
    found = hf_ssm.score_variants(model, tokenizer, rows(), genome, target=["promoter"], **options)
    for row, variant in zip(found, rows(), strict=True):
        check(row, "promoter", expected_effects(model, name, variant, [0], 2, 2, "+"))
    assert not any(column.startswith("silencer") for column in found.column_names)


def test_the_window_is_that_of_predict(make_model, genome: Genome) -> None:
    """For a prediction of tokens of several letters too: those that begin in both windows count."""
    backend = Tokenizer(
        models.BPE(
            vocab={**VOCABULARY, "AC": 12, "GT": 13, "TT": 14},
            merges=[("A", "C"), ("G", "T"), ("T", "T")],
            unk_token="[UNK]",
        )
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
    model = make_model("S4", "ForTokenClassification", vocab_size=16, num_labels=2).double()
    text = "ACGTTGACCTTGATTA"
    pairs = [
        {"ref_sequence": text, "alt_sequence": "ACGTTGGCCTTGATTA"},
        {"ref_sequence": text, "alt_sequence": "ACGTTGATTA"},
    ]
    found = hf_ssm.score_variants(model, tokenizer, pairs, target="1", both_strands=False)
    for row, pair in zip(found, pairs, strict=True):
        size = min(map(len, pair.values()))
        tables = [
            hf_ssm.predict(model, tokenizer, [pair[f"{allele}_sequence"][:size]]).to_pandas()
            for allele in ("ref", "alt")
        ]
        sums = [table["probability_LABEL_1"].sum() for table in tables]
        assert [row["LABEL_1_ref"], row["LABEL_1_alt"]] == pytest.approx(sums, rel=1e-10)
        if len(pair["ref_sequence"]) != len(pair["alt_sequence"]):
            assert row["LABEL_1_delta_max"] is None
            assert "LABEL_1_delta_max: no token that both alleles have" in row["missing"]
            continue
        both = tables[0].merge(tables[1], on=["start", "end"])
        assert 4 < len(both) < len(tables[0])
        differences = both["probability_LABEL_1_y"] - both["probability_LABEL_1_x"]
        best = differences.abs().idxmax()
        assert row["LABEL_1_delta_max"] == pytest.approx(differences[best], rel=1e-10)
        assert row["LABEL_1_delta_max_offset"] == both["start"][best]


def test_metrics_of_effects_are_those_of_their_size(make_model, genome: Genome) -> None:
    model = model_of(make_model, "S4")
    labelled = [{**row, "label": number % 2} for number, row in enumerate(rows())]
    found = hf_ssm.score_variants(model, PLAIN, labelled, genome, target="promoter", window=WINDOW)
    metrics = evaluate_scores(found, "label", scores=["promoter_delta"]).to_list()
    frame = found.to_pandas().dropna(subset="promoter_delta")
    sizes = frame["promoter_delta"].abs()
    pairs = [(a, b) for a in sizes[frame["label"] == 1] for b in sizes[frame["label"] == 0]]
    assert metrics[0]["value"] == pytest.approx(sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs))


def test_bad_arguments(make_model, genome: Genome) -> None:
    model, tokens = model_of(make_model, "S4"), model_of(make_model, "S5 tokens")
    causal = make_model("S4", "ForCausalLM")
    pair = [{"ref_sequence": "ACGTACGT", "alt_sequence": "ACGTTCGT"}]
    for chosen, options, message in [
        (model, {"target": "promotor"}, "did you mean 'promoter'"),
        (model, {"target": []}, "`target` names no class"),
        (model, {"target": "all", "shifts": []}, "`shifts` is empty"),
        (model, {"target": "all", "flank": 3}, "only for a classifier of tokens"),
        (tokens, {"target": "all", "flank": -1}, "`flank`=-1"),
        (causal, {"flank": 3}, "`flank`=3 needs `target`"),
        (model, {"target": "all", "scores": ["embedding_distance"]}, "exclude each other"),
        (causal, {"target": "all"}, "needs a classifier or a regressor, not a S4ForCausalLM"),
        (model, {"target": "all", "shifts": [0, 600]}, "600 bases move the variant out of the window"),
        (model, {"target": "all", "shifts": [1]}, "`shifts` needs variants with `chrom` and `pos`"),
    ]:
        with pytest.raises(ValueError, match=message):
            hf_ssm.score_variants(chosen, PLAIN, pair, **options)
    with pytest.raises(ValueError, match="a column 'promoter_ref'"):
        hf_ssm.score_variants(model, PLAIN, [{**pair[0], "promoter_ref": 1}], target="all")
    next(model.parameters()).data.fill_(math.nan)
    with pytest.raises(ValueError, match="computes NaN"):
        hf_ssm.score_variants(model, PLAIN, pair, target="all")
