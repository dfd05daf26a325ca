"""IMDb by length: the trend test against scipy, the recipe, and a tiny run."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import stats

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """The script `name`, with its neighbours importable."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


trend, imdb = load("_trend"), load("imdb_length")


def test_the_slope_and_its_interval_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 3, 12).tolist()
    y = (0.3 * np.array(x) + rng.normal(0, 0.2, 12)).tolist()
    found, line = trend.slope_with_confidence(x, y, confidence=0.9), stats.linregress(x, y)
    reach = line.stderr * stats.t(10).ppf(0.95)
    expected = [line.slope, line.slope - reach, line.slope + reach, line.pvalue]
    assert [found.slope, found.low, found.high, found.p_value] == pytest.approx(expected, rel=1e-9)


def test_the_recipe_learns_and_accuracy_counts() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 2, (64, 6))
    labels = ids[:, -1]
    model = imdb.build_model(2)
    losses = trend.train_recipe(model, ids, labels, epochs=30, batch_size=16)
    assert losses[-1] < 0.1 < losses[0]
    assert trend.accuracy(model, ids, labels, batch_size=10) == 1.0
    assert trend.accuracy(model, ids, 1 - labels) == 0.0


def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, output = tmp_path / "reviews.csv", tmp_path / "out.json"
    words = {0: "bad dull film", 1: "good fine film"}
    rows = [f"{words[n % 2]} {'very ' * (n % 30)},{n % 2},{'test' if n % 4 > 1 else 'train'}" for n in range(100)]
    table.write_text("\n".join(["text,label,split", *rows]) + "\n")
    imdb.main(["--tiny", "--dataset", str(table), "--output", str(output)])
    found = json.loads(output.read_text())
    assert [row["T"] for row in found["results"]] == [10, 20, 30, 40]
    assert [row["seed"] for row in found["results"]] == [0, 0, 0, 0]
    assert found["rows"] == {"train": 40, "test": 40}
    for row in found["results"]:
        assert row["gap"] == pytest.approx(row["train"] - row["test"])
        assert 0 <= row["test"] <= 1
    slope = np.polyfit([row["T"] / 1000 for row in found["results"]], [row["gap"] for row in found["results"]], 1)[0]
    assert found["trends"]["ours"]["all T"]["slope"] == pytest.approx(slope)
    printed = capsys.readouterr().out
    assert f"ours, all T: the gap changes by {slope:+.4f}" in printed


def test_the_table_of_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, output = tmp_path / "reviews.csv", tmp_path / "out.json"
    rows = [f'"{"good, " * n}film",{n % 2},{split}' for split in ("train", "test") for n in (1, 2, 3, 60)]
    table.write_text("\n".join(["text,label,split", *rows]) + "\n")
    load("length_data").main(["--dataset", str(table), "--output", str(output)])
    found = json.loads(output.read_text())
    assert found["table 1"]["test"] == {"max": 121, "min": 3, "mean": 34, "median": 6}
    assert found["tokens"]["train"] == [3, 1]
    assert sum(found["ones"]["test"]) == 1000 and found["most ones"]["train"] < found["most ones"]["test"] == 200
    assert "| test | 4 | 121 | 3 | 34 | 6 | 3157 | 10 | 307 | 230 |" in capsys.readouterr().out
