"""Planted motifs: motifs only at their sites, and base counts without information."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp
from sklearn.linear_model import LogisticRegression

from hf_ssm.data import planted_motifs


@pytest.fixture(scope="module")
def default():
    return planted_motifs()


def occurrences(sequence: str, motif: str) -> list[int]:
    return [start for start in range(len(sequence)) if sequence.startswith(motif, start)]


def base_counts(split) -> np.ndarray:
    return np.array([[sequence.count(base) for base in "ACGT"] for sequence in split["sequence"]], dtype=float)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_labels": 4, "copies": 1}, {"motif": ["ACGTACGA", "TTGCAACGTC"], "num_labels": 3, "length": 60}],
)
def test_motifs_stand_at_their_positions_and_nowhere_else(options):
    data = planted_motifs(num_train=300, num_validation=30, num_test=30, **options)
    motifs = data["train"].features["label"].names[1:]
    copies = options.get("copies", 2)
    for split in data.values():
        for row in split:
            for label, motif in enumerate(motifs, start=1):
                expected = row["motif_positions"] if row["label"] == label else []
                assert occurrences(row["sequence"], motif) == expected
            assert len(row["motif_positions"]) == (copies if row["label"] else 0)


def test_a_short_motif_is_kept_out_of_the_background():
    # 4**5 words: without the check about every sixth row would hold the motif accidentally.
    data = planted_motifs(motif="ACGTC", copies=1, num_train=400, num_validation=0, num_test=0)
    for row in data["train"]:
        assert occurrences(row["sequence"], "ACGTC") == row["motif_positions"]


def test_mutations_have_the_rate_and_no_near_copy_stands_elsewhere():
    motif, rate = "ACGTTGCAACTGGTCA", 0.125
    data = planted_motifs(motif=motif, mutation_rate=rate, num_train=600, num_validation=0, num_test=0)
    differing = letters = 0
    for row in data["train"]:
        for start in range(200 - len(motif) + 1):
            window = row["sequence"][start : start + len(motif)]
            mismatches = sum(a != b for a, b in zip(window, motif, strict=True))
            if start in row["motif_positions"]:
                differing += mismatches
                letters += len(motif)
            else:
                assert mismatches > 2
    # 600 copies of 16 letters: the standard error is 0.0034.
    assert abs(differing / letters - rate) < 0.014


def test_base_counts_do_not_tell_the_class(default):
    counts = {name: base_counts(split) for name, split in default.items()}
    labels = {name: np.array(split["label"]) for name, split in default.items()}
    model = LogisticRegression(max_iter=1000).fit(counts["train"] / 200, labels["train"])
    accuracy = model.score(counts["test"] / 200, labels["test"])
    assert abs(accuracy - 0.5) < 0.08  # the standard error of 500 coin flips is 0.022
    for base in range(4):
        one, other = (counts["train"][labels["train"] == label, base] for label in (0, 1))
        assert ks_2samp(one, other).pvalue > 1e-3
    table = [counts["train"][labels["train"] == label].sum(axis=0) for label in (0, 1)]
    shares = np.array(table) / np.sum(table, axis=1, keepdims=True)
    assert np.abs(shares[0] - shares[1]).max() < 0.02


def test_the_gc_content_varies_as_asked(default):
    def spread(split) -> float:
        counts = base_counts(split)
        return float(((counts[:, 1] + counts[:, 2]) / counts.sum(axis=1)).std())

    assert 0.07 < spread(default["train"]) < 0.14
    even = planted_motifs(gc_spread=0.0, num_train=500, num_validation=0, num_test=0)
    assert spread(even["train"]) < 0.05


def test_the_background_is_a_markov_chain_of_its_order():
    # Long rows, few sites: pairs of letters depend on each other at order 1 and not at order 0.
    def dependence(order: int) -> float:
        options = {"num_train": 20, "num_validation": 0, "num_test": 0, "length": 5000, "gc_spread": 0.0}
        pairs = np.zeros((4, 4))
        for sequence in planted_motifs(order=order, copies=1, motif_length=16, **options)["train"]["sequence"]:
            codes = np.array(["ACGT".index(base) for base in sequence])
            np.add.at(pairs, (codes[:-1], codes[1:]), 1)
        return chi2_contingency(pairs).statistic

    # 9 degrees of freedom.
    assert dependence(0) < 40
    assert dependence(1) > 1000


def test_the_seed_decides_everything(default):
    small = {"num_train": 50, "num_validation": 20, "num_test": 20}
    first, second = planted_motifs(**small), planted_motifs(**small)
    for name in first:
        assert first[name].to_dict() == second[name].to_dict()
    other = planted_motifs(**small, seed=1)
    assert not set(first["train"]["sequence"]) & set(other["train"]["sequence"])


def test_more_training_rows_leave_the_test_rows_alone(default):
    larger = planted_motifs(num_train=100)
    assert larger["test"].to_dict() == default["test"].to_dict()
    assert larger["validation"].to_dict() == default["validation"].to_dict()


def test_no_sequence_occurs_twice():
    # Class 1 has at most 8 * 4**7 rows: chance alone would repeat about eight of its 1,500.
    data = planted_motifs(length=12, motif="ACGTA", copies=1, num_train=2000, num_validation=500, num_test=500)
    rows = [sequence for split in data.values() for sequence in split["sequence"]]
    assert len(set(rows)) == len(rows) == 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_labels": 1}, "num_labels=1"),
        ({"order": 9}, "order=9"),
        ({"mutation_rate": 0.5}, "mutation_rate=0.5"),
        ({"gc_spread": -0.1}, "gc_spread=-0.1"),
        ({"length": 23}, "length=23.*need 24 bases"),
        ({"motif": "ACGU"}, "motif='ACGU'"),
        ({"motif": "AAAAAA"}, "motif='AAAAAA'.*no decoy"),
        ({"motif": ["ACGT", "ACGT"], "num_labels": 3}, "different motifs"),
        ({"motif": "AATT", "mutation_rate": 0.25}, "accidental motif"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        planted_motifs(**({"num_train": 20, "num_validation": 0, "num_test": 0} | options))
