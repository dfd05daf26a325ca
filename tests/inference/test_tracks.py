"""`base_likelihoods` and `BaseTracks` against plain loops in float64, which share no code with them.

The contigs are soft-masked and rich in N; one is shorter than a window. The tokenizers have special tokens or none.
"""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import hf_ssm
from hf_ssm.data.genome import Genome
from hf_ssm.data.regions import Region, Regions
from hf_ssm.inference import base_likelihoods
from hf_ssm.inference.model import SequenceModel
from hf_ssm.inference.tracks import BaseTracks, entries_of_chunks

VOCABULARY = hf_ssm.build_dna_tokenizer().get_vocab()
MASK, N = VOCABULARY["[MASK]"], VOCABULARY["N"]
COMPLEMENT = dict(zip("ACGTNRacgtnr", "TGCANYtgcany", strict=True))
WINDOW = 11
BASES = [VOCABULARY[base] for base in "ACGT"]


def contig(length: int, seed: int) -> str:
    letters = random.Random(seed).choices("ACGT", k=length)
    if length > 40:
        letters[24:33] = "N" * 9
        letters[15] = "R"
    return "".join(letters[:8]) + "".join(letters[8:20]).lower() + "".join(letters[20:])


CONTIGS = {"b": contig(57, 1), "a": contig(9, 2), "one": "G"}


def with_ends() -> PreTrainedTokenizerFast:
    """Adds special tokens on both sides, and knows capitals only."""
    backend = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[], unk_token="N", fuse_unk=False))
    ends = [(token, VOCABULARY[token]) for token in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="N", mask_token="[MASK]", pad_token="[PAD]")


def llama() -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=12, bos_token_id=None, eos_token_id=None))


CASES = {
    "S4": lambda make: (make("S4", "ForCausalLM"), hf_ssm.build_dna_tokenizer(), False),
    "Llama with special tokens": lambda make: (llama(), with_ends(), True),
    "masked Hyena": lambda make: (
        make("Hyena", "ForMaskedLM", bidirectional=True),
        hf_ssm.build_dna_tokenizer(),
        False,
    ),
    "masked S4 with special tokens": lambda make: (make("S4", "ForMaskedLM", bidirectional=True), with_ends(), True),
}


def log_probs(model: Any, text: str, has_ends: bool, masked: int | None = None) -> tuple[Any, list[int], int]:
    """Log-probabilities in the places of all tokens, the ids, and the number of tokens before the letters."""
    ids = [VOCABULARY.get(letter, N) for letter in text]
    if masked is not None:
        ids[masked] = MASK
    if has_ends:
        ids = [VOCABULARY["[CLS]"], *ids] + [VOCABULARY["[SEP]"]] * (masked is not None)
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1), ids, int(has_ends)


def entropy(values: Any) -> float:
    weights = [math.exp(values[base].item()) for base in BASES]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights)


def is_too_unknown(text: str) -> bool:
    return sum(letter not in "ACGT" for letter in text) > len(text) / 2


