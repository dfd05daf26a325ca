"""IMDb by length: the trend test against scipy and a permutation test, the recipe by hand, and a tiny run."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
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


def test_the_p_value_is_that_of_permutations() -> None:
    rng = np.random.default_rng(1)
    x, y = np.arange(40.0), rng.normal(size=40)
    found = trend.slope_with_confidence(x.tolist(), y.tolist())
    shuffled = np.array([np.polyfit(x, rng.permutation(y), 1)[0] for _ in range(4000)])
    assert found.p_value == pytest.approx(np.mean(np.abs(shuffled) >= abs(found.slope)), abs=0.03)


def test_a_perfect_line_and_a_flat_one_have_no_uncertainty() -> None:
    assert trend.slope_with_confidence([1, 2, 3], [2, 4, 6]) == trend.Trend(2.0, 2.0, 2.0, 0.0)
    assert trend.slope_with_confidence([1, 2, 3], [2, 2, 2]) == trend.Trend(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 1, 1], [1, 2, 3])])
def test_what_has_no_slope_is_refused(x: list[float], y: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 3 points"):
        trend.slope_with_confidence(x, y)


def test_the_penalty_by_hand() -> None:
    logits = torch.tensor([0.1, -0.2, 0.3])
    outputs = [1 / (1 + np.exp(-value)) for value in (0.1, -0.2, 0.3)]
    assert float(trend.collapse_penalty(logits)) == pytest.approx(10 * (0.1 - np.std(outputs, ddof=1)), rel=1e-5)
    assert float(trend.collapse_penalty(torch.tensor([4.0, -4.0]))) == 0.0


def test_the_recipe_learns_and_accuracy_counts() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 2, (64, 6))
    labels = ids[:, -1]
    model = imdb.build_model(2)
    losses = trend.train_recipe(model, ids, labels, epochs=30, batch_size=16)
    assert losses[-1] < 0.1 < losses[0]
    assert trend.accuracy(model, ids, labels, batch_size=10) == 1.0
    assert trend.accuracy(model, ids, 1 - labels) == 0.0


def test_the_recipe_starts_at_the_cross_entropy_and_the_penalty() -> None:
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 2, (8, 5)), torch.tensor([0, 1] * 4)
    model = imdb.build_model(2)
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, 0].double()
    chance = 1 / (1 + torch.exp(-logits))
    entropy = -torch.where(labels == 1, chance, 1 - chance).log().mean()
    expected = entropy + max(0.0, 10 * (0.1 - chance.std()))
    losses = trend.train_recipe(model, ids, labels, epochs=1, batch_size=8)
    assert losses == [pytest.approx(float(expected), rel=1e-5)]


def test_reviews_are_cut_and_padded_on_the_right() -> None:
    data = DatasetDict(train=Dataset.from_dict({"text": ["Good film, good!", "good film bad"]}))
    tokenizer = imdb.load_tokenizer(None, data, 10)
    ids, mask = imdb.encode(tokenizer, ["good film", "GOOD zebra film film bad"], 4)
    good, film = tokenizer.convert_tokens_to_ids(["good", "film"])
    pad, end, unknown = tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    assert ids.tolist() == [[good, film, end, pad], [good, unknown, film, end]]
    assert mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert len(tokenizer) == 7 + 2  # "bad", "," and "!" stand there once


def test_the_papers_gap_by_an_independent_fit() -> None:
    paper = [{"T": length, "gap": train - test} for length, (train, test) in imdb.PAPER.items()]
    x = np.array([row["T"] for row in paper]) / 1000
    y = np.array([row["gap"] for row in paper])
    trends = imdb.gap_trends(paper)
    assert trends["all T"].slope == pytest.approx(np.polyfit(x, y, 1)[0])
    assert trends["T >= 300"].slope == pytest.approx(np.polyfit(x[2:], y[2:], 1)[0])


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


def test_an_interrupted_run_continues_after_its_last_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, output = tmp_path / "reviews.csv", tmp_path / "out.json"
    rows = [
        f"{('bad', 'good')[n % 2]} film {'so ' * (n % 9)},{n % 2},{('train', 'test')[n % 4 > 1]}" for n in range(80)
    ]
    table.write_text("\n".join(["text,label,split", *rows]) + "\n")
    arguments = ["--dataset", str(table), "--lengths", "4", "6", "8", "--seeds", "1", "--output", str(output)]
    measured: list[int] = []

    def measure(data: DatasetDict, tokenizer: object, length: int, seed: int, args: object) -> dict[str, float]:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(length)
        return {"loss": 0.5, "train": 0.9, "test": 0.9 - length / 100, "gap": length / 100}

    monkeypatch.setattr(imdb, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        imdb.main(arguments)
    measured.clear()
    imdb.main(arguments)
    assert measured == [8]
    assert [row["T"] for row in json.loads(output.read_text())["results"]] == [4, 6, 8]
    with pytest.raises(SystemExit, match="results of another setting"):
        imdb.main([*arguments, "--epochs", "2"])


def test_counts_of_words_see_the_first_words_only() -> None:
    texts = [f"plain {('bad', 'good')[n % 2]}" for n in range(20)]
    data = {name: Dataset.from_dict({"text": texts, "label": [n % 2 for n in range(20)]}) for name in ("train", "test")}
    short, long = imdb.count_words(DatasetDict(data), [1, 2])
    assert short == {"T": 1, "train": 0.5, "test": 0.5, "gap": 0.0}
    assert long == {"T": 2, "train": 1.0, "test": 1.0, "gap": 0.0}


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
