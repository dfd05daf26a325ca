"""`embed_variants` against a plain loop in float64: one window at a time, cut from the genome by string operations.

The genome is soft-masked, rich in N and has two contigs; the variants are multi-allelic, at both ends, and indels.
"""

import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel

import hf_ssm
from hf_ssm.data.genome import Genome
from hf_ssm.data.variants import read_variants

pytest.importorskip("pysam", reason="pysam is not installed")

TOKENIZER = hf_ssm.build_dna_tokenizer()
COMPLEMENT = dict(zip("ACGTN", "TGCAN", strict=True))
WINDOW = 16
HALF = WINDOW // 2


def genome() -> dict[str, str]:
    letters = random.Random(3)
    contigs = {name: letters.choices("ACGTacgt", k=size) for name, size in (("one", 90), ("two", 60))}
    contigs["one"][36:58] = "N" * 11 + "a" + "N" * 10
    return {name: "".join(text) for name, text in contigs.items()}


def calls(contigs: dict[str, str]) -> list[tuple[str, int, str, str]]:
    """Contig, position from 0, and alleles: substitutions, insertions and deletions everywhere."""
    letters, chosen = random.Random(4), []
    for name, text in contigs.items():
        for at in [0, 1, 5, 47, len(text) - 1, *letters.sample(range(8, len(text) - 8), 12)]:
            ref = text[at : at + letters.choice([1, 1, 3])].upper()
            if "N" not in ref:
                others = {*"ACGT", ref[0] + "GG", ref[0]} - {ref}
                chosen += [(name, at, ref, alt) for alt in letters.sample(sorted(others), 2)]
    return chosen


def turned(text: str) -> str:
    return "".join(COMPLEMENT[letter] for letter in reversed(text))


def windows(contigs: dict[str, str], call: tuple[str, int, str, str]) -> list[tuple[str, str]]:
    """Both windows in the direction of each strand."""
    name, at, ref, alt = call
    pairs = []
    for strand in range(2):
        before, after = contigs[name][:at].upper(), contigs[name][at + len(ref) :].upper()
        if strand:
            before, after, ref, alt = turned(after), turned(before), turned(ref), turned(alt)
        length = min(HALF, len(ref + after), len(alt + after))
        start = before[-HALF:] if before else ""
        pairs.append((start + (ref + after)[:length], start + (alt + after)[:length]))
    return pairs


def pooled(states: torch.Tensor, pooling: str, at: int) -> np.ndarray:
    table = states.numpy()
    options = {"mean": table.sum(0) / len(table), "max": table.max(0), "first": table[0], "last": table[-1]}
    return options[pooling] if pooling in options else table[at]


