"""The experiment of compression in its tiny setting: it continues, and its tables come from its file."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.mark.slow
def test_tiny(
    script: ModuleType, frozen_garbage: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    result = tmp_path / "result.json"
    arguments = ["--tiny", "--tasks", "planted motifs", "--seeds", "1", "--output", str(result)]
    script.main(arguments)
    runs = json.loads(result.read_text())["runs"]
    assert [run["kind"] for run in runs] == ["plain", "τ", "16 states"]
    assert [size["state_size"] for size in runs[0]["sizes"]] == [32, 16, 8, 4, 2]
    assert runs[0]["baselines"]["most frequent class"] == pytest.approx(0.5, abs=0.1)
    for size in runs[0]["sizes"]:
        for layer in size["layers"]:
            assert layer["gain"] <= layer["bound"]
    assert "| planted motifs | τ |" in capsys.readouterr().out

    monkeypatch.setattr(script, "train", None)
    script.main(arguments)
    assert json.loads(result.read_text())["runs"] == runs
    with pytest.raises(SystemExit, match="another setting"):
        script.main([*arguments[1:]])


def test_words_are_counted(script: ModuleType) -> None:
    counts = script.counts_of_words({"train": [[1, 2, 1, 2, 1], [2, 1, 2, 1, 2]], "test": [[1, 2, 1, 2, 3]]}, 2)
    assert np.array_equal(counts["train"], [[2, 2], [2, 2]])
    assert np.array_equal(counts["test"], [[1, 2]]) or np.array_equal(counts["test"], [[2, 1]])


def test_tables_cope_with_a_part_of_the_runs(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import _tables_of_compression as tables

    def size(states: int, accuracy: float) -> dict[str, object]:
        layer = {"relative_bound": 0.1, "bound": 2.0, "gain": 0.25, "relative_error": 0.01}
        return {"state_size": states, "accuracy": accuracy, "layers": [layer]}

    plain = {
        **{"task": "motifs", "kind": "plain", "seconds": 60.0},
        "sizes": [size(64, 0.9), size(32, 0.9), size(16, 0.895), size(8, 0.7), size(4, 0.5)],
        "baselines": {"most frequent class": 0.5, "linear": 0.8},
    }
    monkeypatch.setattr(tables, "is_stored", lambda name: True)
    monkeypatch.setattr(tables, "load", lambda name: {"runs": [plain]})
    text = tables.compression()
    assert "| motifs | without τ | 0.900 | 0.900 | 0.895 | 0.700 | 0.500 |" in text
    assert "| motifs | most frequent class | 0.500 |" in text
    assert "at most one point on 1 of 1 tasks without τ" in text
    assert "| motifs | without τ | 16 | 0.1 | 2 | 0.25 | 0.01 |" in tables.compression_bounds()
    monkeypatch.setattr(tables, "is_stored", lambda name: False)
    assert "has not been run" in tables.compression() and "has not been run" in tables.compression_bounds()
