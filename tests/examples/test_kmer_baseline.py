"""The regression on words of DNA: data that one word separates, and data without a difference."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_a_word_that_separates_the_classes(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    output = tmp_path / "out.json"
    for name, marked in (("word", "acGT"), ("none", "TTTT")):
        rows = [f"AAAA{marked if n % 2 else 'TTTT'}NAAA,{n % 2},{'test' if n % 4 > 1 else 'train'}" for n in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["sequence,label,split", *rows]) + "\n")
    files = [str(tmp_path / f"{name}.csv") for name in ("word", "none")]
    script.main(["--datasets", *files, "--length", "4", "--output", str(output)])
    found = json.loads(output.read_text())["accuracy"]
    assert found["word.csv"] == {
        "train": 1.0,
        "test": 1.0,
        "most frequent class": 0.5,
        "rows": {"train": 20, "test": 20},
    }
    assert found["none.csv"]["test"] == 0.5
