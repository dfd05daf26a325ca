"""Likelihoods, scores of variants and saturation mutagenesis, against plain loops over whole sequences."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.genome import Genome
from hf_ssm.inference.likelihoods import CausalLikelihood, can_branch
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.saturation import Saturation
from hf_ssm.utils.evaluation import evaluating

pytest.importorskip("pysam", reason="pysam is not installed")

FAMILIES = ("Hyena", "S4", "S5", "SelectiveSSM", "SSD", "Hyena2", "Hybrid")
TOKENIZER = hf_ssm.build_dna_tokenizer()
_COMPLEMENT = dict(zip("ACGT", "TGCA", strict=True))


def sequence(length: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices("ACGT", k=length))


def turned(text: str) -> str:
    return "".join(_COMPLEMENT[base] for base in reversed(text))


def llama(**config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=12, initializer_range=0.4, **config)).double()


@pytest.fixture
def model_of(make_model):
    def made(name: str) -> Any:
        if name == "Llama":
            return llama()
        if name == "filtered":
            return make_model("S4", "ForCausalLM", sobolev_order=0.5).double()
        return make_model(name, "ForCausalLM").double()

    return made


def log_likelihood(model: Any, text: str, first: int = 1) -> float:
    """The sum of log p(token | tokens before it) over the tokens from number `first` on, token by token."""
    ids = TOKENIZER(text, return_tensors="pt")["input_ids"]
    total = 0.0
    with evaluating(model):
        for place in range(first, ids.shape[1]):
            logits = model(input_ids=ids[:, :place]).logits[0, -1].double()
            total += logits.log_softmax(-1)[ids[0, place]].item()
    return total


def test_log_likelihoods_are_sums_over_tokens(model_of) -> None:
    model = model_of("S4")
    texts = ["ACGTTGCA", "GG", "ACGTACGTACGTAC"]
    found = hf_ssm.log_likelihoods(model, TOKENIZER, [{"sequence": text, "name": text[:2]} for text in texts])
    expected = [log_likelihood(model, text) for text in texts]
    torch.testing.assert_close(torch.tensor(found["log_likelihood"]), torch.tensor(expected), rtol=1e-10, atol=1e-10)
    assert found["tokens"] == [7, 1, 13]
    assert found["name"] == ["AC", "GG", "AC"]


def test_special_tokens_at_the_end_are_not_counted(model_of) -> None:
    model, with_end = model_of("S4"), hf_ssm.build_dna_tokenizer(add_eos=True)
    found, expected = (hf_ssm.log_likelihoods(model, own, ["ACGTTGCA"]) for own in (with_end, TOKENIZER))
    assert found.to_list() == expected.to_list()


@pytest.mark.parametrize("name", [*FAMILIES, "filtered", "Llama"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_shared_prefixes_change_nothing(model_of, name: str, dtype: torch.dtype, tolerance: float) -> None:
    model = model_of(name).to(dtype)
    groups = []
    for seed, (shared, rest, count) in enumerate([(20, 9, 3), (20, 4, 2), (33, 1, 2), (0, 12, 2)]):
        # They differ from the first base behind the shared ones on.
        texts = [sequence(shared, seed) + "ACG"[extra] + sequence(rest + extra, seed) for extra in range(count)]
        groups.append([TOKENIZER(text, return_tensors="pt")["input_ids"][0] for text in texts])
    reader = SequenceModel(model, TOKENIZER, 100)
    with evaluating(model):
        shared = CausalLikelihood(reader)
        assert shared.shares
        found, before = shared.groups(groups), reader.tokens
        expected = CausalLikelihood(reader, share=False).groups(groups)
    assert before < reader.tokens - before
    for own, naive in zip(found, expected, strict=True):
        torch.testing.assert_close(own, naive, rtol=tolerance, atol=tolerance)


def test_states_that_take_single_tokens_are_not_shared() -> None:
    # transformers' Mamba ignores its state when it reads several tokens.
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 12, "state_size": 4}
    model = MambaForCausalLM(MambaConfig(**sizes)).eval()
    ids = torch.tensor([[7, 8]])
    assert not can_branch(model(ids, use_cache=True).cache)
    assert can_branch(llama().eval()(ids, use_cache=True).cache)
    reader = SequenceModel(model, TOKENIZER)
    with evaluating(model):
        assert not CausalLikelihood(reader).shares


GENOME = sequence(160)


@pytest.fixture
def genome(tmp_path: Path):
    lines = [GENOME[:60] + GENOME[60:100].lower(), GENOME[100:]]
    (tmp_path / "g.fa").write_text(">chr1 a contig\n" + "\n".join(lines) + "\n>chr2\nACGTAACC\n")
    with Genome(tmp_path / "g.fa") as found:
        yield found


def other(base: str) -> str:
    return _COMPLEMENT[base]


def snv(place: int, chrom: str = "chr1", **columns: Any) -> dict[str, Any]:
    """The complement of a base, 0-based."""
    return {"chrom": chrom, "pos": place + 1, "ref": GENOME[place], "alt": other(GENOME[place]), **columns}


def naive_llr(model: Any, windows: list[tuple[str, str]]) -> float:
    scores = [log_likelihood(model, alt) - log_likelihood(model, ref) for ref, alt in windows]
    return sum(scores) / len(scores)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ref": "AAAA"}, "reference differs from g.fa at chr1:"),
        ({"ref": "N"}, "allele 'N' has the ambiguous letter 'N'"),
        ({"chrom": "chr9"}, "contig 'chr9' is not in g.fa"),
        ({"pos": 500}, "outside of the contig"),
        ({"alt": "<DEL>"}, "symbolic allele <DEL>"),
        ({"alt": "*"}, "deleted by another variant"),
        ({"alt": None}, "no alternative allele"),
        ({"alt": "G]17:1]"}, "breakend"),
        ({"alt": "PROTEIN"}, "not a DNA sequence"),
        ({"alt": GENOME[40]}, "both alleles are equal"),
        ({"alt": "ACGTACGTACGT"}, "does not fit"),
    ],
)
def test_variants_without_scores_have_a_reason(model_of, genome: Genome, changes: dict[str, Any], reason: str) -> None:
    rows = [snv(40), {**snv(40), **changes}, snv(41)]
    found = hf_ssm.score_variants(model_of("S4"), TOKENIZER, rows, genome, window=12, scores=["llr"])
    assert reason in found["reason"][1]
    assert [value is None for value in found["llr"]] == [False, True, False]
    assert found["pos"] == [row["pos"] for row in rows]


def test_names_of_contigs_with_and_without_chr(model_of, genome: Genome) -> None:
    rows = [snv(40), snv(40, chrom="1")]
    found = hf_ssm.score_variants(model_of("S4"), TOKENIZER, rows, genome, window=12)
    assert found["llr"][0] == found["llr"][1]


def cased_tokenizer() -> Any:
    """Without lower-case letters, as the tokenizer of HyenaDNA."""
    backend = Tokenizer(models.BPE(vocab=TOKENIZER.get_vocab(), merges=[], unk_token="[UNK]", fuse_unk=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", mask_token="[MASK]")


def test_soft_masked_genomes_are_read_as_capitals(model_of, genome: Genome, caplog: pytest.LogCaptureFixture) -> None:
    model, rows = model_of("S4"), [snv(place) for place in (58, 80, 95, 120)]
    expected = hf_ssm.score_variants(model, TOKENIZER, rows, genome, window=12)
    assert not caplog.records
    found = hf_ssm.score_variants(model, cased_tokenizer(), rows, genome, window=12)
    assert found["llr"] == pytest.approx(expected["llr"], abs=1e-12)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "read as capitals" in caplog.text and "--keep-case" in caplog.text
    kept = hf_ssm.score_variants(model, cased_tokenizer(), rows, genome, window=12, keep_case=True)
    assert [value is None for value in kept["llr"]] == [False, True, True, False]
    assert "of the window are N or unknown" in kept["reason"][1]
    with_sequences = [{"ref_sequence": "acgtac", "alt_sequence": "acgTtc"}]
    pairs = [
        hf_ssm.score_variants(model, tokenizer, with_sequences).to_list()
        for tokenizer in (cased_tokenizer(), TOKENIZER)
    ]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize(("keep_case", "compared"), [(False, GENOME[50:110]), (True, None)])
def test_saturation_of_soft_masked_sequences(model_of, keep_case: bool, compared: str | None) -> None:
    model, text = model_of("S4"), GENOME[50:60] + GENOME[60:100].lower() + GENOME[100:110]
    options = {"window": 16, "horizon": 6, "keep_case": keep_case}
    found = hf_ssm.saturate(model, cased_tokenizer(), text, 5, 20, **options)
    if compared is not None:
        assert found.to_list() == hf_ssm.saturate(model, TOKENIZER, compared, 5, 20, **options).to_list()
        return
    unknown = [row for row in found if row["position"] >= 10]
    assert unknown and all(row["llr"] is None and row["reason"] for row in unknown)


def test_saturation_keeps_the_case_of_a_model_that_knows_both(make_model) -> None:
    model, tokenizer = make_model("S4", "ForCausalLM", vocab_size=300).double(), hf_ssm.build_byte_tokenizer()
    text = GENOME[:10] + GENOME[10:30].lower()
    options = {"both_strands": False, "window": 16, "horizon": 6, "keep_case": True}
    for row in hf_ssm.saturate(model, tokenizer, text, 14, 16, **options):
        place = row["position"]
        pair = [text[6 : place + 6], text[6:place] + row["alt"].lower() + text[place + 1 : place + 6]]
        one, two = hf_ssm.log_likelihoods(model, tokenizer, pair)["log_likelihood"]
        assert row["llr"] == pytest.approx(two - one, abs=1e-9)


def test_embedding_distance(make_model) -> None:
    model = make_model("S4", "ForSequenceClassification").double()
    rows = [{"ref_sequence": "ACGTACGTTT", "alt_sequence": "ACGTTCGTTT", "id": 7}]
    found = hf_ssm.score_variants(model, TOKENIZER, rows, scores=["embedding_distance"], both_strands=False)
    with evaluating(model):
        ids = TOKENIZER(list(map(str, rows[0].values()))[:2], return_tensors="pt")["input_ids"]
        means = model(input_ids=ids, output_hidden_states=True).hidden_states[-1].mean(1)
    assert found["embedding_distance"][0] == pytest.approx((means[0] - means[1]).norm().item(), abs=1e-10)
    assert found["id"] == [7]
    with_end = hf_ssm.build_dna_tokenizer(add_eos=True)
    with evaluating(model):
        longer = torch.nn.functional.pad(ids, (0, 1), value=with_end.eos_token_id)
        means = model(input_ids=longer, output_hidden_states=True).hidden_states[-1][:, :-1].mean(1)
    found = hf_ssm.score_variants(model, with_end, rows, both_strands=False)
    assert found["embedding_distance"][0] == pytest.approx((means[0] - means[1]).norm().item(), abs=1e-10)


def test_sequences_of_different_lengths_are_cut(model_of) -> None:
    model = model_of("S4")
    rows = [{"ref_sequence": "ACGTACGTTT", "alt_sequence": "ACGTACGGTTTAA"}]
    found = hf_ssm.score_variants(model, TOKENIZER, rows, both_strands=False)
    assert found["llr"][0] == pytest.approx(naive_llr(model, [("ACGTACGTTT", "ACGTACGGTT")]), abs=1e-9)


@pytest.mark.parametrize("name", [*FAMILIES, "Llama"])
def test_saturation_equals_reading_every_mutant(model_of, monkeypatch, name: str) -> None:
    model = model_of(name)
    text = GENOME[:20] + "N" + GENOME[21:60]
    options = {"window": 16, "horizon": 6}
    shared = hf_ssm.saturate(model, TOKENIZER, text, 10, 38, **options)
    with monkeypatch.context() as patch:
        patch.setattr(CausalLikelihood.__init__, "__defaults__", (False,))
        naive = hf_ssm.saturate(model, TOKENIZER, text, 10, 38, **options)
    assert len(shared) == 3 * 27 and 20 not in shared["position"]
    first = hf_ssm.saturate(model, TOKENIZER, text, 0, 2, both_strands=False, **options)
    assert [value is None for value in first["next_token"]] == [True] * 3 + [False] * 3
    assert None not in list(first["llr"])
    for score in ("llr", "next_token"):
        assert shared[score] == pytest.approx(naive[score], abs=1e-10)


def test_the_score_of_the_next_token_alone_reads_the_context_once(model_of) -> None:
    model, tokens = model_of("S4"), []
    for scores in (None, ["next_token"]):
        saturation = Saturation(SequenceModel(model, TOKENIZER), scores=scores, window=16, horizon=6)
        with evaluating(model):
            tokens.append((saturation.table(GENOME[:60], 20, 30), saturation.model.tokens))
    (both, many), (alone, few) = tokens
    assert alone.column("next_token").to_pylist() == pytest.approx(both.column("next_token").to_pylist(), abs=1e-10)
    assert "llr" not in alone.column_names
    assert few <= 2 * (10 + 16) < many


def test_the_horizon_ends_the_windows_of_variants(model_of, genome: Genome) -> None:
    model = model_of("S4")
    row = {"chrom": "chr1", "pos": 61, "ref": GENOME[60], "alt": turned(GENOME[60])}
    (found,) = hf_ssm.score_variants(model, TOKENIZER, [row], genome, window=16, horizon=3, both_strands=False)
    (whole,) = hf_ssm.score_variants(model, TOKENIZER, [row], genome, window=16, both_strands=False)
    first = 60 - 8
    pair = (GENOME[first:63], GENOME[first:60] + row["alt"] + GENOME[61:63])
    assert found["llr"] == pytest.approx(naive_llr(model, [pair]), abs=1e-9)
    assert abs(found["llr"] - whole["llr"]) > 1e-6


def test_bad_arguments(make_model, model_of, genome: Genome) -> None:
    model = model_of("S4")
    with pytest.raises(ValueError, match="`scores`='lr' is not known"):
        hf_ssm.score_variants(model, TOKENIZER, [snv(4)], genome, scores=["lr"])
    with pytest.raises(ValueError, match="needs a masked language model"):
        hf_ssm.score_variants(model, TOKENIZER, [snv(4)], genome, scores=["masked_log_odds"])
    with pytest.raises(ValueError, match="`window`=1"):
        hf_ssm.score_variants(model, TOKENIZER, [snv(4)], genome, window=1)
    with pytest.raises(ValueError, match="give `genome`"):
        hf_ssm.score_variants(model, TOKENIZER, [snv(4)])
    with pytest.raises(ValueError, match="no column 'alt'"):
        hf_ssm.score_variants(model, TOKENIZER, [{"chrom": "chr1", "pos": 3, "ref": "A"}], genome)
    with pytest.raises(ValueError, match="not a whole number"):
        hf_ssm.score_variants(model, TOKENIZER, [{**snv(4), "pos": "x"}], genome)
    broken = model_of("S4")
    broken.lm_head.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match=r"variant chr1:5 .* computes NaN"):
        hf_ssm.score_variants(broken, TOKENIZER, [snv(4)], genome)
    with pytest.raises(ValueError, match="the model computes NaN"):
        hf_ssm.saturate(broken, TOKENIZER, GENOME, 3, 5)
    with pytest.raises(ValueError, match=r"the input has a column 'reason'.* rename the column"):
        hf_ssm.score_variants(model, TOKENIZER, [snv(4, reason="x")], genome)
    with pytest.raises(ValueError, match="not a language model"):
        hf_ssm.saturate(make_model("S4", "ForSequenceClassification"), TOKENIZER, GENOME)
    with pytest.raises(ValueError, match="give a region inside the 160 bases"):
        hf_ssm.saturate(model, TOKENIZER, GENOME, 5, 200)
