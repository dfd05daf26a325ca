"""The two guesses on expressions whose answers are counted by hand."""

import json
from pathlib import Path
from types import ModuleType


def test_the_guesses_by_hand(script: ModuleType, tmp_path: Path) -> None:
    train = ["( ( [MAX 1 ) ] )\t1", "( ( [MAX 2 ) ] )\t2", "( ( [MAX 2 ) 1 ] )\t2", "( ( [MIN 0 ) ] )\t0"]
    train += ["( ( [MIN 0 ) 3 ] )\t0", "( ( [MIN 0 ) 4 ] )\t0"]
    test = ["( ( [MAX 2 ) 0 ] )\t2", "( ( [MAX 1 ) 0 ] )\t1", "( ( [MIN 0 ) 9 ] )\t0", "( ( [SM 0 ) ] )\t0"]
    test.append("( ( [MAX 2 ) 2 ] )\t2")
    for name, rows in (("train", train), ("test", test)):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["Source\tTarget", *rows]) + "\n")
    output = tmp_path / "out.json"
    files = ["--dataset", str(tmp_path / "train.tsv"), "--test-file", str(tmp_path / "test.tsv")]
    script.main([*files, "--output", str(output)])
    assert json.loads(output.read_text())["accuracy"] == {
        "most frequent answer": 0.4,  # always 0
        "most frequent answer of the operator": 0.6,  # [MAX: 2, [MIN: 0, [SM: none
    }
