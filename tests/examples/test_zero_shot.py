"""The zero-shot recipes: generators, baselines, models whose answers are known, tiny runs."""

import importlib
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from hf_ssm.data.records import reverse_complement
from hf_ssm.inference import evaluation
from hf_ssm.inference.likelihoods import CausalLikelihood
from hf_ssm.inference.model import SequenceModel
from hf_ssm.tokenization import build_dna_tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = ("sequence_recovery", "perturbation_pairs", "needle_retrieval", "variant_effects")
SHARED = ("_zero_shot", "_markov", "_genes", "stop_variants")


@pytest.fixture(scope="module")
def recipes() -> Iterator[dict[str, ModuleType]]:
    """The scripts, imported as when Python runs them."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        patch.syspath_prepend(str(EXAMPLES / "zero_shot"))
        yield {name: importlib.import_module(name) for name in (*SHARED, *RECIPES)}
    for name in set(sys.modules) - before:
        if str(EXAMPLES) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class LookupForCausalLM(nn.Module):
    """Predicts the token that has followed the last eight tokens before."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 2)
        self.config = SimpleNamespace()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor, **options: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, 12)
        for row, ids in enumerate(input_ids.tolist()):
            known: dict[tuple[int, ...], int] = {}
            for place in range(7, len(ids)):
                words = tuple(ids[place - 7 : place + 1])
                if words in known:
                    logits[row, place, known[words]] = 9.0
                if place + 1 < len(ids):
                    known[words] = ids[place + 1]
        return SimpleNamespace(logits=logits, cache=None)