def of_strand(
    model: Any, text: str, place: int, has_ends: bool, step: int, reverse: bool
) -> tuple[float, float] | None:
    """Likelihood and entropy of a letter of a strand in capitals; chunks are counted from the start of the contig."""
    if text[place] not in "ACGT":
        return None
    if "Masked" in type(model).__name__:
        begin = max(0, place - WINDOW // 2)
        window = text[begin : place + WINDOW - WINDOW // 2]
        if is_too_unknown(window):
            return None
        values, _, before = log_probs(model, window, has_ends, place - begin)
        row = values[before + place - begin]
        return row[VOCABULARY[text[place]]].item(), entropy(row)
    # The chunk of the letter, on the forward strand, and its span on this strand.
    forward = len(text) - 1 - place if reverse else place
    span = forward // step * step, min(len(text), (forward // step + 1) * step)
    first, last = (len(text) - span[1], len(text) - span[0]) if reverse else span
    begin = max(0, first - (WINDOW - step))
    if is_too_unknown(text[begin:last]):
        return None
    values, ids, before = log_probs(model, text[begin:last], has_ends)
    token = before + place - begin
    if token == 0:
        return None
    return values[token - 1, ids[token]].item(), entropy(values[token - 1])


def reference(model: Any, text: str, has_ends: bool, both_strands: bool = True) -> list[tuple[float, float] | None]:
    text = text.upper()
    turned = "".join(COMPLEMENT[letter] for letter in reversed(text))
    expected = []
    for place in range(len(text)):
        found = [of_strand(model, text, place, has_ends, WINDOW // 2, False)]
        if both_strands:
            found.append(of_strand(model, turned, len(text) - 1 - place, has_ends, WINDOW // 2, True))
        kept = [each for each in found if each is not None]
        expected.append(tuple(sum(column) / len(kept) for column in zip(*kept, strict=True)) if kept else None)
    return expected


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("both_strands", [True, False])
def test_every_base_is_that_of_a_loop(make_model: Any, case: str, both_strands: bool) -> None:
    model, tokenizer, has_ends = CASES[case](make_model)
    model.eval()
    for text in CONTIGS.values():
        table = base_likelihoods(
            model, tokenizer, text, window=WINDOW, both_strands=both_strands, max_tokens_per_batch=60
        ).to_list()
        expected = reference(model, text, has_ends, both_strands)
        assert [row["base"] for row in table] == list(text)
        assert sum(each is None for each in expected) < max(len(text) / 2, 2)
        for row, values in zip(table, expected, strict=True):
            if values is None:
                assert row["likelihood"] is row["entropy"] is None
            else:
                assert (row["likelihood"], row["entropy"]) == pytest.approx(values, rel=1e-6)


def test_lower_case_can_be_kept(make_model: Any) -> None:
    model, tokenizer = make_model("S4", "ForCausalLM").eval(), with_ends()
    text = CONTIGS["b"]
    kept = base_likelihoods(model, tokenizer, text, window=WINDOW, keep_case=True).to_list()
    # The tokenizer does not know lower-case letters.
    expected = reference(model, "".join("N" if letter.islower() else letter for letter in text), True)
    for row, values in zip(kept, expected, strict=True):
        assert (row["likelihood"] is None) == (values is None)
        if values is not None:
            assert (row["likelihood"], row["entropy"]) == pytest.approx(values, rel=1e-6)


@pytest.mark.parametrize("case", ["S4", "masked Hyena"])
def test_a_genome_in_chunks_and_regions(make_model: Any, tmp_path: Path, case: str) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    model, tokenizer, _ = CASES[case](make_model)
    fasta = tmp_path / "g.fa"
    fasta.write_text("".join(f">{name}\n{text}\n" for name, text in CONTIGS.items()))
    spans = [("a", 2, 4), ("b", 40, 44), ("b", 7, 12), ("b", 10, 21), ("one", 0, 1)]
    regions = Regions([Region(chrom, start, stop, "x") for chrom, start, stop in spans])
    tracks = BaseTracks(SequenceModel(model, tokenizer), window=WINDOW)
    with Genome(fasta) as genome:
        whole = tracks.job(genome).dataset().data.table
        part = tracks.job(genome, regions).dataset().data.table
    assert part["chrom"].to_pylist() == ["b"] * 5 + ["a", "one"]
    assert whole["chrom"].to_pylist() == ["b"] * 12 + ["a"] * 2 + ["one"]
    for name in ("likelihood", "entropy"):
        found = {
            (e.chrom, p): v for e in entries_of_chunks(whole, name) for p, v in zip(e.starts, e.values, strict=True)
        }
        assert len(found) == 57 + 9 + 1
        expected = {}
        for chrom, text in CONTIGS.items():
            rows = base_likelihoods(model, tokenizer, text, window=WINDOW).to_list()
            expected |= {(chrom, row["position"]): row[name] for row in rows}
        assert found == pytest.approx(
            {k: math.nan if v is None else v for k, v in expected.items()}, rel=1e-6, nan_ok=True
        )
        inside = {
            (e.chrom, p): v
            for e in entries_of_chunks(part, name, regions)
            for p, v in zip(e.starts, e.values, strict=True)
        }
        kept = {(chrom, place) for chrom, start, stop in spans for place in range(start, stop)}
        assert set(inside) == kept
        assert inside == pytest.approx({key: found[key] for key in kept}, rel=1e-6, nan_ok=True)


def test_arguments(make_model: Any) -> None:
    tokenizer = hf_ssm.build_dna_tokenizer()
    model = make_model("S4", "ForCausalLM")
    for sequence, window, message in (("", 8, "`sequence` is empty"), ("ACGT", 1, "`window`=1: give at least two")):
        with pytest.raises(ValueError, match=message):
            base_likelihoods(model, tokenizer, sequence, window=window)
    with pytest.raises(ValueError, match="is not a language model"):
        base_likelihoods(make_model("S4", "ForSequenceClassification"), tokenizer, "ACGT")
    unmasked = hf_ssm.build_dna_tokenizer()
    unmasked.mask_token = None
    with pytest.raises(ValueError, match="needs a tokenizer with a mask token"):
        base_likelihoods(make_model("S4", "ForMaskedLM", bidirectional=True), unmasked, "ACGT")
    pairs = Tokenizer(models.BPE(vocab={**VOCABULARY, "AC": 12}, merges=[("A", "C")], unk_token="N"))
    joined = PreTrainedTokenizerFast(tokenizer_object=pairs, unk_token="N")
    with pytest.raises(ValueError, match="a measure of each base needs a tokenizer with one token for each base"):
        base_likelihoods(model, joined, "ACGT")
