"""The trivial baselines: against counts by hand on small data, and the stored values."""

import json
from pathlib import Path
from types import ModuleType

import pytest


def test_the_constant_of_gaussian_processes(script: ModuleType) -> None:
    """By numpy, from the data of the experiment."""
    found = script.gaussian_process(Path(), True)
    from gaussian_process import Setting, draw_data

    data = draw_data(Setting("s4", num_test=8), 24, 0.1, 0)
    train, test = (data[name][1].double().numpy() for name in ("train", "test"))
    assert found["0.1"]["test MSE"] == pytest.approx([((test - train.mean()) ** 2).mean()], rel=1e-5)
    assert found["0.1"]["train MSE"] == pytest.approx([train.var()], rel=1e-5)


def test_tiny_run_writes_the_results(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    names = ["planted_motifs", "masking_planted", "synthetic_tasks", "motif_variants", "sparse_majority_gap", "poles"]
    script.main([*names, "--tiny", "--output", str(tmp_path / "out.json")])
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["baselines"]
    assert list(found) == names
    script.main(["in_context_neighbours", "--tiny", "--output", str(tmp_path / "out.json")])
    merged = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["baselines"]
    assert list(merged) == [*names, "in_context_neighbours"] and merged["synthetic_tasks"] == found["synthetic_tasks"]
    assert found["poles"]["nearer mode"] == pytest.approx({"large": 0.4, "small": 0.4, "neither": 0.2})
    assert found["sparse_majority_gap"]["counting the ones, test"] == [1.0]
    assert 0.9 < found["motif_variants"]["order 8"][0] <= 1
    assert "sparse_majority_gap: {" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        script.main(["sparse"])
    assert "there is no baseline sparse; choose from gaussian_process" in capsys.readouterr().err
