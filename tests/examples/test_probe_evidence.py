"""The experiment on replacements of masked bases: a tiny run."""

import json
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("captum", reason="captum is not installed (the extra `genomics`)")


def test_tiny(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    script.main(["--tiny", "--folder", str(tmp_path / "models"), "--output", str(output)])
    rows = json.loads(output.read_text())["rows"]
    tested = [row for row in rows if "kept" in row]
    assert [row["method"] for row in tested if row["model"] == "Hyena"] == [", ".join(own) for own in script.PLANTED]
    assert len([row for row in rows if row["model"] == "S4, coding"]) == len(script.REAL)
    nulls = [row["method"] for row in rows if "gain" in row]
    assert nulls == ["trained, n", "untrained, n", "trained, composition", "untrained, composition"]
    for row in tested:
        assert 0 <= row["sufficiency"][0] <= 1 and 0 <= row["explained"][0] <= 1 and row["passes"][0] > 24
    assert "| Hyena | in_silico_mutagenesis, composition |" in capsys.readouterr().out