@pytest.fixture
def lookup() -> SequenceModel:
    return SequenceModel(LookupForCausalLM(), build_dna_tokenizer())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of transformers with a tokenizer of bases."""
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=12,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    build_dna_tokenizer().save_pretrained(folder)
    return str(folder)


def gene(recipes: dict[str, ModuleType], length: int = 90) -> str:
    return next(recipes["perturbation_pairs"].generated_genes(random.Random(0), 1, length))


def test_genetic_code(recipes: dict[str, ModuleType]) -> None:
    translate = recipes["_genes"].translate
    assert translate("ATGGCTTGGAAATAA") == "MAWK*"
    assert translate("TAGTGACGACACATA") == "**RHI"
    counts = Counter(recipes["_genes"].GENETIC_CODE.values())
    expected = {6: "LSR", 4: "VPTAG", 3: "I*", 2: "FYHQNKDEC", 1: "MW"}
    assert counts == {letter: count for count, letters in expected.items() for letter in letters}


def test_synonymous_codons_keep_the_protein(recipes: dict[str, ModuleType]) -> None:
    script = recipes["perturbation_pairs"]
    natural = gene(recipes)
    changed = script.synonymous(natural, random.Random(0), 1.0)
    translate = recipes["_genes"].translate
    assert translate(changed) == translate(natural)
    pairs = list(zip(script.codons(natural), script.codons(changed), strict=True))
    # Methionine and tryptophan have one codon.
    assert all((a == b) == (script.GENETIC_CODE[a] in "MW") for a, b in pairs[1:])
    assert script.synonymous("TTG" + natural, random.Random(0), 1.0).startswith("TTG")
    few = script.synonymous(natural, random.Random(0), 0.2)
    assert 0 < sum(a != b for a, b in zip(script.codons(natural), script.codons(few), strict=True)) < len(pairs) / 2


def test_expansion_keeps_length_and_frame(recipes: dict[str, ModuleType]) -> None:
    script = recipes["perturbation_pairs"]
    natural = gene(recipes)
    for seed in range(30):
        changed = script.expanded(natural, random.Random(seed), "CAG", 5)
        assert len(changed) == len(natural)
        place = 3 * [script.codons(changed)[n : n + 5] for n in range(30)].index(["CAG"] * 5)
        assert 3 <= place <= len(natural) - 15
        assert changed[:place] == natural[:place]
        assert natural[place:].startswith(changed[place + 15 :])


def test_shuffle_keeps_the_codons(recipes: dict[str, ModuleType]) -> None:
    script = recipes["perturbation_pairs"]
    natural = gene(recipes)
    changed = script.shuffled(natural, random.Random(0))
    assert changed != natural
    assert sorted(script.codons(changed)) == sorted(script.codons(natural))
    assert (changed[:3], changed[-3:]) == (natural[:3], natural[-3:])


def test_annotated_genes(recipes: dict[str, ModuleType], tmp_path: Path) -> None:
    script = recipes["perturbation_pairs"]
    (tmp_path / "genome.fa").write_text(">one x\nCCATGAAATAGCC\n>two\nAATTACCCCATGGNN\n")
    rows = ["one\t.\tgene\t1\t9\t.\t+\t.\tID=g", "one\t.\tCDS\t3\t11\t.\t+\t0\tID=a;x=y"]
    rows += [
        "two\t.\tCDS\t3\t12\t.\t-\t0\tID=b",
        "two\t.\tCDS\t1\t3\t.\t+\t0\tID=c",
        "two\t.\tCDS\t5\t7\t.\t+\t0\tID=c",
    ]
    (tmp_path / "genes.gff").write_text("\n".join(["##gff-version 3", *rows]) + "\n")
    files = tmp_path / "genome.fa", tmp_path / "genes.gff"
    annotated, genes = recipes["_genes"].annotated, recipes["_genes"].Gene
    expected = [genes("one", 2, True, "ATGAAATAG"), genes("two", 2, False, "CATGGGGTAA")]
    assert list(annotated(*files, 0)) == expected
    # Genes of joined rows are left out, even if only one of the rows is in the region.
    assert list(annotated(*files, 3)) == []
    genes = ["ATGAAATAG", "ATGTAGAAATAG", "ATGNAATAG", "ATGAA", "augaaacccuaa"]
    assert list(script.usable(iter(genes), 9)) == ["ATGAAATAG", "ATGAAACCC"]


def test_variants_that_stop_translation(recipes: dict[str, ModuleType], tmp_path: Path) -> None:
    script = recipes["stop_variants"]
    genes = [gene(recipes), gene(recipes, 60)]
    genome = "CC" + genes[0] + "GG" + script.reverse_complement(genes[1]) + "C"
    (tmp_path / "genome.fa").write_text(f">one\n{genome}\n")
    rows = ["one\t.\tCDS\t3\t92\t.\t+\t0\tID=a", "one\t.\tCDS\t95\t154\t.\t-\t0\tID=b"]
    (tmp_path / "genes.gff").write_text("\n".join(rows) + "\n")
    files = ["--genome", str(tmp_path / "genome.fa"), "--gff", str(tmp_path / "genes.gff")]
    script.main([*files, "--distance", "3", "--output", str(tmp_path / "variants.csv")])
    frame = script.pd.read_csv(tmp_path / "variants.csv")
    assert frame["consequence"].tolist() == ["stop_gained", "synonymous_variant"] * 2
    assert frame["label"].tolist() == [True, False] * 2
    places = []
    for number, variant in enumerate(frame.itertuples()):
        assert genome[variant.pos - 1] == variant.ref != variant.alt
        changed = genome[: variant.pos - 1] + variant.alt + genome[variant.pos :]
        parts = changed[2:92], script.reverse_complement(changed[94:154])
        proteins = [recipes["_genes"].translate(part[number // 2]) for part in (genes_of(genome), parts)]
        assert ("*" in proteins[1][:-1]) == (variant.consequence == "stop_gained")
        assert (proteins[0] == proteins[1]) == (variant.consequence == "synonymous_variant")
        places.append(variant.pos)
    assert max(abs(places[0] - places[1]), abs(places[2] - places[3])) < 12


def genes_of(genome: str) -> tuple[str, str]:
    """The genes of the genome of the test above."""
    return genome[2:92], reverse_complement(genome[94:154])


def test_table_of_variants(recipes: dict[str, ModuleType], tmp_path: Path) -> None:
    """Columns as in the table of Findlay et al. 2018, and a row without a class."""
    read_table = recipes["variant_effects"].read_table
    path = tmp_path / "brca.csv"
    path.write_text("chromosome,position (hg19),reference,alt,func.class\n17,41276135,T,G,LOF\n17,41276136,A,C,\n")
    names = ["chrom=chromosome", "pos=position (hg19)", "ref=reference", "class=func.class"]
    expected = {"chrom": "17", "pos": 41276135, "ref": "T", "alt": "G", "class": "LOF"}
    assert read_table(path, names, "class").to_dict("records") == [expected]
    with pytest.raises(ValueError, match=r"no column 'position'; it has chromosome, position \(hg19\)"):
        read_table(path, ["pos=position"], "class")
    with pytest.raises(ValueError, match="--label 'class' is no column"):
        read_table(path, [], "class")
    with pytest.raises(ValueError, match="give pairs such as"):
        read_table(path, ["pos"], "class")


def test_metrics_of_subsets(recipes: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(evaluation, "_BOOTSTRAPS", 5)
    columns = {"chrom": list("112222"), "class": list("LFLFLF"), "llr": [-3.0, 1.0, -1.0, -2.0, -5.0, 0.0]}
    kinds = {"consequence": ["a", "a", "b", "b", "c", None]}
    args = SimpleNamespace(label="class", positive="L", subsets="consequence", seed=0)
    found = recipes["variant_effects"].metrics(Dataset.from_dict(columns | kinds), args)
    areas = {own["subset"]: own["value"] for own in found if own["metric"] == "auroc"}
    # Of the pairs of L and F: 8 of 9; by chromosome 1 of 1 and 3 of 4; subset c has one class.
    expected = {"all": 8 / 9, "all, by chromosome": (2 * 1 + 4 * 0.75) / 6, "a": 1.0, "b": 0.0}
    assert areas == pytest.approx(expected)


def test_comparison_of_pairs(recipes: dict[str, ModuleType]) -> None:
    found = recipes["perturbation_pairs"].compare([-4.0, -8.0, -6.0, -5.0], [("ACGT", "ACGA"), ("ACGT", "ACGC")])
    assert found["preferred"] == {"mean": 0.5, "standard_error": pytest.approx(math.sqrt(1 / 8))}
    assert found["difference_per_base"]["mean"] == pytest.approx((1 - 0.25) / 2)


def test_pairs_of_a_table(recipes: dict[str, ModuleType], tmp_path: Path) -> None:
    read_pairs = recipes["perturbation_pairs"].read_pairs
    (tmp_path / "pairs.csv").write_text("sequence,original_sequence\nACGA,ACGT\n")
    assert read_pairs(tmp_path / "pairs.csv") == [("ACGT", "ACGA")]
    (tmp_path / "pairs.csv").write_text("sequence,original_sequence\nACGA,ACG\n")
    with pytest.raises(ValueError, match=r"pairs\.csv, row 1: the sequences have 3 and 4 letters"):
        read_pairs(tmp_path / "pairs.csv")


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_needle_is_where_it_should_be(recipes: dict[str, ModuleType], depth: float) -> None:
    script = recipes["needle_retrieval"]
    background = "a" * 100
    needle = script.plant(background, depth, 10, 5, 3, "seed")
    assert len(needle.prompt) == 100
    key = needle.prompt[-10:]
    assert needle.prompt.index(key + needle.value) == round(75 * depth)
    assert needle.prompt.count("a") == 75
    assert len(needle.decoys) == 3 and needle.value not in needle.decoys
    assert needle != script.plant(background, depth, 10, 5, 3, "other seed")


def test_a_model_that_looks_keys_up_finds_every_value(recipes: dict[str, ModuleType], lookup: SequenceModel) -> None:
    script = recipes["needle_retrieval"]
    args = SimpleNamespace(background=None, trials=3, seed=0, key_length=12, value_length=6, decoys=4)
    found = script.cell(CausalLikelihood(lookup), args, 80, 0.5)
    assert [found[name]["mean"] for name in ("exact", "base", "rank")] == [1.0, 1.0, 1.0]
    assert found["log_ratio"]["mean"] > 9


def test_candidates_continue_from_one_prompt(recipes: dict[str, ModuleType], llama: str) -> None:
    script = recipes["needle_retrieval"]
    models = [recipes["_zero_shot"].recipe_model(arguments()), recipes["_zero_shot"].recipe_model(arguments(llama))]
    for model in models:
        needle = script.plant("ACGT" * 10, 0.5, 8, 5, 3, "seed")
        with torch.no_grad():
            prompt, candidates = script.encode(model, needle)
            shared, whole = (
                script.candidate_logits(CausalLikelihood(model, share), prompt, candidates) for share in (True, False)
            )
        assert shared.shape == (4, 5, 12)
        torch.testing.assert_close(shared, whole, rtol=1e-5, atol=1e-5)


def arguments(checkpoint: str | None = None) -> SimpleNamespace:
    """Options of a model."""
    return SimpleNamespace(
        checkpoint=checkpoint, tiny=True, tokenizer=None, trust_remote_code=False, max_tokens_per_batch=16384
    )


def test_markov_chain(recipes: dict[str, ModuleType]) -> None:
    chain = recipes["_markov"].MarkovChain(["ACGACGACT", "ttNtc"], 2)
    assert chain.next_base("AC", 2) == "G"
    assert chain.next_base("TT", 2) == "C"  # not seen with a base after it, other than N: one base decides
    assert chain.recovery("GAC", "GACG", 2) == (1.0, 1.0)
    # Generated "GACG" and by teacher forcing G, C (or any) after "TT", ...
    assert chain.recovery("GAC", "GTTG", 2)[0] == 0.5
    # After A three times C; one is added to each count.
    assert chain.log_likelihood("AC", 1) == pytest.approx(math.log(4 / 7))
    assert chain.log_likelihood("ACG", 2) == pytest.approx(math.log(3 / 7))


def test_a_model_that_looks_words_up_recovers_repeats(recipes: dict[str, ModuleType], lookup: SequenceModel) -> None:
    script = recipes["sequence_recovery"]
    unit = "ACGTTGCAAC"
    found = script.evaluate(lookup, [unit * 3, (unit * 3)[2:]], 7)
    assert found["recovery"] == found["next_base"] == {"mean": 1.0, "standard_error": 0.0}
    # Half of the bases to recover are others: the generated ones stay in the repeat.
    assert script.evaluate(lookup, [unit * 2 + "ACGTGTGT"], 8)["recovery"]["mean"] == 0.5


def test_generation_with_and_without_generate(recipes: dict[str, ModuleType], llama: str) -> None:
    script = recipes["sequence_recovery"]
    model = recipes["_zero_shot"].recipe_model(arguments(llama))
    ids = torch.tensor([[7, 8, 9, 10, 7], [9, 9, 7, 8, 8]])

    class Plain(nn.Module):
        def get_input_embeddings(self) -> Any:
            return model.model.get_input_embeddings()

        def forward(self, input_ids: Tensor) -> Any:
            return model.model(input_ids=input_ids)

    plain = SimpleNamespace(
        model=Plain(), tokenizer=model.tokenizer, device=model.device, forward=lambda ids: Plain()(ids)
    )
    with torch.no_grad():
        expected = script.generated(plain, ids, 5)
        assert not set(expected.flatten().tolist()) & set(model.tokenizer.all_special_ids)
        assert torch.equal(script.generated(model, ids, 5), expected)


def test_windows_and_samples(recipes: dict[str, ModuleType]) -> None:
    shared = recipes["_zero_shot"]
    record = SimpleNamespace(sequence="acgtACNTGGGGAC")
    assert list(shared.windows([record], 4)) == ["ACGT", "GGGG"]
    assert sorted(shared.sampled(range(3), 5, random.Random(0))) == [0, 1, 2]
    counts = [0] * 6
    for seed in range(600):
        for item in shared.sampled(range(6), 2, random.Random(seed)):
            counts[item] += 1
    assert all(150 < count < 250 for count in counts)


@pytest.mark.parametrize("foreign", [False, True])
def test_tiny_runs(
    recipes: dict[str, ModuleType],
    llama: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    foreign: bool,
) -> None:
    pytest.importorskip("pysam")
    pytest.importorskip("sklearn")
    monkeypatch.setattr(evaluation, "_BOOTSTRAPS", 5)
    checkpoint = [llama] if foreign else []
    found = {}
    for name in RECIPES:
        picture = ["--picture", str(tmp_path / "needle.png")] if name == "needle_retrieval" else []
        output = tmp_path / f"{name}.json"
        recipes[name].main([*checkpoint, "--tiny", "--output", str(output), *picture])
        found[name] = json.loads(output.read_text())
    assert list(found["sequence_recovery"]["accuracy"]) == ["model", "Markov chain, order 0", "Markov chain, order 2"]
    assert {kind: own["model"]["pairs"] for kind, own in found["perturbation_pairs"]["pairs"].items()} == {
        "synonymous": 6,
        "expansion": 6,
        "shuffled": 6,
    }
    assert [(own["length"], own["depth"]) for own in found["needle_retrieval"]["cells"]] == [
        (48, 0.0),
        (48, 1.0),
        (64, 0.0),
        (64, 1.0),
    ]
    subsets = dict.fromkeys(own["subset"] for own in found["variant_effects"]["metrics"])
    assert list(subsets) == ["all", "all, by chromosome", "intron_variant", "missense_variant"]
    assert (tmp_path / "needle.png").stat().st_size > 5000
    assert "| synonymous | model | 6 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sequence_recovery", [], "--fasta is missing"),
        ("sequence_recovery", ["--context", "0"], "must be positive"),
        ("perturbation_pairs", [], "give --coding, --genome and --gff, or --pairs"),
        ("perturbation_pairs", ["--length", "100"], "--length 100: give a multiple of 3"),
        ("perturbation_pairs", ["--triplet", "CAN"], "--triplet 'CAN'"),
        ("perturbation_pairs", ["--length", "60", "--repeats", "20"], "--repeats 20: give 1 to 19"),
        ("needle_retrieval", ["--lengths", "50"], "have 72 bases already"),
        ("needle_retrieval", ["--depths", "2"], "--depths"),
        ("needle_retrieval", [], "CHECKPOINT is missing"),
        ("variant_effects", [], "give --variants and --genome"),
    ],
)
def test_errors_of_options(recipes: dict[str, ModuleType], name: str, options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipes[name].main(options)
