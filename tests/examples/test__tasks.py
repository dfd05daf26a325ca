"""The synthetic tasks: labels and important positions recomputed from the rows."""

import math
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from datasets import DatasetDict

SMALL = {"num_train": 200, "num_validation": 20, "num_test": 30}


def rows_of(generator: Callable[..., DatasetDict], **options):
    sizes = {**SMALL, **options}
    data = generator(**sizes)
    assert {f"num_{split}": len(rows) for split, rows in data.items()} == {key: sizes[key] for key in SMALL}
    return data, [row for split in data.values() for row in split]


def test_associative_recall_asks_for_the_value_behind_the_key(script: ModuleType) -> None:
    data, rows = rows_of(script.associative_recall, num_pairs=5, num_values=4)
    names = data["train"].features["label"].names
    for row in rows:
        text = row["sequence"]
        pairs = dict(zip(text[:-1:2], text[1::2], strict=True))
        assert len(text) == 11 and len(pairs) == 5
        assert names[row["label"]] == pairs[text[-1]]
        key, value = row["important_positions"]
        assert (text[key], text[value]) == (text[-1], names[row["label"]])
    counts = Counter(row["label"] for row in rows)
    assert set(counts) == {0, 1, 2, 3} and min(counts.values()) > 35
    # Every pair is asked for.
    assert {row["important_positions"][0] for row in rows} == {0, 2, 4, 6, 8}


def test_induction_heads_ask_for_what_followed_the_marker(script: ModuleType) -> None:
    data, rows = rows_of(script.induction_heads, length=12, num_values=6)
    names = data["train"].features["label"].names
    for row in rows:
        text = row["sequence"]
        assert len(text) == 12 and text.count(">") == 2 and text[-1] == ">"
        first = text.index(">")
        assert row["important_positions"] == [first, first + 1]
        assert names[row["label"]] == text[first + 1]
    assert {row["important_positions"][0] for row in rows} == set(range(10))


def test_selective_copying_labels_the_blanks_with_the_tokens_in_order(script: ModuleType) -> None:
    _, rows = rows_of(script.selective_copying, length=20, num_tokens=3, num_values=5)
    values = "ABCDE"
    for row in rows:
        text, label = row["sequence"], row["label"]
        assert len(text) == len(label) == 23 and text.endswith("???")
        tokens = [(place, token) for place, token in enumerate(text[:20]) if token != "."]
        assert row["important_positions"] == [place for place, _ in tokens]
        assert label == [-100] * 20 + [values.index(token) for _, token in tokens]


@pytest.mark.parametrize("piecewise", [True, False])
def test_smooth_function_depends_on_the_important_numbers(script: ModuleType, piecewise: bool) -> None:
    _, rows = rows_of(script.smooth_function, length=16, num_important=3, smoothness=1.0, piecewise=piecewise)
    values = []
    for row in rows:
        numbers, places = row["sequence"], row["important_positions"]
        if piecewise:
            by_importance = sorted(range(16), key=lambda j: numbers[j][1], reverse=True)
            assert places == by_importance[:3]
        x = [numbers[j][0] for j in places]
        target = sum(2.0**-i * math.sqrt(2) * math.cos(2 * math.pi * x[i]) for i in range(3))
        target += 0.5 * 2 * math.sin(2 * math.pi * x[0]) * math.sin(2 * math.pi * x[1])
        target /= math.sqrt(1 + 0.25 + 0.0625 + 0.25)
        assert row["label"] == pytest.approx(target, abs=1e-5)
        values.append(row["label"])
    different = len({tuple(row["important_positions"]) for row in rows})
    assert different > 200 if piecewise else different == 1
    mean = sum(values) / len(values)
    assert abs(mean) < 0.2 and 0.8 < sum((value - mean) ** 2 for value in values) / len(values) < 1.2


def nearest(keys: list[float], query: float) -> list[int]:
    """Positions of the keys by the distance of the points of the circle."""
    points = [(math.cos(2 * math.pi * key), math.sin(2 * math.pi * key)) for key in (*keys, query)]
    return sorted(range(len(keys)), key=lambda j: math.dist(points[j], points[-1]))


def test_smooth_function_by_similarity_is_that_of_the_theory(script: ModuleType) -> None:
    _, rows = rows_of(script.smooth_function, length=12, num_important=3, importance="similarity")
    for row in rows:
        angle = 2 * math.pi * torch.tensor([m for _, m in row["sequence"]], dtype=torch.float64)
        features = torch.stack([angle.cos(), angle.sin()], dim=-1)
        # Case (ii) of Appendix B: μ_j = -‖v_0 - v_j‖.
        order = torch.linalg.vector_norm(features - features[-1], dim=-1).argsort()
        assert row["important_positions"] == order[:3].tolist()
        assert row["important_positions"][0] == 11
    assert len({tuple(row["important_positions"]) for row in rows}) > 80


