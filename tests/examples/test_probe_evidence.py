"""The experiment on replacements of masked bases: a tiny run."""

import json
import random
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("captum", reason="captum is not installed (the extra `genomics`)")


@pytest.mark.usefixtures("frozen_garbage")
def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, folder = tmp_path / "result.json", tmp_path / "models"
    letters = random.Random(0)
    texts = ["".join(letters.choices("ACGT", k=32)) for _ in range(48)]
    lines = [f"{text},{row % 2},{'train' if row < 40 else 'test'}" for row, text in enumerate(texts)]
    (tmp_path / "rows.csv").write_text("\n".join(["sequence,label,split", *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(script.TABLES, "splice", "rows.csv")
        arguments = ["planted", "real", "null", "mine", "--tiny", "--families", "hyena", "--tasks", "splice"]
        arguments += ["--data", str(tmp_path), "--folder", str(folder), "--mine", str(folder / "planted_hyena")]
        script.main([*arguments, "--output", str(output)])
    rows = json.loads(output.read_text())["rows"]
    methods = [row["method"] for row in rows if row["model"] == "planted, hyena"]
    assert methods == ["search, N", "search, draws", *(own.replace("_", " ") for own in script.ATTRIBUTIONS)]
    for model in ("splice", "all tasks"):
        assert len([row for row in rows if row["model"] == model]) == len(script.REAL)
    assert [row["method"] for row in rows if row["model"] == "runs/mine"] == ["N", "composition, K = 16"]
    nulls = [row for row in rows if "gain" in row]
    kinds = [f"{kind}, {replace}" for replace in ("N", "draws") for kind in ("trained", "untrained")]
    assert [row["method"] for row in nulls] == kinds
    for row in nulls:
        assert row["gain"][0] == pytest.approx(row["chosen"][0] - row["random order"][0])
    for row in rows:
        if "kept" in row:
            assert 0 <= row["sufficiency"][0] <= 1 and 0 <= row["explained"][0] <= 1 and row["passes"][0] > 24
    assert "| planted, hyena | in silico mutagenesis |" in capsys.readouterr().out