@torch.no_grad()
def expected(model, contigs, call, pooling: str, layer: int, strands: int) -> np.ndarray | None:
    """The vectors of both alleles, `(2, D)`, or `None` if no strand has a window that is mostly known."""
    found = []
    for ref, alt in windows(contigs, call)[:strands]:
        if max(text.count("N") / len(text) for text in (ref, alt)) > 0.5:
            continue
        at = next((place for place in range(len(ref)) if ref[place] != alt[place]), len(ref) // 2)
        ids = [torch.tensor([TOKENIZER.convert_tokens_to_ids(list(text))]) for text in (ref, alt)]
        states = [model(input_ids=row, output_hidden_states=True).hidden_states[layer][0] for row in ids]
        found.append([pooled(state, pooling, at) for state in states])
    return np.mean(found, axis=0) if found else None


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "Llama":
        sizes = {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "initializer_range": 0.4}
        model = LlamaModel(LlamaConfig(vocab_size=12, hidden_size=8, num_hidden_layers=2, **sizes))
    else:
        model = hf_ssm.S4Model(hf_ssm.S4Config(vocab_size=12, hidden_size=8, num_hidden_layers=2, bidirectional=True))
    return model.double().eval()


@pytest.mark.parametrize(
    ("name", "pooling", "layer", "strands"),
    [
        ("S4", "mean", -1, 2), ("S4", "center", 1, 1), ("Llama", "center", -1, 2), ("Llama", "last", 1, 1),
    ],
)  # fmt: skip
def test_vectors_are_those_of_a_plain_loop(tmp_path, name, pooling, layer, strands):
    contigs, model = genome(), build(name)
    rows = calls(contigs)
    path = tmp_path / "genome.fa"
    path.write_text("".join(f">{contig}\n{text}\n" for contig, text in contigs.items()))
    variants = [
        dict(zip(("chrom", "pos", "ref", "alt"), (c, at + 1, *alleles), strict=True)) for c, at, *alleles in rows
    ]
    with Genome(path) as reference:
        options = {"layers": layer, "pooling": pooling, "both_strands": strands == 2, "window": WINDOW}
        table = hf_ssm.embed_variants(model, TOKENIZER, variants, reference, **options)
    vectors = ["embedding_ref", "embedding_alt", "embedding_delta"]
    assert table.column_names == ["chrom", "pos", "ref", "alt", *vectors, "reason"]
    found = np.stack([np.array(table[column][:]) for column in vectors], 1)
    assert len(found) == len(rows) > 40
    missing = 0
    for row, call in enumerate(rows):
        pair = expected(model, contigs, call, pooling, layer, strands)
        if pair is None:
            missing += 1
            assert np.isnan(found[row]).all() and "of the window are N" in table["reason"][row]
            continue
        np.testing.assert_allclose(found[row, :2], pair, rtol=1e-10, atol=1e-12, err_msg=str(call))
        np.testing.assert_allclose(found[row, 2], pair[1] - pair[0], rtol=1e-8, atol=1e-12)
        assert table["reason"][row] == ""
    assert missing > 0 and np.nanmax(np.abs(found[:, 2])) > 0.01


def test_rows_stay_aligned_with_a_vcf_file(tmp_path):
    """Alleles of a record have rows of their own; one that cannot be read has a reason, and NaN."""
    contigs = genome()
    (tmp_path / "genome.fa").write_text("".join(f">{contig}\n{text}\n" for contig, text in contigs.items()))
    ref = contigs["two"][19].upper()
    others = sorted({*"ACGT"} - {ref})
    header = (
        "##fileformat=VCFv4.2\n##contig=<ID=two>\n##contig=<ID=gone>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\n"
    )
    lines = [f"two\t20\trs1\t{ref}\t{others[0]},{others[1]},<DEL>\t.\t.\t.", "gone\t7\t.\tA\tC\t.\t.\t."]
    (tmp_path / "v.vcf").write_text(header + "\n".join(lines) + "\n")
    with Genome(tmp_path / "genome.fa") as reference:
        variants = read_variants(tmp_path / "v.vcf")
        table = hf_ssm.embed_variants(
            build("S4"), TOKENIZER, variants, reference, layers=["middle", "last"], window=WINDOW
        )
    assert table["alt"][:] == [others[0], others[1], "<DEL>", "C"]
    names = [f"embedding_{layer}_{allele}" for layer in (1, 2) for allele in ("ref", "alt", "delta")]
    assert table.column_names == ["chrom", "pos", "id", "ref", "alt", *names, "reason"]
    assert table["reason"][:] == ["", "", "symbolic allele <DEL>", "contig 'gone' is not in genome.fa"]
    found = np.array(table["embedding_2_delta"][:])
    assert np.isnan(found).all(1).tolist() == [False, False, True, True] and not np.array_equal(found[0], found[1])


def test_pairs_of_sequences_and_bad_arguments():
    model = build("S4")
    pairs = [{"ref_sequence": "ACGTTGCA", "alt_sequence": "ACGATGCA", "label": 1}]
    table = hf_ssm.embed_variants(model, TOKENIZER, pairs, layers="layers.0", pooling="center")
    alone = hf_ssm.embed(model, TOKENIZER, ["ACGTTGCA", "ACGATGCA"], layers="layers.0", pooling="token")
    states = np.array(alone["embedding"][:]).reshape(2, 8, -1)
    np.testing.assert_allclose(table["embedding_delta"][0], states[1, 3] - states[0, 3], rtol=1e-10, atol=1e-12)
    for options, message in (
        ({"pooling": "token"}, "`pooling`='token' is not possible for variants"),
        ({"window": 1}, "`window`=1: give at least two bases"),
        ({"layers": "layers.7"}, "`layers`='layers.7': give a number, all, last, middle, or the name of a module"),
    ):
        with pytest.raises(ValueError, match=message):
            hf_ssm.embed_variants(model, TOKENIZER, pairs, **options)
    with pytest.raises(ValueError, match="need the reference: give `genome`"):
        hf_ssm.embed_variants(model, TOKENIZER, [{"chrom": "one", "pos": 1, "ref": "A", "alt": "C"}])
    with pytest.raises(ValueError, match="the input has a column 'reason', but the output needs this name"):
        hf_ssm.embed_variants(model, TOKENIZER, [{**pairs[0], "reason": ""}])