def test_octaves_have_the_amplitudes_of_their_smoothness(script: ModuleType) -> None:
    options = {"length": 4, "num_important": 2, "piecewise": False, "smoothness": 1.0, "num_train": 4000}
    _, rows = rows_of(script.smooth_function, octaves=3, decay=0.5, **options)
    x = np.array([[row["sequence"][j][0] for j in row["important_positions"]] for row in rows])
    labels = np.array([row["label"] for row in rows])
    assert labels.var() == pytest.approx(1, abs=0.1)
    waves = [math.sqrt(2) * np.cos(2 * math.pi * 2**s * x[:, i]) for i in range(2) for s in range(3)]
    waves.append(2 * np.sin(2 * math.pi * x[:, 0]) * np.sin(2 * math.pi * x[:, 1]))
    fit, residue, *_ = np.linalg.lstsq(np.stack(waves, axis=1), labels)
    expected = [2 ** (-0.5 * s) for s in range(3)] + [2 ** (-1 - 1.5 * s) for s in range(3)] + [0.5]
    np.testing.assert_allclose(fit / fit[0], expected, atol=1e-5)
    assert residue < 1e-8


def test_in_context_neighbours_average_the_nearest_pairs(script: ModuleType) -> None:
    _, rows = rows_of(script.in_context_neighbours, num_pairs=10, num_neighbours=3)
    across = 0
    for row in rows:
        *pairs, (query, zero) = row["sequence"]
        places = nearest([key for key, _ in pairs], query)[:3]
        assert len(pairs) == 10 and zero == 0
        assert row["important_positions"] == places
        assert row["label"] == pytest.approx(sum(pairs[j][1] for j in places) / 3, abs=1e-5)
        across += any(abs(pairs[j][0] - query) > 0.5 for j in places)
    assert across > 10  # The circle is closed.
    labels = [row["label"] for row in rows]
    assert np.var(labels) == pytest.approx(1 / 3, rel=0.3)


def bits(split) -> np.ndarray:
    return np.array([[int(bit) for bit in row] for row in split["sequence"]])


@pytest.mark.parametrize("length", [10, 25])
def test_sparse_majority_labels_before_the_flips(script: ModuleType, length: int) -> None:
    clean = script.sparse_majority(length=length, flip_rate=0.0, num_train=600)
    for split in clean.values():
        # A tie is no majority.
        for row in split:
            assert row["label"] == (row["sequence"].count("1") > row["sequence"].count("0"))
        assert set(bits(split).sum(axis=1)) == set(range(length + 1))
    flipped = script.sparse_majority(length=length, num_train=600)
    for name, split in flipped.items():
        assert split["label"][:] == clean[name]["label"][:]
        before, after = bits(clean[name]), bits(split)
        if name == "train":
            assert (after <= before).all()
            assert 1 - after.sum() / before.sum() == pytest.approx(0.1, abs=0.02)
        else:
            assert (after == before).all()


def test_sparse_majority_places_ones_by_chance(script: ModuleType) -> None:
    rows = bits(script.sparse_majority(num_train=1, num_validation=0)["test"])
    # 201 counts in 1,000 rows: 4.98 each, and stratified never further away than 2.
    share = np.bincount(rows.sum(axis=1), minlength=201)
    assert share.min() >= 3 and share.max() <= 7
    # By columns, the number of ones is 500 of 1,000; the standard deviation of a random place is about 13.
    assert abs(rows.sum(axis=0) - 500).max() < 70


ALL = [
    "associative_recall",
    "in_context_neighbours",
    "induction_heads",
    "selective_copying",
    "smooth_function",
    "sparse_majority",
]


@pytest.mark.parametrize("name", ALL)
def test_seeds_and_sizes(script: ModuleType, name: str) -> None:
    generator = getattr(script, name)
    data, again = (generator(seed=3, **SMALL) for _ in range(2))
    other = generator(seed=4, **SMALL)
    more = generator(seed=3, **{**SMALL, "num_train": 210})
    for split in data:
        assert data[split]["sequence"][:] == again[split]["sequence"][:]
        assert data[split]["sequence"][:] != other[split]["sequence"][:]
        # The strings of `sparse_majority` are stratified over the rows of their own split.
        if name != "sparse_majority" or split != "train":
            assert more[split]["sequence"][: len(data[split])] == data[split]["sequence"][:]
    assert set(generator(num_validation=0, num_train=5, num_test=0)) == {"train"}
