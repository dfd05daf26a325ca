"""Splits depend on the rows and the seed only: hashes of their members, stored before the loaders were rewritten."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_ssm.data import load_sequences
from hf_ssm.data.letters import reverse_complement


def _letters(count: int, length: int, seed: int) -> list[str]:
    return ["".join(row) for row in np.random.default_rng(seed).choice(list("ACGT"), (count, length))]


def _table(path: Path) -> str:
    """Rows of three unequal classes; every tenth sequence is the reverse complement of the one before it."""
    rows = _letters(120, 12, 0)
    rows[9::10] = [reverse_complement(row).lower() for row in rows[8::10]]
    pairs = _letters(120, 6, 1)
    lines = [f"{row},{other},{(n % 7) % 3},{n / 8}" for n, (row, other) in enumerate(zip(rows, pairs, strict=True))]
    path.write_text("\n".join(["sequence,other,label,number", *lines]) + "\n")
    return str(path)


def _signals(path: Path) -> str:
    rows = np.random.default_rng(2).integers(0, 3, (60, 4)).tolist()
    path.write_text("".join(json.dumps({"sequence": row, "label": n % 2}) + "\n" for n, row in enumerate(rows)))
    return str(path)


def _genome(path: Path) -> str:
    contigs = zip(("chr1", "chr2", "chr3"), _letters(3, 900, 3), strict=True)
    path.write_text("".join(f">{name} x\n{text[:500]}\n{text[500:]}\n" for name, text in contigs))
    return str(path)


def _hash(source: str, **options: Any) -> str:
    splits = load_sequences(source, **options).items()
    members = {name: [list(map(str, row.values())) for row in split] for name, split in splits}
    return hashlib.blake2b(json.dumps(members).encode(), digest_size=6).hexdigest()


@pytest.mark.parametrize(
    ("maker", "options", "expected"),
    [
        pytest.param(_table, {}, "ad9eaeb6baa7", id="stratified"),
        pytest.param(_table, {"seed": 5, "test_fraction": 0.25}, "55a52044d4f9", id="seed"),
        pytest.param(_table, {"label_column": None, "validation_fraction": 0.0}, "ec5bda7e29c3", id="unlabelled"),
        pytest.param(_table, {"pair_column": "other"}, "a7ac1876ccf6", id="pairs"),
        pytest.param(_table, {"label_column": "number", "targets": True}, "3a66564011d2", id="numbers"),
        pytest.param(_signals, {"seed": 1}, "a9742a45906b", id="signals"),
        pytest.param(_genome, {"window": 40}, "7090d8a100ad", id="windows"),
        pytest.param(_genome, {"window": 40, "stride": 10, "seed": 3}, "6e24c40f6063", id="overlapping"),
        pytest.param(_genome, {"window": 50, "test_contigs": ["chr2"], "stride": 25}, "c0a0148fa0ab", id="contigs"),
    ],
)
def test_splits_of_files(tmp_path: Path, maker: Any, options: dict[str, Any], expected: str) -> None:
    source = maker(tmp_path / {_table: "a.csv", _signals: "a.jsonl", _genome: "a.fa"}[maker])
    assert _hash(source, **options) == expected


def test_splits_of_the_generator() -> None:
    assert _hash("planted-motifs", num_train=20, num_validation=4, num_test=4, length=60) == "78732a2f61bc"
