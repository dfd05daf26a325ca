"""The experiment of compression in its tiny setting, which continues from its file."""

import json
from pathlib import Path
from types import ModuleType

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

    monkeypatch.setattr(script, "run_one", None)
    script.main(arguments)
    assert json.loads(result.read_text())["runs"] == runs
    with pytest.raises(SystemExit, match="another setting"):
        script.main([*arguments[1:]])
