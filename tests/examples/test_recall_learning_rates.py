"""Learning rates of recall: the task, and a tiny run."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_each_query_has_the_value_of_its_key(script: ModuleType) -> None:
    data = script.Recall(200, pairs=4, length=24, seed=0)
    distances = []
    for row in range(len(data)):
        tokens, labels = data[row]["input_ids"].tolist(), data[row]["labels"].tolist()
        pairs = dict(zip(tokens[:8:2], tokens[1:8:2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == 4
        assert all(1 <= key <= 8 < value <= 16 for key, value in pairs.items())
        asked = [place for place, label in enumerate(labels) if label != -100]
        assert {tokens[place] for place in asked} == set(pairs) and min(asked) >= 8
        assert all(labels[place] == pairs[tokens[place]] - 9 for place in asked)
        assert all(token == 0 for place, token in enumerate(tokens[8:], 8) if place not in asked)
        distances += [(place - 8) // 2 for place in asked]
    # The power law: the first place has a weight of 1, the last of eight about 1 / 8.
    assert distances.count(0) > 1.5 * distances.count(7)
    assert distances.count(0) / 200 > 0.7


@pytest.mark.slow
@pytest.mark.usefixtures("frozen_garbage")
def test_tiny_run(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    arguments = ["--tiny", "--output", str(tmp_path / "result.json")]
    script.main(arguments)
    first = json.loads((tmp_path / "result.json").read_text())
    curves = first["accuracy"]["Hyena, S4D filters"]
    assert [len(curves[name]) for name in script.INITIALISATIONS] == [2, 2]
    assert len(first["runs"]) == 4
    assert "| Hyena, S4D filters | rescaled |" in capsys.readouterr().out
    monkeypatch.setattr(script, "fit", None)
    script.main(arguments)  # trains nothing
    assert json.loads((tmp_path / "result.json").read_text()) == first
