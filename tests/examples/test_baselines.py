"""The trivial baselines: against counts by hand on small data, and the stored values."""

import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stored() -> dict:
    return json.loads((ROOT / "examples/results/baselines.json").read_text(encoding="utf-8"))["baselines"]


def test_each_baseline_is_stored(script: ModuleType, stored: dict) -> None:
    assert set(script.BASELINES) == set(stored)


def test_the_constant_of_gaussian_processes(script: ModuleType, stored: dict) -> None:
    """By numpy, from the data of the experiment; better than each model, the paper's too."""
    found = script.gaussian_process(Path(), True)
    from gaussian_process import PAPER_TABLE_1, Setting, draw_data

    data = draw_data(Setting("s4", num_test=8), 24, 0.1, 0)
    train, test = (data[name][1].double().numpy() for name in ("train", "test"))
    assert found["0.1"]["test MSE"] == pytest.approx([((test - train.mean()) ** 2).mean()], rel=1e-5)
    assert found["0.1"]["train MSE"] == pytest.approx([train.var()], rel=1e-5)
    for place, (b, value) in enumerate((("1", 0.17), ("0.1", 0.49), ("0.01", 0.52))):
        mean = sum(stored["gaussian_process"][b]["test MSE"]) / 10
        assert mean == pytest.approx(value, abs=0.015)
        assert all(mean < row["test MSE"][place] for row in PAPER_TABLE_1.values())


def test_poles_and_stripes(script: ModuleType, stored: dict) -> None:
    assert script.poles(Path(), True)["nearer mode"] == pytest.approx({"large": 0.4, "small": 0.4, "neither": 0.2})
    assert stored["poles"]["nearer mode"]["large"] == pytest.approx(50 / 101)
    assert stored["denoising"]["copy of the input"] == pytest.approx({"ratio": 1.0, "mse": 0.0})


def test_neighbours(script: ModuleType, stored: dict) -> None:
    """R² of k' of the k = 3 nearest of 16: 1 - (1/k' - 1/3) 3 for k' < 3, 3/k' for k' > 3."""
    for k, expected in ((1, -1), (2, 0.5), (3, 1), (4, 0.75), (8, 3 / 8), (16, 3 / 16)):
        assert stored["in_context_neighbours"][f"{k} nearest"] == pytest.approx(expected, abs=0.1)


def test_tiny_run_writes_the_results(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    names = ["planted_motifs", "masking_planted", "synthetic_tasks", "motif_variants", "sparse_majority_gap"]
    script.main([*names, "--tiny", "--output", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["baselines"]
    assert list(found) == names
    script.main(["in_context_neighbours", "--tiny", "--output", str(tmp_path / "out.json")])
    merged = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["baselines"]
    assert list(merged) == [*names, "in_context_neighbours"] and merged["synthetic_tasks"] == found["synthetic_tasks"]
    assert found["sparse_majority_gap"]["counting the ones, test"] == [1.0]
    assert 0.9 < found["motif_variants"]["order 8"][0] <= 1
    assert "sparse_majority_gap: {" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main(["sparse"])
    assert "there is no baseline sparse; choose from gaussian_process" in capsys.readouterr().err
